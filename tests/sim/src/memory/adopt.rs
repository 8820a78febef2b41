//! A command that its cluster shows and that this database has lost: taken over as the hub takes it over.

use gpuheal_hub::{
    audit::Kind,
    settle::{Report, Reported},
    sign::Signer,
};
use gpuheal_hub_core::{
    cooldown::{Cooldown, CooldownState},
    decide::PlannedCommand,
    incident::IncidentState,
};
use gpuheal_proto::{
    command::{Command as Body, CommandState},
    ids::{ClusterId, CommandId, IncidentId},
    words::{Action, Level},
};
use serde_json::json;

use super::{Command, Incident, Memory, inventory::marked};

impl Memory {
    /// True: it is known now.
    pub(super) fn adopt(&mut self, id: &ClusterId, command: CommandId, report: &Report, bytes: &[u8], signer: &Signer) -> bool {
        let Ok(body) = signer.own(bytes) else { return false };
        let Some(state) = under_way(body.action()).filter(|_| body.id == command && body.audience == *id) else { return false };
        if !self.stands(id, &body, report) || self.taken(id, &body) {
            return false;
        }
        let Some((incident, decision_no)) = self.incident_for(id, &body, state) else { return false };
        let cluster = self.cluster(id);
        let node = body.target.node.uid.clone();
        if let Some(row) = cluster.nodes.get_mut(&node) {
            row.plan_rev_issued = row.plan_rev_issued.max(body.plan_rev);
        }
        if body.harmful() {
            cluster.cooldowns.insert(node, Cooldown { incident, state: CooldownState::Reserved });
        }
        let body_told = json!({"action": body.action(), "cmd_seq": body.cmd_seq, "plan_rev": body.plan_rev});
        let made = self.command_of(body, incident, decision_no, bytes);
        self.cluster(id).commands.insert(command, made);
        self.tell(id, Kind::CommandAdopted, &format!("spoke/{id}"), &format!("command/{command}"), Some(incident), &body_told);
        true
    }

    /// It is not over, or the node carries the very mark that it set.
    fn stands(&self, id: &ClusterId, body: &Body, report: &Report) -> bool {
        let Some(node) = self.clusters.get(id).and_then(|cluster| cluster.nodes.get(&body.target.node.uid)) else { return false };
        let over = matches!(report.reported, Reported::State(state) if state.terminal());
        !over || (body.harmful() && marked(&node.mark) && node.plan_revision == body.plan_rev)
    }

    /// One of its numbers was given out again.
    fn taken(&self, id: &ClusterId, body: &Body) -> bool {
        let same = |other: &Command| {
            other.cmd_seq == body.cmd_seq
                || other.planned.idempotency_key == body.idempotency_key
                || (other.planned.node.uid == body.target.node.uid && other.planned.plan_rev == body.plan_rev)
        };
        self.clusters.get(id).is_some_and(|cluster| cluster.commands.values().any(same))
    }

    /// The node's open incident, or its own that opens now; and the number of the decision.
    fn incident_for(&mut self, id: &ClusterId, body: &Body, state: IncidentState) -> Option<(IncidentId, u32)> {
        let now = self.now;
        let cluster = self.cluster(id);
        let level = Level::parse(&body.level);
        let open = cluster.open_incident(&body.target.node.uid).map(|incident| incident.id);
        if open.is_none() && cluster.incidents.contains_key(&body.incident) {
            return None;
        }
        let incident = cluster.incidents.entry(open.unwrap_or(body.incident)).or_insert_with(|| Incident {
            id: body.incident,
            node: body.target.node.clone(),
            level: Level::P2,
            manual: level.is_none(),
            state,
            state_at: now,
            reason: String::new(),
            decision_no: 0,
            policy_revision: body.policy_revision,
            opened_at: now,
            closed_at: None,
            faults: Default::default(),
            decisions: Default::default(),
        });
        if incident.state != state {
            (incident.state, incident.state_at) = (state, now);
        }
        incident.level = incident.level.max(level.unwrap_or(Level::P2));
        incident.reason =
            format!("taken over with command {}, which its cluster showed and this database had lost: {}", body.id, body.reason);
        incident.decision_no += 1;
        incident.policy_revision = body.policy_revision;
        incident.decisions.insert(incident.decision_no, incident.level);
        Some((incident.id, incident.decision_no))
    }

    fn command_of(&self, body: Body, incident: IncidentId, decision_no: u32, bytes: &[u8]) -> Command {
        let planned = PlannedCommand {
            id: body.id,
            idempotency_key: body.idempotency_key.clone(),
            action: body.action(),
            steps: body.steps,
            node: body.target.node,
            gpu: body.target.gpu,
            level: body.level,
            reason: body.reason,
            fault_keys: body.fault_keys,
            ignore_cooldown: body.ignore_cooldown,
            times: body.times,
            plan_rev: body.plan_rev,
            takes_rate: false,
        };
        Command {
            envelope: Some(bytes::Bytes::copy_from_slice(bytes)),
            sha256: gpuheal_spoke_core::verify::fingerprint(bytes),
            state: CommandState::Signed,
            ..Command::proposed(
                planned,
                super::rows::Issue {
                    incident,
                    decision_no,
                    cmd_seq: body.cmd_seq,
                    hub_term: body.hub_term,
                    policy: (body.policy_revision, body.policy_digest),
                },
                self.now,
            )
        }
    }
}

const fn under_way(action: Action) -> Option<IncidentState> {
    match action {
        Action::Notify => None,
        Action::Mark => Some(IncidentState::Quarantining),
        Action::Evict => Some(IncidentState::Draining),
        Action::Release => Some(IncidentState::Releasing),
    }
}
