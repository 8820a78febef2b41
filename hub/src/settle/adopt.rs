//! A command that its cluster shows and that this database has lost, as after a restore: it is taken over as it was signed,
//! under an incident of its node, and its report is then taken like any other's. What this hub's own key did not sign is
//! nobody's word. What harms takes its place in the budgets with it, whatever they say: the next node that is judged must find
//! it counted, long before this one's mark shows.

use gpuheal_hub_core::{
    adopt::{self, planned},
    cooldown::CooldownOp,
    decide::{Decision, IncidentChange},
};
use gpuheal_proto::{
    command::Command,
    ids::{ClusterId, CommandId, NodeUid},
    words::Action,
};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use sqlx::{Connection as _, PgConnection};

use super::{Error, Report};
use crate::{
    audit::{self, Entry, Kind, chain_of},
    sign::Signer,
    store::{
        Class, Labelled as _,
        adopted::{found, plan_rev_keep},
        budget::{budgets_lock, hold_insert},
        command::{Issue, Seal, Signed, command_insert},
        decision::cooldown_apply,
        incident::{Decided, incident_move, incident_open},
        judgement::judgement_lock,
        moment,
        term::cmd_seq_adopt,
    },
};

/// Takes the command over and returns its node. `None`: it is not ours, does not concern anything that stands, or what this
/// database did since leaves no room for it; its report is then kept like any stranger's.
pub(super) async fn adopt(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    id: CommandId,
    report: &Report,
    envelope: &[u8],
    signer: &Signer,
) -> Result<Option<NodeUid>, Error> {
    let command = match signer.own(envelope) {
        Ok(command) if command.id == id && command.audience == *cluster => command,
        Ok(command) => {
            tracing::warn!(cluster.id = %cluster, command.id = %id, shown = %command.id, audience = %command.audience, "bytes of another command were shown");
            return Ok(None);
        }
        Err(why) => {
            tracing::warn!(cluster.id = %cluster, command.id = %id, error = %why, "a command that is not known here cannot be taken over");
            return Ok(None);
        }
    };
    // Nothing of an Event stands, nor of a rollout: their node need not be held for them.
    if matches!(command.action(), Action::Notify | Action::Restart) {
        return Ok(None);
    }
    let node = command.target.node.uid.clone();
    judgement_lock(conn, cluster, &node, "settle").await?;
    let Some(found) = found(conn, cluster, &node).await? else { return Ok(None) };
    let Some(change) = adopt::adopt(&command, report.over(), &found) else { return Ok(None) };
    // Its numbers may have been given out again by a database that did not know of them.
    let mut attempt = conn.begin().await.label("adopt.savepoint")?;
    match take(&mut attempt, cluster, &command, &change, envelope, signer).await {
        Ok(()) => {
            attempt.commit().await.label("adopt.release")?;
            tracing::warn!(cluster.id = %cluster, node.name = %command.target.node.name, command.id = %id, "a command that this database had lost is taken over");
            Ok(Some(node))
        }
        Err(Error::Store(error)) if error.class() == Class::Conflict => {
            attempt.rollback().await.label("adopt.rollback")?;
            tracing::error!(cluster.id = %cluster, command.id = %id, error = %crate::chain::chain(&error), "a lost command cannot be taken over");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

async fn take(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    command: &Command,
    change: &IncidentChange,
    envelope: &[u8],
    signer: &Signer,
) -> Result<(), Error> {
    let now = moment::now(conn).await?;
    let policy = (command.policy_revision, command.policy_digest.as_str());
    let decision = Decision { reasons: vec![change.reason.clone()], ..Decision::nothing(policy.0) };
    let decided = Decided { change, decision: &decision, policy, held: &[], now };
    if change.opens {
        incident_open(conn, cluster, &command.target.node, decided).await?;
    } else {
        incident_move(conn, cluster, &command.target.node, decided).await?;
    }
    let node = &command.target.node.uid;
    if command.harmful() {
        budgets_lock(conn, cluster).await?;
        hold_insert(conn, cluster, node, change.id, None, now).await?;
        cooldown_apply(conn, cluster, node, Some(change.id), CooldownOp::Reserve, now).await?;
    }
    plan_rev_keep(conn, cluster, node, command.plan_rev).await?;
    cmd_seq_adopt(conn, cluster, command.cmd_seq).await?;
    let made = Signed { envelope: envelope.to_vec(), sha256: hex::encode(Sha256::digest(envelope)) };
    let entry = Entry {
        kind: Kind::CommandAdopted,
        actor: format!("spoke/{cluster}"),
        subject: format!("command/{}", command.id),
        incident: Some(change.id),
        body: json!({
            "sha256": made.sha256, "action": command.action(), "node": command.target.node.name, "cmd_seq": command.cmd_seq,
            "plan_rev": command.plan_rev, "hub_term": command.hub_term, "opens_incident": change.opens,
        }),
    };
    let seal = Seal { made, keyid: signer.keyid(), key_epoch: command.key_epoch };
    let issue = Issue {
        incident: change.id,
        decision_no: change.decision_no,
        cmd_seq: command.cmd_seq,
        hub_term: command.hub_term,
        policy,
    };
    command_insert(conn, cluster, &planned(command), issue, Some(&seal), now).await?;
    audit::append(conn, chain_of(cluster), &[entry], now).await?;
    Ok(())
}
