//! Stage 10: what spokes report becomes the state of commands, and their nodes are judged again. A status that was taken
//! before changes nothing; a result that comes after a final state was assumed is a correction. What was refused without
//! verifying has no id that can be believed: it is kept by its envelope's hash.

mod adopt;
mod fold;
mod sweep;
mod told;

use std::time::Instant;

use gpuheal_proto::{
    command::CommandState,
    ids::{ClusterId, CommandId},
    link::v1,
};
use serde_json::json;
use sqlx::{PgConnection, PgPool};

pub use crate::store::report::{Report, Reported, StepReport};
use crate::{
    audit::{self, Entry, Kind, chain_of},
    ingest::Origin,
    metrics,
    sign::Signer,
    store::{
        self, Labelled as _,
        judgement::{judgement_lock, judgements_ask},
        moment,
        process::process_asked,
        report::past_budgets,
        session::session_hold,
        settle::{
            Held, Knows, cluster_knows, command_by_envelope, command_hold, command_node, command_not_now, command_past_budgets,
            command_settle, report_put,
        },
    },
};
pub use fold::{Fold, fold};
pub use sweep::{run, sweep};
use told::{Ended, Told};

/// Takes one status from a cluster, or from a session of it, which must still be its own. The answer follows the commit. With the
/// signer, a command that is not known here, and comes with the bytes that this signer signed, is taken over first. No answer: it
/// came before its cluster's nodes did, by which a lost command is judged, and was left alone; the spoke tells it again.
///
/// # Errors
/// When it could not be committed, or its session was taken over; the spoke reports it again.
pub async fn settle(
    pool: &PgPool,
    from: impl Into<Origin>,
    status: v1::CommandStatus,
    signer: Option<&Signer>,
) -> Result<Option<v1::StatusAck>, Error> {
    take(pool, from.into(), status, signer).await
}

#[tracing::instrument(name = "hub.settle", skip_all, fields(cluster.id = %from.cluster, command.id = %status.command_id))]
async fn take(
    pool: &PgPool,
    from: Origin,
    status: v1::CommandStatus,
    signer: Option<&Signer>,
) -> Result<Option<v1::StatusAck>, Error> {
    let (report, began, cluster) = (Report::of(&status), Instant::now(), &from.cluster);
    if report.undo_unreadable {
        metrics::SET_ASIDE.inc(["undo"]);
        tracing::error!(cluster.id = %cluster, command.id = %status.command_id, "an undo record cannot be read: the spoke is told to keep it");
    }
    let mut tx = pool.begin().await.label("settle.begin")?;
    session_hold(&mut tx, cluster, from.session.as_ref()).await?;
    // Before anything is written: should the epoch rise meanwhile, this ack is of the older one.
    let knows = cluster_knows(&mut tx, cluster).await?;
    let (undo_kept, told) = match report.command {
        Some(id) => {
            let lost = signer.filter(|_| !status.envelope.is_empty()).map(|signer| (signer, status.envelope.as_ref()));
            match known(&mut tx, cluster, id, &report, lost, knows).await? {
                Some(known) => known,
                None => return Ok(None),
            }
        }
        None => match command_by_envelope(&mut tx, cluster, &report.subject).await? {
            Some(id) => (false, unverified(&mut tx, cluster, id, &report).await?),
            None => (false, stranger(&mut tx, cluster, &report).await?),
        },
    };
    dies_at!("settle.before-commit");
    tx.commit().await.label("settle.commit")?;
    dies_at!("settle.committed");
    metrics::SETTLE_SECONDS.observe(began.elapsed());
    told.tell(cluster, &report);
    Ok(Some(v1::StatusAck { command_id: status.command_id, status_seq: status.status_seq, undo_kept, hub_term: knows.term }))
}

/// Of a command that the spoke could name; `shown` are its bytes, if they came along. Returns whether what it changed is
/// known here, and what is to be told; nothing of one that cannot be judged yet.
async fn known(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    id: CommandId,
    report: &Report,
    shown: Option<(&Signer, &[u8])>,
    knows: Knows,
) -> Result<Option<(bool, Told)>, Error> {
    let mut node = command_node(conn, cluster, id).await?;
    // Without its bytes it is no use to a hub that may have lost it, and comes again with them.
    let early = if shown.is_some() { !knows.nodes } else { !knows.all };
    if node.is_none() && early {
        return Ok(None);
    }
    if let (None, Some((signer, envelope))) = (&node, shown) {
        node = adopt::adopt(conn, cluster, id, report, envelope, signer).await?;
    }
    let Some(node) = node else {
        report_put(conn, cluster, report, "unknown_command").await?;
        return Ok(Some((false, Told::Unknown(id))));
    };
    judgement_lock(conn, cluster, &node, "settle").await?;
    let held = command_hold(conn, cluster, id).await?;
    let now = moment::now(conn).await?;
    let fold = fold(held.state, held.status_seq, report.reported, report.status_seq);
    report_put(conn, cluster, report, fold.effect()).await?;
    let state = match fold {
        Fold::Stale => return Ok(Some((held.undo_known || !report.undone(), Told::Nothing))),
        Fold::NotNow => {
            command_not_now(conn, cluster, id, report, now).await?;
            return Ok(Some((true, Told::Nothing)));
        }
        Fold::Takes(state) | Fold::Corrects(state) => state,
    };
    let passed = passed(conn, cluster, id, &held, report).await?;
    command_settle(conn, cluster, id, &held, report, state, matches!(fold, Fold::Corrects(_)), now).await?;
    judgements_ask(conn, &[(cluster.clone(), node)], "a report").await?;
    let mut entries = vec![entry(cluster, id, &held, report, fold)];
    entries.extend(passed);
    audit::append(conn, chain_of(cluster), &entries, now).await?;
    Ok(Some((held.undo_known || !report.undo_unreadable, ended(cluster, id, held, report, state))))
}

/// Pods that went past their budgets since the report before: each is told once, with who let it.
async fn passed(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    id: CommandId,
    held: &Held,
    report: &Report,
) -> Result<Option<Entry>, Error> {
    let all: Vec<_> = past_budgets(&report.steps).collect();
    if all.is_empty() {
        return Ok(None);
    }
    let before = command_past_budgets(conn, cluster, id).await?;
    let news = all.into_iter().filter(|pod| !before.contains(&pod.uid));
    let pods: Vec<_> = news.map(|pod| json!({"namespace": pod.namespace, "name": pod.name, "uid": pod.uid})).collect();
    if pods.is_empty() {
        return Ok(None);
    }
    let asked = process_asked(conn, cluster, id).await?;
    tracing::warn!(cluster.id = %cluster, command.id = %id, node.name = held.node_name, pods = pods.len(), "pods were deleted past their budgets");
    let (by, why) = asked.unzip();
    Ok(Some(Entry {
        kind: Kind::BudgetPassed,
        actor: format!("spoke/{cluster}"),
        subject: format!("command/{id}"),
        incident: Some(held.incident),
        body: json!({"allowed_by": by, "reason": why, "node": held.node_name, "pods": pods}),
    }))
}

fn ended(cluster: &ClusterId, command: CommandId, held: Held, report: &Report, to: CommandState) -> Told {
    Told::Ended(Ended {
        cluster: cluster.clone(),
        node: held.node_name,
        command,
        incident: held.incident,
        faults: held.fault_keys,
        from: held.state,
        to,
        refusal: report.refusal,
        reason: report.reason.clone(),
    })
}

fn entry(cluster: &ClusterId, id: CommandId, held: &Held, report: &Report, fold: Fold) -> Entry {
    Entry {
        kind: if matches!(fold, Fold::Corrects(_)) { Kind::CommandCorrected } else { Kind::CommandReported },
        actor: format!("spoke/{cluster}"),
        subject: format!("command/{id}"),
        incident: Some(held.incident),
        body: json!({
            "from": held.state.as_str(), "to": report.reported.word(), "status_seq": report.status_seq, "refusal": report.refusal,
            "reason": report.reason, "steps": report.steps, "undo": report.undo, "undo_unreadable": report.undo_unreadable, "lease_transitions": report.lease_transitions,
        }),
    }
}

/// Of an envelope of ours that the spoke told by its hash alone. One that it had no room for is sent again; one that did not verify there
/// will never be executed, and people must see why.
async fn unverified(conn: &mut PgConnection, cluster: &ClusterId, id: CommandId, report: &Report) -> Result<Told, Error> {
    let Some(node) = command_node(conn, cluster, id).await? else { return stranger(conn, cluster, report).await };
    judgement_lock(conn, cluster, &node, "settle").await?;
    let held = command_hold(conn, cluster, id).await?;
    let waits = matches!(held.state, CommandState::Signed | CommandState::Dispatched);
    if !waits {
        return stranger(conn, cluster, report).await;
    }
    let now = moment::now(conn).await?;
    if report.reported == Reported::NotNow {
        let report = Report { command: Some(id), ..report.clone() };
        report_put(conn, cluster, &report, Fold::NotNow.effect()).await?;
        command_not_now(conn, cluster, id, &report, now).await?;
        return Ok(Told::Nothing);
    }
    let report = Report { command: Some(id), reported: Reported::State(CommandState::Refused), ..report.clone() };
    report_put(conn, cluster, &report, "unverified").await?;
    command_settle(conn, cluster, id, &held, &report, CommandState::Refused, false, now).await?;
    judgements_ask(conn, &[(cluster.clone(), node)], "a report").await?;
    let entry = entry(cluster, id, &held, &report, Fold::Takes(CommandState::Refused));
    audit::append(conn, chain_of(cluster), &[entry], now).await?;
    Ok(ended(cluster, id, held, &report, CommandState::Refused))
}

/// Of an envelope that is none of ours, or of a status that cannot be read.
async fn stranger(conn: &mut PgConnection, cluster: &ClusterId, report: &Report) -> Result<Told, Error> {
    let first = report_put(conn, cluster, report, "unverified").await?;
    if first {
        let now = moment::now(conn).await?;
        let entry = Entry {
            kind: Kind::EnvelopeRefused,
            actor: format!("spoke/{cluster}"),
            subject: format!("envelope/{}", report.subject),
            incident: None,
            body: json!({"refusal": report.refusal, "reason": report.reason, "lease_transitions": report.lease_transitions}),
        };
        audit::append(conn, chain_of(cluster), &[entry], now).await?;
    }
    Ok(Told::Stranger)
}

/// Why a status was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store.
    #[error(transparent)]
    Store(#[from] store::Error),
}
