//! Requests by hand: they pass the same guards as any plan, under the caller's own id. The same id gives the first answer
//! again; another request under it is refused.

use gpuheal_hub_core::{decide::RequestOutcome, snapshot::Request};
use gpuheal_proto::{
    bytes_text::clip,
    ids::{ClusterId, CommandId, ReplicaId},
    limits::WORKLOADS_MAX,
    words::Action,
    workload::Workload,
};
use serde_json::json;
use sqlx::PgPool;

use super::{Error, judge::Bench};
use crate::{
    audit::{self, Entry, Kind, chain_of},
    store::{
        self, Labelled as _,
        judgement::judgement_lock,
        moment,
        node::node_by_name,
        process::{Answered, NewAnswer, process_insert, process_load},
        session::session_hold,
    },
};

/// A caller's id: a UUID is 36.
const REQUEST_ID_BYTES_MAX: usize = 128;
/// Why people ask, and who they are.
const TEXT_BYTES_MAX: usize = 512;
/// Two callers with one id at once: the second reads what the first stored.
const ATTEMPTS: u32 = 3;

/// What a person asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManualRequest {
    /// Of which cluster.
    pub cluster: ClusterId,
    /// The caller's own id.
    pub request_id: String,
    /// Which node, by name.
    pub node: String,
    /// What.
    pub action: Action,
    /// Why.
    pub reason: String,
    /// Who asks: `user/admin`, `spoke/c1/webhook`.
    pub caller: String,
    /// They waive the cooldown.
    pub override_cooldown: bool,
    /// What a restart is of, as they wrote it; of any other action nothing.
    pub workloads: Vec<String>,
    /// An eviction may pass budgets at its deadline, where policy allows it.
    pub past_budgets: bool,
}

/// What became of it, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A command was issued.
    Accepted,
    /// It was asked before, or is done already.
    Repeated,
    /// No such node.
    NoSuchNode,
    /// A guard said no.
    Blocked,
    /// The request itself cannot be.
    Invalid,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// In a word.
    pub outcome: Outcome,
    /// The command that does it.
    pub command: Option<CommandId>,
    /// In words, with the arithmetic.
    pub reason: String,
}

/// Decides about a request and commits what follows.
///
/// # Errors
/// When the database fails: then nothing was done, and the same request may be made again.
pub async fn process(pool: &PgPool, request: &ManualRequest) -> Result<Answer, Error> {
    process_of(pool, request, None).await
}

/// The same for what came over a session, which must still be its cluster's own in the transaction that decides.
pub(super) async fn process_of(
    pool: &PgPool,
    request: &ManualRequest,
    session: Option<&(ReplicaId, u64)>,
) -> Result<Answer, Error> {
    let invalid = |reason| Ok(Answer { outcome: Outcome::Invalid, command: None, reason });
    if let Some(why) = nonsense(request) {
        return invalid(why);
    }
    let workloads = match workloads(request) {
        Ok(workloads) => workloads,
        Err(why) => return invalid(why),
    };
    let mut outcome = once(pool, request, &workloads, session).await;
    for _ in 1..ATTEMPTS {
        match &outcome {
            Err(error) if error.transient() => outcome = once(pool, request, &workloads, session).await,
            Ok(_) | Err(_) => break,
        }
    }
    outcome
}

fn nonsense(request: &ManualRequest) -> Option<String> {
    let lengths = [
        ("request_id", &request.request_id, REQUEST_ID_BYTES_MAX),
        ("node", &request.node, 253),
        ("reason", &request.reason, TEXT_BYTES_MAX),
        ("caller", &request.caller, TEXT_BYTES_MAX),
    ];
    for (field, text, max) in lengths {
        if text.len() > max {
            return Some(format!("{field}: {} bytes, at most {max} are allowed", text.len()));
        }
        if text.contains('\0') {
            return Some(format!("{field}: it holds a zero byte"));
        }
    }
    let named = [("request_id", &request.request_id), ("node", &request.node)];
    if request.past_budgets && request.action != Action::Evict {
        return Some(format!("past_budgets: only an eviction passes budgets, not {}", request.action));
    }
    named.iter().find(|(_, text)| text.is_empty()).map(|(field, _)| format!("{field}: it is empty"))
}

/// What is to be restarted, each once.
fn workloads(request: &ManualRequest) -> Result<Vec<Workload>, String> {
    let named = &request.workloads;
    match (request.action, named.len()) {
        (Action::Restart, 0) => return Err("workloads: a restart needs one, as kind/namespace/name".to_owned()),
        (Action::Restart, count) if count > WORKLOADS_MAX => {
            return Err(format!("workloads: there are {count}, at most {WORKLOADS_MAX} are restarted by one request"));
        }
        (Action::Notify | Action::Mark | Action::Evict | Action::Release, 1..) => {
            return Err(format!("workloads: only a restart is of workloads, {} is of the node", request.action));
        }
        (Action::Notify | Action::Mark | Action::Restart | Action::Evict | Action::Release, _) => {}
    }
    let mut workloads: Vec<Workload> = Vec::with_capacity(named.len());
    for text in named {
        let workload = Workload::parse(text).map_err(|error| format!("workloads: {error}"))?;
        if !workloads.contains(&workload) {
            workloads.push(workload);
        }
    }
    Ok(workloads)
}

async fn once(
    pool: &PgPool,
    request: &ManualRequest,
    workloads: &[Workload],
    session: Option<&(ReplicaId, u64)>,
) -> Result<Answer, Error> {
    let mut tx = pool.begin().await.label("process.begin")?;
    let cluster = &request.cluster;
    session_hold(&mut tx, cluster, session).await?;
    if let Some(before) = process_load(&mut tx, cluster, &request.request_id).await? {
        return Ok(again(request, before));
    }
    let Some(node) = node_by_name(&mut tx, cluster, &request.node).await? else {
        let answer = Answer {
            outcome: Outcome::NoSuchNode,
            command: None,
            reason: format!("cluster {cluster} has shown no GPU node of the name {}", clip(&request.node, 80)),
        };
        keep(&mut tx, request, "no_such_node", &answer).await?;
        let now = moment::now(&mut tx).await?;
        audit::append(&mut tx, chain_of(cluster), &[unmet(request, &answer)], now).await?;
        tx.commit().await.label("process.commit")?;
        return Ok(answer);
    };
    judgement_lock(&mut tx, cluster, &node, "process").await?;
    let mut bench = Bench::open(&mut tx, cluster).await?;
    let asked = Request {
        id: request.request_id.clone(),
        action: request.action,
        reason: request.reason.clone(),
        caller: request.caller.clone(),
        ignore_cooldown: request.override_cooldown,
        workloads: workloads.to_vec(),
        past_budgets: request.past_budgets,
    };
    let decision = bench.judge(&mut tx, &node, Some(asked)).await?;
    let (word, answer) = answer(decision.and_then(|decision| decision.request));
    keep(&mut tx, request, word, &answer).await?;
    let issued = bench.close(&mut tx, None, Vec::new()).await?;
    tx.commit().await.label("process.commit")?;
    issued.tell();
    Ok(answer)
}

fn answer(outcome: Option<RequestOutcome>) -> (&'static str, Answer) {
    match outcome {
        Some(RequestOutcome::Accepted { command }) => {
            ("accepted", Answer { outcome: Outcome::Accepted, command: Some(command), reason: String::new() })
        }
        Some(RequestOutcome::AlreadyDone { command, reason }) => {
            ("already_done", Answer { outcome: Outcome::Repeated, command, reason })
        }
        Some(RequestOutcome::Blocked { reason }) => ("blocked", Answer { outcome: Outcome::Blocked, command: None, reason }),
        None => {
            let reason = "nothing could be decided about this node".to_owned();
            ("blocked", Answer { outcome: Outcome::Blocked, command: None, reason })
        }
    }
}

/// The first answer again: accepted then is repeated now.
fn again(request: &ManualRequest, before: Answered) -> Answer {
    let same = before.node_name == request.node
        && before.action == request.action.as_str()
        && before.workloads == request.workloads
        && before.past_budgets == request.past_budgets;
    if !same {
        let reason = format!("request_id: {} was used before, to {} node {}", request.request_id, before.action, before.node_name);
        return Answer { outcome: Outcome::Invalid, command: None, reason };
    }
    let outcome = match before.outcome.as_str() {
        "accepted" | "already_done" => Outcome::Repeated,
        "no_such_node" => Outcome::NoSuchNode,
        "invalid" => Outcome::Invalid,
        _ => Outcome::Blocked,
    };
    Answer { outcome, command: before.command(), reason: before.answer }
}

async fn keep(conn: &mut sqlx::PgConnection, request: &ManualRequest, word: &str, answer: &Answer) -> Result<(), store::Error> {
    let new = NewAnswer {
        request_id: &request.request_id,
        node_name: &request.node,
        action: request.action.as_str(),
        caller: &request.caller,
        reason: &request.reason,
        override_cooldown: request.override_cooldown,
        workloads: &request.workloads,
        past_budgets: request.past_budgets,
        outcome: word,
        command: answer.command,
        answer: &answer.reason,
    };
    process_insert(conn, &request.cluster, new).await
}

fn unmet(request: &ManualRequest, answer: &Answer) -> Entry {
    Entry {
        kind: Kind::RequestUnmet,
        actor: request.caller.clone(),
        subject: format!("node/{}", request.node),
        incident: None,
        body: json!({"request_id": request.request_id, "action": request.action, "reason": request.reason, "answer": answer.reason}),
    }
}
