//! Writes what a decision says, in the order in which everybody locks: the node's own rows, budgets and rates, then for
//! the whole transaction the command counter, commands, and the audit's head last.

use gpuheal_hub_core::{
    decide::{BudgetOp, Decision, IncidentChange, PlannedCommand},
    policy::Policy,
    snapshot::{KnownFault, Snapshot},
};
use gpuheal_proto::{
    command::{Command, Target},
    ids::{ClusterId, IncidentId},
    time::Timestamp,
};
use serde_json::{Value, json};
use sqlx::PgConnection;

use super::{Error, told::Move};
use crate::{
    audit::{self, Entry, Kind, chain_of},
    metrics,
    sign::Signer,
    store::{
        budget::{Allowed, hold_delete, hold_insert, rate_take},
        command::{Issue, Seal, command_cancel, command_insert, counter_take},
        decision::cooldown_apply,
        fault::fault_settle,
        incident::{Decided, incident_move, incident_open, incident_recheck},
        node::plan_rev_issue,
    },
    wake::Wake,
};

/// What waits for the end of the transaction.
#[derive(Default)]
pub(super) struct Written {
    commands: Vec<(PlannedCommand, IncidentId, u32)>,
    cancels: usize,
    entries: Vec<Entry>,
    moves: Vec<Move>,
    judged: usize,
}

/// Writes one node's decision, but for its commands and its audit.
pub(super) async fn node(
    conn: &mut PgConnection,
    snapshot: &Snapshot,
    decision: &Decision,
    policy: &Policy,
    now: Timestamp,
    written: &mut Written,
) -> Result<(), Error> {
    let (cluster, node) = (&snapshot.cluster.id, &snapshot.node.reference);
    if let Some(change) = &decision.incident {
        incident(conn, snapshot, change, decision, policy, now).await?;
        written.moves.extend(Move::of(snapshot, change));
    }
    written.judged += 1;
    for settled in &decision.settle {
        fault_settle(conn, cluster, &settled.key, settled.settled.level, now).await?;
    }
    for cancel in &decision.cancel {
        command_cancel(conn, cluster, cancel, now).await?;
    }
    written.cancels += decision.cancel.len();
    let incident = incident_of(snapshot, decision);
    match (decision.budget, incident) {
        (BudgetOp::Keep, _) => {}
        (BudgetOp::Free, _) => hold_delete(conn, cluster, &node.uid, now).await?,
        (BudgetOp::Hold { cluster_allowed, fleet_allowed }, Some(incident)) => {
            let allowed = Allowed { cluster: cluster_allowed, fleet: fleet_allowed };
            hold_insert(conn, cluster, &node.uid, incident, Some(allowed), now).await?;
        }
        (BudgetOp::HoldFound, Some(incident)) => hold_insert(conn, cluster, &node.uid, incident, None, now).await?,
        (BudgetOp::Hold { .. } | BudgetOp::HoldFound, None) => {
            return Err(senseless(snapshot, "a place in the budgets without an incident"));
        }
    }
    cooldown_apply(conn, cluster, &node.uid, incident.or(snapshot.cooldown.map(|row| row.incident)), decision.cooldown, now)
        .await?;
    let mut rates = (snapshot.cluster.rate, snapshot.cluster.fleet_rate);
    for command in &decision.commands {
        let Some(change) = decision.incident.as_ref().filter(|change| change.changed || change.opens) else {
            return Err(senseless(snapshot, "a command without a decision of its own"));
        };
        plan_rev_issue(conn, cluster, &node.uid, command.plan_rev).await?;
        if command.takes_rate {
            rates = rate_take(conn, cluster, &policy.settings.rates, rates, now).await?;
        }
        written.commands.push((command.clone(), change.id, change.decision_no));
    }
    if decision.is_news() {
        written.entries.push(entry(snapshot, decision, policy));
    }
    Ok(())
}

async fn incident(
    conn: &mut PgConnection,
    snapshot: &Snapshot,
    change: &IncidentChange,
    decision: &Decision,
    policy: &Policy,
    now: Timestamp,
) -> Result<(), Error> {
    let (cluster, node) = (&snapshot.cluster.id, &snapshot.node.reference);
    if !change.opens && !change.changed {
        return Ok(incident_recheck(conn, cluster, change.id, decision.recheck_at).await?);
    }
    let held: Vec<&KnownFault> = snapshot.faults.iter().filter(|fault| change.fault_keys.contains(&fault.key)).collect();
    let decided = Decided { change, decision, policy: (policy.revision, &policy.digest), held: &held, now };
    if change.opens {
        return Ok(incident_open(conn, cluster, node, decided).await?);
    }
    if let Some(old) = &snapshot.incident
        && old.state.go(change.state).is_err()
    {
        return Err(senseless(snapshot, "a move that no incident can make"));
    }
    Ok(incident_move(conn, cluster, node, decided).await?)
}

fn incident_of(snapshot: &Snapshot, decision: &Decision) -> Option<IncidentId> {
    decision.incident.as_ref().map(|change| change.id).or(snapshot.incident.as_ref().map(|incident| incident.id))
}

fn senseless(snapshot: &Snapshot, why: &'static str) -> Error {
    Error::Senseless { node: snapshot.node.reference.name.to_string(), why }
}

fn entry(snapshot: &Snapshot, decision: &Decision, policy: &Policy) -> Entry {
    let change = decision.incident.as_ref();
    let commands: Vec<Value> = decision
        .commands
        .iter()
        .map(|command| {
            let steps: Vec<&str> = command.steps.iter().map(gpuheal_proto::command::Step::name).collect();
            json!({"id": command.id, "action": command.action, "steps": steps, "plan_rev": command.plan_rev, "key": command.idempotency_key})
        })
        .collect();
    Entry {
        kind: Kind::Decision,
        actor: snapshot.request.as_ref().map_or_else(|| "hub/decide".to_owned(), |request| request.caller.clone()),
        subject: format!("node/{}", snapshot.node.reference.name),
        incident: incident_of(snapshot, decision),
        body: json!({
            "node_uid": snapshot.node.reference.uid,
            "decision_no": change.map(|change| change.decision_no),
            "from": snapshot.incident.as_ref().map(|incident| incident.state),
            "to": change.map(|change| change.state),
            "level": change.map(IncidentChange::level_word),
            "reasons": decision.reasons,
            "commands": commands,
            "cancel": decision.cancel.iter().map(|cancel| json!({"id": cancel.id, "reason": cancel.reason})).collect::<Vec<_>>(),
            "settle": decision.settle.iter().map(|settled| settled.key).collect::<Vec<_>>(),
            "budget": decision.budget,
            "cooldown": decision.cooldown,
            "notices": decision.notify,
            "request": snapshot.request.as_ref().map(|request| json!({
                "id": request.id, "action": request.action, "reason": request.reason, "workloads": request.workloads, "past_budgets": request.past_budgets,
            })),
            "answer": decision.request,
            "policy_revision": policy.revision,
            "policy_digest": policy.digest,
        }),
    }
}

/// What a transaction issued.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Issued {
    /// Commands that carry their signature.
    pub(crate) signed: usize,
    /// Commands and cancellations that wait for it.
    pub(crate) unsigned: usize,
    /// Incidents that moved.
    moves: Vec<Move>,
    /// Nodes that were judged.
    judged: usize,
}

impl Issued {
    /// Tells what happened, once it is committed, in the log and in metrics.
    pub(super) fn tell(&self) {
        self.moves.iter().for_each(Move::tell);
        metrics::DECISIONS.add(["unchanged"], self.judged.saturating_sub(self.moves.len()) as u64);
        metrics::SIGNED.add(["command"], self.signed as u64);
    }

    /// Tells what happened and wakes whoever has to do with it, once it is committed.
    pub(crate) fn wake(self, wake: &Wake) {
        self.tell();
        if self.signed > 0 {
            wake.signed.notify_one();
        }
        if self.unsigned > 0 {
            wake.decided.notify_one();
        }
    }
}

/// By what a transaction has judged.
pub(super) struct Judged<'a> {
    pub(super) cluster: &'a ClusterId,
    pub(super) policy: &'a Policy,
    /// Of the database, where it is known.
    pub(super) epoch: Option<u64>,
    pub(super) now: Timestamp,
}

/// Writes the transaction's commands and its audit. Has the epoch of the database risen since it began to judge, nothing of it counts:
/// what it took for known of its cluster may be lost.
pub(super) async fn close(
    conn: &mut PgConnection,
    Judged { cluster, policy, epoch, now }: Judged<'_>,
    written: Written,
    signer: Option<&Signer>,
    before: Vec<Entry>,
) -> Result<Issued, Error> {
    let mut issued = Issued { unsigned: written.cancels, moves: written.moves, judged: written.judged, ..Issued::default() };
    let mut entries = before;
    entries.extend(written.entries);
    if !written.commands.is_empty() {
        let (first, hub_term) = counter_take(conn, cluster, written.commands.len() as u64).await?;
        if let Some(judged) = epoch.filter(|epoch| *epoch != hub_term) {
            return Err(crate::store::Error::Epoch { judged, now: hub_term }.into());
        }
        for (cmd_seq, (planned, incident, decision_no)) in (first..).zip(&written.commands) {
            let policy_told = (policy.revision, policy.digest.as_str());
            let issue = Issue { incident: *incident, decision_no: *decision_no, cmd_seq, hub_term, policy: policy_told };
            // What cannot be signed here stays proposed, and sign says why.
            let seal = signer.and_then(|signer| {
                let command = command_of(cluster, planned, issue, policy);
                let made = signer.command(&command).ok()?;
                entries.push(signer.entry(&command, &made));
                Some(Seal { made, keyid: signer.keyid(), key_epoch: signer.key_epoch() })
            });
            command_insert(conn, cluster, planned, issue, seal.as_ref(), now).await?;
            match seal {
                Some(_) => issued.signed += 1,
                None => issued.unsigned += 1,
            }
        }
    }
    audit::append(conn, chain_of(cluster), &entries, now).await?;
    Ok(issued)
}

/// The command that its row says: what sign would read there.
fn command_of(cluster: &ClusterId, planned: &PlannedCommand, issue: Issue, policy: &Policy) -> Command {
    Command {
        id: planned.id,
        idempotency_key: planned.idempotency_key.clone(),
        audience: cluster.clone(),
        // The signer's own takes its place.
        key_epoch: 0,
        hub_term: issue.hub_term,
        cmd_seq: issue.cmd_seq,
        plan_rev: planned.plan_rev,
        times: planned.times,
        incident: issue.incident,
        level: planned.level.clone(),
        reason: planned.reason.clone(),
        policy_revision: policy.revision,
        policy_digest: policy.digest.clone(),
        target: Target { node: planned.node.clone(), gpu: planned.gpu.clone() },
        fault_keys: planned.fault_keys.clone(),
        ignore_cooldown: planned.ignore_cooldown,
        others: planned.others.clone(),
        steps: planned.steps.clone(),
    }
}
