//! Signing and handing out. The bytes are made by the hub's own signer, and what is due its own `due` says.

use bytes::Bytes;
use gpuheal_hub::{
    audit::Kind,
    deliver::due::{self, due as is_due},
    sign::Signer,
    store::session::SESSION_STALE,
};
use gpuheal_proto::{
    command::{Command as Body, CommandState, Target},
    ids::{ClusterId, CommandId},
    link::v1,
    time::Timestamp,
    words::Action,
};
use serde_json::json;

use super::{Cluster, Command, Memory};
use crate::{
    mutation::Mutation,
    store::{Due, Leader},
};

impl Memory {
    pub(super) fn sign_proposed(&mut self, signer: &Signer) -> usize {
        let now = self.now;
        let wanted = |command: &Command| {
            command.state == CommandState::Proposed && command.cancel_asked_at.is_none() && command.planned.times.deliver_by > now
        };
        let mut signed = 0;
        for (cluster, id) in self.all(wanted) {
            let body = body_of(&cluster, &self.clusters[&cluster].commands[&id]);
            // What cannot be signed stays proposed and expires in time.
            let Ok(made) = signer.command(&body) else { continue };
            let told = json!({"sha256": made.sha256, "key_id": signer.keyid(), "hub_term": body.hub_term});
            if let Some(command) = self.cluster(&cluster).commands.get_mut(&id) {
                (command.state, command.state_at) = (CommandState::Signed, now);
                command.envelope = Some(Bytes::from(made.envelope));
                command.sha256 = made.sha256;
            }
            self.tell(&cluster, Kind::CommandSigned, "hub/sign", &format!("command/{id}"), Some(body.incident), &told);
            signed += 1;
        }
        signed
    }

    pub(super) fn sign_cancels(&mut self, signer: &Signer) -> usize {
        let (now, term) = (self.now, self.hub_term);
        let wanted = |command: &Command| {
            command.cancel_asked_at.is_some()
                && command.envelope.is_some()
                && command.planned.times.expires > now
                && match command.cancel_envelope {
                    None => command.cancel_sent_at.is_none(),
                    // The epoch rose since: a spoke that has seen this one takes nothing of an older.
                    Some(_) => command.cancel_term < term && under_way(command),
                }
        };
        let mut signed = 0;
        for (cluster, id) in self.all(wanted) {
            let command = &self.clusters[&cluster].commands[&id];
            let incident = command.incident;
            let body = v1::CancelBody {
                command_id: id.to_string(),
                audience: cluster.to_string(),
                hub_term: term,
                reason: command.cancel_reason.clone(),
                created_unix_ms: command.cancel_asked_at.unwrap_or_default().unix_ms(),
            };
            let Ok(made) = signer.cancel(&body) else { continue };
            let told = json!({"sha256": made.sha256, "reason": body.reason});
            if let Some(command) = self.cluster(&cluster).commands.get_mut(&id) {
                command.cancel_envelope = Some(Bytes::from(made.envelope));
                (command.cancel_term, command.cancel_sent_at) = (term, None);
            }
            self.tell(&cluster, Kind::CancelSigned, "hub/sign", &format!("command/{id}"), Some(incident), &told);
            signed += 1;
        }
        signed
    }

    fn all(&self, wanted: impl Fn(&Command) -> bool) -> Vec<(ClusterId, CommandId)> {
        let mut found = Vec::new();
        for (cluster, rows) in &self.clusters {
            let mut of: Vec<_> = rows.commands.values().filter(|command| wanted(command)).collect();
            of.sort_by_key(|command| command.cmd_seq);
            found.extend(of.into_iter().map(|command| (cluster.clone(), command.planned.id)));
        }
        found
    }

    /// Since when a session leads its cluster; none when it was taken over, or another replica's proof outranks it.
    pub(super) fn leads_since(&self, leader: &Leader) -> Option<Timestamp> {
        let cluster = self.clusters.get(&leader.owner.cluster)?;
        let session = cluster.sessions.get(&leader.owner.replica)?;
        let fresh = self.now.before(SESSION_STALE);
        let outranked = |other: &super::Session| {
            !other.detached && other.seen_at > fresh && other.lease_transitions > Some(leader.lease_transitions)
        };
        if session.generation != leader.owner.generation || session.detached || cluster.sessions.values().any(outranked) {
            return None;
        }
        Some(session.leads_since.map_or(session.attached_at, |since| since.max(session.attached_at)))
    }

    /// What the leader is to be sent now.
    pub(super) fn due_for(&self, leader: &Leader) -> Vec<Due> {
        let owner = &leader.owner;
        let Some(cluster) = self.clusters.get(&owner.cluster) else { return Vec::new() };
        let Some(attached_at) = self.leads_since(leader) else { return Vec::new() };
        let mut due: Vec<(u64, Due)> = Vec::new();
        for command in cluster.commands.values().filter(|command| command.envelope.is_some()) {
            let mut view = view(cluster, command, attached_at);
            if self.mutations.has(Mutation::ResendAfterExpiry) {
                view.deliver_by = view.deliver_by.after(std::time::Duration::from_secs(86_400));
            }
            let harms = matches!(command.planned.action, Action::Mark | Action::Restart | Action::Evict);
            let of_before = harms && (command.hub_term < self.hub_term || !self.run_known());
            let (cancels, envelope) = match (is_due(&view, self.now), &command.cancel_envelope) {
                (due::Due::Send(_), _) if of_before => continue,
                (due::Due::Send(_), _) => (false, command.envelope.clone()),
                (due::Due::Cancel, Some(cancel)) if !command.state.terminal() && command.planned.times.expires > self.now => {
                    (true, Some(cancel.clone()))
                }
                _ => continue,
            };
            let Some(envelope) = envelope else { continue };
            due.push((
                command.cmd_seq,
                Due { cluster: owner.cluster.clone(), command: command.planned.id, cancels, envelope, at: self.now },
            ));
        }
        due.sort_by_key(|(cmd_seq, _)| *cmd_seq);
        due.into_iter().map(|(_, due)| due).collect()
    }

    pub(super) fn note_sent(&mut self, sent: &[Due]) {
        let now = self.now;
        for due in sent {
            let Some(command) = self.cluster(&due.cluster).commands.get_mut(&due.command) else { continue };
            let incident = command.incident;
            let kind = if due.cancels {
                command.cancel_sent_at = Some(due.at);
                Kind::CancelSent
            } else {
                if command.state == CommandState::Signed {
                    (command.state, command.state_at) = (CommandState::Dispatched, now);
                }
                command.sent_at = Some(due.at);
                command.resend_at = command.resend_at.filter(|at| *at > due.at);
                Kind::CommandSent
            };
            self.tell(&due.cluster, kind, "hub/deliver", &format!("command/{}", due.command), Some(incident), &json!({}));
        }
    }
}

const fn under_way(command: &Command) -> bool {
    use CommandState::{Dispatched, Received, Signed, Started};
    matches!(command.state, Signed | Dispatched | Received | Started)
}

/// As the hub's own stage sees a row.
fn view(cluster: &Cluster, command: &Command, attached_at: Timestamp) -> due::Command {
    let counts = |other: &&Command| {
        other.planned.node.uid == command.planned.node.uid
            && other.planned.action != Action::Notify
            && !matches!(other.state, CommandState::Cancelled | CommandState::Expired | CommandState::Refused)
    };
    let newest = cluster.commands.values().filter(counts).map(|other| other.planned.plan_rev).max().unwrap_or(0);
    due::Command {
        dispatched: command.state == CommandState::Dispatched,
        awaited: matches!(command.state, CommandState::Signed | CommandState::Dispatched),
        harmless: command.planned.action == Action::Notify,
        superseded: command.planned.plan_rev < newest,
        cancel: command.cancel_asked_at.is_some(),
        cancel_sent_at: command.cancel_sent_at,
        deliver_by: command.planned.times.deliver_by,
        sent_at: command.sent_at,
        resend_at: command.resend_at,
        attached_at,
    }
}

fn body_of(cluster: &ClusterId, command: &Command) -> Body {
    let planned = &command.planned;
    Body {
        id: planned.id,
        idempotency_key: planned.idempotency_key.clone(),
        audience: cluster.clone(),
        // The signer's own takes its place.
        key_epoch: 0,
        hub_term: command.hub_term,
        cmd_seq: command.cmd_seq,
        plan_rev: planned.plan_rev,
        times: planned.times,
        incident: command.incident,
        level: planned.level.clone(),
        reason: planned.reason.clone(),
        policy_revision: command.policy_revision,
        policy_digest: command.policy_digest.clone(),
        target: Target { node: planned.node.clone(), gpu: planned.gpu.clone() },
        fault_keys: planned.fault_keys.clone(),
        ignore_cooldown: planned.ignore_cooldown,
        others: planned.others.clone(),
        steps: planned.steps.clone(),
    }
}
