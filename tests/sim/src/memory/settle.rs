//! What spokes report, and commands that ran out of time. What a report does, the hub's own `fold` says.

use std::time::Duration;

use gpuheal_hub::{
    audit::Kind,
    settle::{Fold, Report, Reported, fold},
    sign::Signer,
};
use gpuheal_proto::{
    command::CommandState,
    ids::{ClusterId, CommandId},
    link::v1,
    time::Timestamp,
};
use serde_json::json;

use super::{Command, Memory};
use crate::mutation::Mutation;

/// Pause before bytes that a spoke could not take go again.
const NOT_NOW: Duration = Duration::from_secs(1);
/// For a report that is on its way.
const OVERDUE: Duration = Duration::from_secs(60);

impl Memory {
    pub(super) fn take_status(
        &mut self,
        cluster: &ClusterId,
        status: v1::CommandStatus,
        signer: Option<&Signer>,
    ) -> Option<v1::StatusAck> {
        let report = Report::of(&status);
        if report.reason.is_empty() && !report.refusal.is_empty() {
            self.cluster(cluster).mute.push(format!("{} {}", report.subject, report.refusal));
        }
        let undo_kept = match report.command {
            Some(id) => {
                let (term, shown) = (self.hub_term, signer.filter(|_| !status.envelope.is_empty()));
                let rows = self.cluster(cluster);
                let lost = !rows.commands.contains_key(&id);
                let known = if shown.is_some() { rows.snapshot_term } else { rows.taken_over_term };
                if lost && known != Some(term) {
                    return None;
                }
                if let Some(signer) = shown.filter(|_| lost) {
                    self.adopt(cluster, id, &report, &status.envelope, signer);
                }
                self.known(cluster, id, &report)
            }
            None => {
                self.unverified(cluster, report);
                false
            }
        };
        Some(v1::StatusAck { command_id: status.command_id, status_seq: status.status_seq, undo_kept, hub_term: self.hub_term })
    }

    fn known(&mut self, cluster: &ClusterId, id: CommandId, report: &Report) -> bool {
        let now = self.now;
        let Some(command) = self.cluster(cluster).commands.get_mut(&id) else { return false };
        let (from, fold) = (command.state, fold(command.state, command.status_seq, report.reported, report.status_seq));
        match fold {
            Fold::Stale => return command.undo.is_some() || !report.undone(),
            Fold::NotNow => {
                not_now(command, report, now);
                return true;
            }
            Fold::Takes(state) => take(command, report, state, now),
            Fold::Corrects(state) => {
                command.corrections += 1;
                take(command, report, state, now);
            }
        }
        let kept = command.undo.is_some() || !report.undo_unreadable;
        let (node, incident) = (command.planned.node.uid.clone(), command.incident);
        self.ask(cluster, [node]);
        let kind = if matches!(fold, Fold::Corrects(_)) { Kind::CommandCorrected } else { Kind::CommandReported };
        let body = json!({"from": from.as_str(), "to": report.reported.word(), "status_seq": report.status_seq,
            "refusal": report.refusal, "reason": report.reason, "steps": report.steps, "undo": report.undo});
        self.tell(cluster, kind, &format!("spoke/{cluster}"), &format!("command/{id}"), Some(incident), &body);
        kept
    }

    /// Of an envelope that did not verify: if it is one of ours, it will never be executed there.
    fn unverified(&mut self, cluster: &ClusterId, report: Report) {
        let now = self.now;
        let ours = |command: &&mut Command| command.envelope.is_some() && command.sha256 == report.subject;
        let waits = |command: &Command| matches!(command.state, CommandState::Signed | CommandState::Dispatched);
        let found = self.cluster(cluster).commands.values_mut().find(ours).filter(|command| waits(command));
        let Some(command) = found else {
            let seen = format!("{} {} {} {}", report.subject, report.status_seq, report.reported.word(), report.refusal);
            if self.cluster(cluster).strangers.insert(seen) {
                let body = json!({"refusal": report.refusal, "reason": report.reason});
                let subject = format!("envelope/{}", report.subject);
                self.tell(cluster, Kind::EnvelopeRefused, &format!("spoke/{cluster}"), &subject, None, &body);
            }
            return;
        };
        if report.reported == Reported::NotNow {
            not_now(command, &report, now);
            return;
        }
        take(command, &report, CommandState::Refused, now);
        let (id, node, incident) = (command.planned.id, command.planned.node.uid.clone(), command.incident);
        self.ask(cluster, [node]);
        let body = json!({"to": "REFUSED", "refusal": report.refusal, "reason": report.reason});
        self.tell(cluster, Kind::CommandReported, &format!("spoke/{cluster}"), &format!("command/{id}"), Some(incident), &body);
    }

    pub(super) fn end_lapsed(&mut self) -> u64 {
        if self.mutations.has(Mutation::NoSweep) {
            return 0;
        }
        let now = self.now;
        let mut ended = 0;
        let clusters: Vec<ClusterId> = self.clusters.keys().cloned().collect();
        for cluster in clusters {
            let lapsed: Vec<CommandId> =
                self.clusters[&cluster].commands.values().filter(|command| lapsed(command, now)).map(|c| c.planned.id).collect();
            for id in lapsed {
                let Some(command) = self.cluster(&cluster).commands.get_mut(&id) else { continue };
                let from = command.state;
                let under_way = matches!(from, CommandState::Received | CommandState::Started);
                let to = if under_way { CommandState::Unknown } else { CommandState::Expired };
                (command.state, command.state_at) = (to, now);
                command.result_reason = if under_way { "received, and not heard of" } else { "not received" }.to_owned();
                let (node, incident) = (command.planned.node.uid.clone(), command.incident);
                self.ask(&cluster, [node]);
                let body = json!({"from": from.as_str(), "to": to.as_str()});
                self.tell(&cluster, Kind::CommandLapsed, "hub", &format!("command/{id}"), Some(incident), &body);
                ended += 1;
            }
        }
        ended
    }
}

fn take(command: &mut Command, report: &Report, state: CommandState, now: Timestamp) {
    let begun = matches!(state, CommandState::Started | CommandState::Succeeded) || report.did_something();
    if command.state != state {
        (command.state, command.state_at) = (state, now);
    }
    command.status_seq = report.status_seq;
    command.sent_at = command.sent_at.or(Some(now));
    if begun {
        command.started_at = command.started_at.or(Some(now));
    }
    if !report.steps.is_empty() {
        command.steps.clone_from(&report.steps);
    }
    if report.undo.is_some() {
        command.undo.clone_from(&report.undo);
    }
    command.refusal = report.refusal;
    command.result_reason.clone_from(&report.reason);
    command.resend_at = None;
}

fn lapsed(command: &Command, now: Timestamp) -> bool {
    let times = &command.planned.times;
    match command.state {
        CommandState::Proposed | CommandState::AwaitingApproval | CommandState::Signed | CommandState::Dispatched => {
            times.start_by < now.before(OVERDUE)
        }
        CommandState::Received | CommandState::Started => times.finish_by < now.before(OVERDUE),
        CommandState::Expired
        | CommandState::Succeeded
        | CommandState::Failed
        | CommandState::Unknown
        | CommandState::Refused
        | CommandState::Cancelled => false,
    }
}

fn not_now(command: &mut Command, report: &Report, now: Timestamp) {
    command.resend_at = Some(now.after(NOT_NOW));
    command.refusal = report.refusal;
    command.result_reason.clone_from(&report.reason);
}
