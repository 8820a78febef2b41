//! The checks that look at the cluster as it is now. A release needs only the node's UID and the plan revision: the way
//! back waits for nothing.

use std::{collections::BTreeMap, time::Duration};

use gpuheal_proto::{
    command::{Command, Refusal},
    ids::FaultKey,
    kubernetes::{ANNOTATION_LAST_PROCESS_TIME, ANNOTATION_PLAN_REVISION, ANNOTATION_PROCESS_ID},
    time::{Timestamp, parse_rfc3339},
    words::Action,
};

use super::{Refused, STEP_MARGIN, marker};
use crate::{
    ceiling::{Config, Out, show},
    mark::NodeFacts,
};

/// How a fault stands by its own source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Fresh, and still there.
    Present,
    /// Fresh, and gone.
    Cleared,
    /// Stale or unknown: absence is not health, and no reason to refuse.
    Unknown,
}

/// The cluster as it is at the moment of asking.
#[derive(Clone, Debug)]
pub struct Live<'a> {
    /// The node of the target's name, or nothing when there is none.
    pub node: Option<&'a NodeFacts>,
    /// How each fault of the preconditions stands.
    pub standing: &'a BTreeMap<FaultKey, Standing>,
    /// What is left of the Lease; nothing when it is not held.
    pub margin: Option<Duration>,
    /// The cluster owner's settings.
    pub config: &'a Config,
    /// How many nodes are out.
    pub out: Out,
    /// The highest plan revision of another command that changes the node and is at work on it.
    pub at_work: Option<u64>,
    /// The hub's time.
    pub now: Timestamp,
}

impl<'a> Live<'a> {
    fn node(&self, command: &Command) -> Result<&'a NodeFacts, Refused> {
        let target = &command.target.node;
        match self.node {
            Some(node) if node.uid == target.uid.as_str() => Ok(node),
            Some(node) => {
                let reason =
                    format!("node {} is another machine now: UID {}, the command means {}", target.name, node.uid, target.uid);
                Err(Refused::new(Refusal::NodeGone, reason))
            }
            None => Err(Refused::new(Refusal::NodeGone, format!("there is no node {}", target.name))),
        }
    }
}

/// Above what is written on the node, or equal and this command's own; and above what is at work on it, which may not have
/// written yet. A command that writes nothing to the node may share the revision of the plan that it belongs to. A database
/// that lost commits gives a plan's revision out again, to another command.
pub(super) fn check_plan_revision(command: &Command, live: &Live<'_>, resumed: bool) -> Result<(), Refused> {
    if let Some(at_work) = live.at_work.filter(|at_work| command.changes_node() && command.plan_rev <= *at_work) {
        let name = &command.target.node.name;
        let reason = format!("plan revision {}, another command of {at_work} is at work on node {name}", command.plan_rev);
        return Err(Refused::new(Refusal::Superseded, reason));
    }
    let Some(node) = live.node else { return Ok(()) };
    let Some(seen) = node.plan_revision() else { return Ok(()) };
    let equal_is_fine = resumed || !command.writes_node();
    if command.plan_rev > seen || (command.plan_rev == seen && equal_is_fine) {
        return Ok(());
    }
    Err(Refused::new(Refusal::Superseded, format!("plan revision {}, node {} carries {seen}", command.plan_rev, node.name)))
}

pub(super) fn check_margin(live: &Live<'_>) -> Result<(), Refused> {
    match live.margin {
        None => Err(Refused::new(Refusal::NotLeader, "another replica leads")),
        Some(left) if left < STEP_MARGIN => {
            Err(Refused::new(Refusal::LeaseMargin, format!("{} left of the Lease, a step needs {}", show(left), show(STEP_MARGIN))))
        }
        Some(_) => Ok(()),
    }
}

/// Returns what was odd and did not block.
pub(super) fn check_preconditions(command: &Command, live: &Live<'_>, resumed: bool) -> Result<Vec<String>, Refused> {
    let node = live.node(command)?;
    let mut notes = Vec::new();
    if node.annotation(ANNOTATION_PLAN_REVISION).is_some() && node.plan_revision().is_none() {
        notes.push(format!("annotation {ANNOTATION_PLAN_REVISION} of node {} is no number: not used", node.name));
    }
    if command.action() == Action::Release {
        return Ok(notes);
    }
    check_faults(command, live.standing)?;
    if !command.harmful() {
        return Ok(notes);
    }
    if marker::opted_out(node) {
        return Err(Refused::new(Refusal::OptedOut, format!("node {} has opted out", node.name)));
    }
    if !command.ignore_cooldown && !resumed {
        check_cooldown(command, node, live, &mut notes)?;
    }
    if let Some(mark) = marker::foreign(node, &command.others) {
        return Err(Refused::new(Refusal::ForeignMarker, format!("node {} carries {mark}", node.name)));
    }
    // Whoever goes on with it knows what was there when it began.
    if command.drains_marked() && !resumed && !node.quarantined() {
        return Err(Refused::new(Refusal::Unmarked, unmarked(node)));
    }
    Ok(notes)
}

/// Why a node that nothing marks is not drained.
#[must_use]
pub fn unmarked(node: &NodeFacts) -> String {
    format!("node {} carries no mark of ours and no cordon: evicted pods could come right back", node.name)
}

/// Refused when every fault that the command is about is cleared by its own fresh source. Also asked between pods.
///
/// # Errors
/// The refusal.
pub fn check_faults(command: &Command, standing: &BTreeMap<FaultKey, Standing>) -> Result<(), Refused> {
    let cleared = command.fault_keys.iter().filter(|key| standing.get(*key) == Some(&Standing::Cleared)).count();
    if cleared == 0 || cleared < command.fault_keys.len() {
        return Ok(());
    }
    Err(Refused::new(
        Refusal::FaultCleared,
        format!("{cleared} of {} faults are cleared by their own source", command.fault_keys.len()),
    ))
}

fn check_cooldown(command: &Command, node: &NodeFacts, live: &Live<'_>, notes: &mut Vec<String>) -> Result<(), Refused> {
    let (Some(text), Some(incident)) = (node.annotation(ANNOTATION_LAST_PROCESS_TIME), node.annotation(ANNOTATION_PROCESS_ID))
    else {
        return Ok(());
    };
    let Ok(last) = parse_rfc3339(text) else {
        notes.push(format!(
            "annotation {ANNOTATION_LAST_PROCESS_TIME} of node {} is no time: {text:?}; it blocks nothing",
            node.name
        ));
        return Ok(());
    };
    let (ago, cooldown) = (live.now.since(last), live.config.cooldown());
    if incident == command.incident.to_string() || ago >= cooldown {
        return Ok(());
    }
    let reason = format!("incident {incident} acted on node {} {} ago, the cooldown is {}", node.name, show(ago), show(cooldown));
    Err(Refused::new(Refusal::Cooldown, reason))
}

pub(super) fn check_ceiling(command: &Command, live: &Live<'_>) -> Result<(), Refused> {
    let labels = live.node.and_then(|node| node.labels.clone()).unwrap_or_default();
    live.config.admit(command, &labels, live.out).map_err(|(refusal, reason)| Refused::new(refusal, reason))
}
