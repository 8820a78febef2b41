//! What each kind shows in a table. JSON and YAML carry everything; a table carries what a person on call looks for first.

use std::collections::BTreeSet;

use gpuheal_proto::{
    fleet::v1::{AuditEntry, Cluster, CommandSummary, DecisionSummary, FaultSummary, Incident, Node, Source},
    time::Timestamp,
};
use serde::Serialize;

use super::cell::{age, flag, until};

/// A kind of thing that can be a row.
pub(crate) trait Row {
    /// Titles of the columns.
    const HEAD: &'static [&'static str];
    /// Titles of columns that may be wrapped: sentences and lists, no ids and no names.
    const PROSE: &'static [&'static str] = &["FAULTS", "PROBLEMS", "REASON", "SOURCE", "STEPS", "WITNESSES"];
    /// One text per column.
    fn cells(&self, now: Timestamp) -> Vec<String>;
}

impl Row for Cluster {
    const HEAD: &'static [&'static str] =
        &["CLUSTER", "STATE", "LINK", "REPLICAS", "GPU NODES", "OUT", "ALLOWED", "OPEN", "SOURCES", "SEEN", "VERSION", "PROBLEMS"];
    fn cells(&self, now: Timestamp) -> Vec<String> {
        vec![
            self.cluster_id.clone(),
            self.state.clone(),
            if self.connected { "up" } else { "down" }.into(),
            self.replicas_attached.to_string(),
            self.gpu_nodes.to_string(),
            self.nodes_out.to_string(),
            self.budget_allowed.to_string(),
            self.open_incidents.to_string(),
            format!("{}/{}", self.sources_fresh, self.sources),
            age(self.state_as_of_unix_ms, now),
            self.spoke_version.clone(),
            problems(self),
        ]
    }
}

/// What is wrong with the owner's settings, and what else wants to be looked at.
fn problems(cluster: &Cluster) -> String {
    let config = (!cluster.config_errors.is_empty()).then(|| format!("own settings: {}", cluster.config_errors));
    config.into_iter().chain(cluster.problems.iter().cloned()).collect::<Vec<_>>().join("; ")
}

impl Row for Source {
    const HEAD: &'static [&'static str] = &["CLUSTER", "SOURCE", "NODE", "STATE", "SEEN", "REASON"];
    fn cells(&self, now: Timestamp) -> Vec<String> {
        vec![
            self.cluster_id.clone(),
            self.source.clone(),
            self.node.clone(),
            self.state.clone(),
            age(self.last_seen_unix_ms, now),
            self.reason.clone(),
        ]
    }
}

impl Row for Node {
    const HEAD: &'static [&'static str] =
        &["CLUSTER", "NODE", "GPUS", "MODEL", "READY", "MARKED", "CORDONED", "OPTED OUT", "INCIDENT", "COOLDOWN"];
    fn cells(&self, now: Timestamp) -> Vec<String> {
        vec![
            self.cluster_id.clone(),
            self.name.clone(),
            format!("{}/{}", self.allocatable_gpus, self.gpus),
            self.model.clone(),
            if self.ready { "yes" } else { "NO" }.into(),
            flag(self.marked),
            flag(self.unschedulable),
            flag(self.opted_out),
            self.incident_state.clone(),
            until(self.cooldown_until_unix_ms, now),
        ]
    }
}

/// `8 GPUs` when these faults are on several.
pub(super) fn gpus(faults: &[&FaultSummary]) -> Option<String> {
    let slots: BTreeSet<&str> = faults.iter().map(|fault| fault.gpu_slot.as_str()).filter(|slot| !slot.is_empty()).collect();
    (slots.len() > 1).then(|| format!("{} GPUs", slots.len()))
}

/// Each kind once: `xid 31 on 8 GPUs, thermal high`.
fn kinds(faults: &[FaultSummary]) -> String {
    let mut groups: Vec<(String, Vec<&FaultSummary>)> = Vec::new();
    for fault in faults {
        let kind = format!("{} {}", fault.class, fault.code).trim_end().to_owned();
        match groups.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, group)) => group.push(fault),
            None => groups.push((kind, vec![fault])),
        }
    }
    let told = |(kind, group): (String, Vec<&FaultSummary>)| match gpus(&group) {
        Some(gpus) => format!("{kind} on {gpus}"),
        None => kind,
    };
    groups.into_iter().map(told).collect::<Vec<_>>().join(", ")
}

impl Row for Incident {
    const HEAD: &'static [&'static str] = &["INCIDENT", "CLUSTER", "NODE", "LEVEL", "STATE", "AGE", "FAULTS", "REASON"];
    fn cells(&self, now: Timestamp) -> Vec<String> {
        vec![
            self.incident_id.clone(),
            self.cluster_id.clone(),
            self.node.clone(),
            self.level.clone(),
            self.state.clone(),
            age(self.opened_unix_ms, now),
            kinds(&self.faults),
            self.reason.clone(),
        ]
    }
}

impl Row for CommandSummary {
    const HEAD: &'static [&'static str] = &["COMMAND", "CLUSTER", "NODE", "ACTION", "STATE", "AGE", "STEPS", "REASON"];
    fn cells(&self, now: Timestamp) -> Vec<String> {
        let steps: Vec<String> = self.steps.iter().map(|step| format!("{} {}", step.name, step.state)).collect();
        vec![
            self.command_id.clone(),
            self.cluster_id.clone(),
            self.node.clone(),
            self.action.clone(),
            self.state.clone(),
            age(self.created_unix_ms, now),
            steps.join(", "),
            self.reason.clone(),
        ]
    }
}

impl Row for FaultSummary {
    const HEAD: &'static [&'static str] = &["FAULT", "CODE", "GPU", "LEVEL", "ONSET", "WITNESSES", "COUNT", "LAST", "SOURCE"];
    fn cells(&self, now: Timestamp) -> Vec<String> {
        vec![
            self.class.clone(),
            self.code.clone(),
            self.gpu_slot.clone(),
            self.level.clone(),
            self.onset.clone(),
            self.witnesses.join(", "),
            self.count.to_string(),
            age(self.last_unix_ms, now),
            self.source.clone(),
        ]
    }
}

impl Row for DecisionSummary {
    const HEAD: &'static [&'static str] = &["DECISION", "AGE", "OUTCOME", "POLICY", "REASON"];
    fn cells(&self, now: Timestamp) -> Vec<String> {
        vec![
            self.decision_no.to_string(),
            age(self.decided_unix_ms, now),
            self.outcome.clone(),
            self.policy_revision.to_string(),
            self.reason.clone(),
        ]
    }
}

impl Row for AuditEntry {
    const HEAD: &'static [&'static str] = &["CLUSTER", "SEQ", "TIME", "KIND", "ACTOR", "SUBJECT", "HASH"];
    fn cells(&self, _now: Timestamp) -> Vec<String> {
        vec![
            self.cluster_id.clone(),
            self.seq.to_string(),
            Timestamp::from_unix_ms(self.at_unix_ms).to_string(),
            self.kind.clone(),
            self.actor.clone(),
            self.subject.clone(),
            gpuheal_proto::bytes_text::clip(&self.hash, 12).to_owned(),
        ]
    }
}

/// What came of checking one cluster's chain.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Checked {
    pub(crate) cluster_id: String,
    pub(crate) intact: bool,
    pub(crate) entries: u64,
    pub(crate) broken_at_seq: u64,
    pub(crate) reason: String,
}

impl Row for Checked {
    const HEAD: &'static [&'static str] = &["CLUSTER", "CHAIN", "ENTRIES", "BROKEN AT", "REASON"];
    fn cells(&self, _now: Timestamp) -> Vec<String> {
        vec![
            self.cluster_id.clone(),
            if self.intact { "intact" } else { "BROKEN" }.into(),
            self.entries.to_string(),
            if self.intact { String::new() } else { self.broken_at_seq.to_string() },
            self.reason.clone(),
        ]
    }
}
