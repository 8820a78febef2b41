//! A command that its cluster shows and that this database has lost: taken over as the hub takes it over.

use gpuheal_hub::{audit::Kind, settle::Report, sign::Signer};
use gpuheal_hub_core::{
    adopt::{self, Found, OpenIncident, planned},
    cooldown::{Cooldown, CooldownState},
    decide::IncidentChange,
};
use gpuheal_proto::{
    command::{Command as Body, CommandState},
    ids::{ClusterId, CommandId},
};
use serde_json::json;

use super::{Command, Incident, Memory, inventory::marked, rows::Issue};

impl Memory {
    /// True: it is known now.
    pub(super) fn adopt(&mut self, id: &ClusterId, command: CommandId, report: &Report, bytes: &[u8], signer: &Signer) -> bool {
        let Ok(body) = signer.own(bytes) else { return false };
        if body.id != command || body.audience != *id {
            return false;
        }
        let Some(change) = self.found(id, &body).and_then(|found| adopt::adopt(&body, report.over(), &found)) else { return false };
        if self.taken(id, &body, &change) {
            return false;
        }
        let incident = change.id;
        self.change_incident(id, &body, &change);
        let cluster = self.cluster(id);
        let node = body.target.node.uid.clone();
        if let Some(row) = cluster.nodes.get_mut(&node) {
            row.plan_rev_issued = row.plan_rev_issued.max(body.plan_rev);
        }
        cluster.cmd_seq = cluster.cmd_seq.max(body.cmd_seq);
        if body.harmful() {
            cluster.cooldowns.insert(node.clone(), Cooldown { incident, state: CooldownState::Reserved });
            self.hold(id, node, incident);
        }
        let body_told = json!({"action": body.action(), "cmd_seq": body.cmd_seq, "plan_rev": body.plan_rev});
        let made = self.command_of(body, &change, bytes);
        self.cluster(id).commands.insert(command, made);
        self.tell(id, Kind::CommandAdopted, &format!("spoke/{id}"), &format!("command/{command}"), Some(incident), &body_told);
        true
    }

    fn found(&self, id: &ClusterId, body: &Body) -> Option<Found> {
        let cluster = self.clusters.get(id)?;
        let node = cluster.nodes.get(&body.target.node.uid)?;
        let open = |incident: &Incident| OpenIncident {
            id: incident.id,
            state: incident.state,
            level: incident.level,
            manual: incident.manual,
            decision_no: incident.decision_no,
        };
        let incident = cluster.open_incident(&body.target.node.uid).map(open);
        Some(Found {
            marked: marked(&node.mark),
            plan_revision: node.plan_revision,
            plan_rev_issued: node.plan_rev_issued,
            incident,
        })
    }

    /// One of its numbers was given out again, or its incident is over.
    fn taken(&self, id: &ClusterId, body: &Body, change: &IncidentChange) -> bool {
        let same = |other: &Command| {
            other.cmd_seq == body.cmd_seq
                || other.planned.idempotency_key == body.idempotency_key
                || (other.planned.node.uid == body.target.node.uid && other.planned.plan_rev == body.plan_rev)
        };
        let over = |cluster: &super::Cluster| change.opens && cluster.incidents.contains_key(&change.id);
        self.clusters.get(id).is_some_and(|cluster| over(cluster) || cluster.commands.values().any(same))
    }

    fn change_incident(&mut self, id: &ClusterId, body: &Body, change: &IncidentChange) {
        let now = self.now;
        let incident = self.cluster(id).incidents.entry(change.id).or_insert_with(|| Incident {
            id: change.id,
            node: body.target.node.clone(),
            level: change.level,
            manual: change.manual,
            state: change.state,
            state_at: now,
            reason: String::new(),
            decision_no: 0,
            policy_revision: body.policy_revision,
            opened_at: now,
            closed_at: None,
            faults: Default::default(),
            asked: Default::default(),
            decisions: Default::default(),
        });
        if incident.state != change.state {
            (incident.state, incident.state_at) = (change.state, now);
        }
        (incident.level, incident.decision_no, incident.policy_revision) = (change.level, change.decision_no, body.policy_revision);
        incident.reason.clone_from(&change.reason);
        incident.decisions.insert(change.decision_no, change.level);
    }

    fn command_of(&self, body: Body, change: &IncidentChange, bytes: &[u8]) -> Command {
        let planned = planned(&body);
        let issue = Issue {
            incident: change.id,
            decision_no: change.decision_no,
            cmd_seq: body.cmd_seq,
            hub_term: body.hub_term,
            policy: (body.policy_revision, body.policy_digest),
        };
        Command {
            envelope: Some(bytes::Bytes::copy_from_slice(bytes)),
            sha256: gpuheal_spoke_core::verify::fingerprint(bytes),
            state: CommandState::Signed,
            ..Command::proposed(planned, issue, self.now)
        }
    }
}
