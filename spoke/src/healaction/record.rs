//! Between the resource and the words: what a HealAction says about its state, its undo record, its envelope.

use std::collections::BTreeSet;

use base64::Engine as _;
use gpuheal_proto::{
    bytes_text::clip,
    command::{Command, CommandState, Refusal, Undo, UndoField, UndoKind},
    fault::FaultClass,
    limits,
    time::Timestamp,
};
use gpuheal_spoke_core::{mark::NodeFacts, verify::Cancel};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{
    Condition, HealAction, HealActionSpec, HealActionStatus, POD_TEXT_MAX, PODS_MAX, TEXT_MAX, Tombstone, UndoEntry, WORD_MAX,
    name_of, shown, standing_marks,
};

/// A column of a table.
const FAULT_BYTES_MAX: usize = 24;

/// The spec of an intent or tombstone for this command.
#[must_use]
pub fn new_spec(command: &Command, envelope: &[u8], holder: &str, lease_transitions: u64) -> HealActionSpec {
    let gpu = command.target.gpu.as_ref().map(|gpu| match (&gpu.slot, &gpu.uuid) {
        (Some(slot), _) => slot.to_string(),
        (None, Some(uuid)) => uuid.to_string(),
        (None, None) => String::new(),
    });
    let (action, fault) = (command.action().to_string(), short_fault(&command.reason).unwrap_or_default());
    HealActionSpec {
        command_id: command.id.to_string(),
        envelope: base64::engine::general_purpose::STANDARD.encode(envelope),
        node: command.target.node.name.to_string(),
        node_uid: command.target.node.uid.to_string(),
        gpu: gpu.unwrap_or_default(),
        shown_node: shown::node(command.target.node.name.as_str()),
        shown_what: shown::what(&action, &fault),
        action,
        incident: command.incident.to_string(),
        level: clip(&command.level, WORD_MAX).to_owned(),
        fault,
        reason: clip(&command.reason, TEXT_MAX).to_owned(),
        plan_revision: command.plan_rev,
        command_seq: command.cmd_seq,
        hub_term: command.hub_term,
        start_by: command.times.start_by.to_string(),
        finish_by: command.times.finish_by.to_string(),
        expires: command.times.expires.to_string(),
        holder: holder.to_owned(),
        lease_transitions,
        undo: Vec::new(),
        pods: Vec::new(),
        tombstone: None,
    }
}

/// The spec of a tombstone of a command that was for another cluster: what it says of itself, without the numbers that
/// count in this one.
#[must_use]
pub fn foreign_spec(command: &Command, holder: &str, lease_transitions: u64) -> HealActionSpec {
    HealActionSpec { plan_revision: 0, command_seq: 0, hub_term: 0, ..new_spec(command, &[], holder, lease_transitions) }
}

/// What a command says that its hub has called it off.
#[must_use]
pub fn called_off_reason(cancel: &Cancel) -> String {
    format!("cancelled by the hub: {}", cancel.reason)
}

/// The spec of a tombstone of a command that was called off before it came.
#[must_use]
pub fn called_off_spec(cancel: &Cancel, holder: &str, lease_transitions: u64) -> HealActionSpec {
    let reason = called_off_reason(cancel);
    HealActionSpec {
        hub_term: cancel.hub_term,
        holder: holder.to_owned(),
        lease_transitions,
        reason: reason.clone(),
        tombstone: Some(Tombstone { state: CommandState::Cancelled.to_string(), refusal: String::new(), reason }),
        ..HealActionSpec::default()
    }
}

/// The fault's class and code at the beginning of a reason such as `xid 79 on GPU 0000:5d:00: …`. A reason that begins
/// otherwise, as a person's does, names none.
fn short_fault(reason: &str) -> Option<String> {
    let name = reason.split(": ").next()?.split(" on GPU ").next()?;
    let class = name.split(' ').next()?;
    FaultClass::parse(class)?;
    Some(clip(name, FAULT_BYTES_MAX).to_owned())
}

/// The bytes of the signed command; nothing when the text is no base64.
#[must_use]
pub fn envelope_bytes(action: &HealAction) -> Option<Vec<u8>> {
    base64::engine::general_purpose::STANDARD.decode(&action.spec.envelope).ok().filter(|bytes| !bytes.is_empty())
}

/// Where it stands. A state that nobody here knows is UNKNOWN: never taken up again by itself.
#[must_use]
pub fn state(action: &HealAction) -> CommandState {
    let text = match (&action.spec.tombstone, &action.status) {
        (Some(tombstone), _) => tombstone.state.as_str(),
        (None, Some(status)) if !status.state.is_empty() => status.state.as_str(),
        (None, Some(_) | None) => return CommandState::Received,
    };
    CommandState::parse(text).unwrap_or(CommandState::Unknown)
}

/// The highest reign that wrote it.
#[must_use]
pub fn reign(action: &HealAction) -> u64 {
    action.status.as_ref().map_or(0, |status| status.lease_transitions).max(action.spec.lease_transitions)
}

/// The highest number of a command that has a record, and that command, for Hello: of two of one number that of the higher epoch,
/// since a loss that raised it is known, and else the older, which a database that gave the number out again has lost. One that no hub can have given out is somebody's mistake, and hides none of the others:
/// a hub believes no Hello that knows of it ([`limits::COMMANDS_AHEAD_MAX`]), and the cluster would be cut off for as long as
/// its record is there.
#[must_use]
pub fn highest<'a>(actions: impl Iterator<Item = &'a HealAction>) -> (u64, &'a str) {
    let known = actions.filter(|action| action.spec.command_seq <= limits::COMMANDS_AHEAD_MAX);
    let highest = known.max_by_key(|action| (action.spec.command_seq, action.spec.hub_term, std::cmp::Reverse(action.id())));
    highest.map(|action| (action.spec.command_seq, action.id())).unwrap_or_default()
}

/// Nothing more will happen to it.
#[must_use]
pub fn is_final(action: &HealAction) -> bool {
    state(action).terminal()
}

/// Whether an effect may have happened, by its own record.
#[must_use]
pub fn begun(action: &HealAction) -> bool {
    state(action) == CommandState::Started || cursor(action) > 0
}

/// Whether an effect of its command may have happened, by its own record or, where that tells of none, by the node.
#[must_use]
pub fn may_have_begun(action: &HealAction, command: &Command, node: impl FnOnce() -> Option<NodeFacts>) -> bool {
    begun(action) || node().is_some_and(|node| node.written_by(command))
}

/// Names of nodes that carry a mark by the record while the nodes as we see them are from before it: a watch is behind what we,
/// or the leader before us, wrote, and a node that is out must be counted as that from its write on. `seen` tells the plan
/// revision that a machine carries as we see it, by the node's name and UID: it is asked for each mark at each command.
pub fn unshown<'a>(
    actions: impl Iterator<Item = &'a HealAction> + Clone,
    seen: impl Fn(&str, &str) -> Option<u64>,
) -> BTreeSet<String> {
    let behind = |action: &&HealAction| {
        seen(&action.spec.node, &action.spec.node_uid).is_some_and(|revision| revision < action.spec.plan_revision)
    };
    standing_marks(actions).into_values().filter(behind).map(|action| action.spec.node.clone()).collect()
}

/// How an open action ends that can no longer be carried out: what has begun has failed, or is called off. A machine that is gone
/// took with it what would tell whether anything was done there: that is not called refused, which says that nothing was.
#[must_use]
pub const fn state_refused(begun: bool, refusal: Refusal) -> CommandState {
    match (begun, refusal) {
        (_, Refusal::NodeGone) => CommandState::Failed,
        (false, _) => CommandState::Refused,
        (true, Refusal::Expired) => CommandState::Failed,
        (true, _) => CommandState::Cancelled,
    }
}

/// Index of the first step that is not done.
#[must_use]
pub fn cursor(action: &HealAction) -> usize {
    action.status.as_ref().map_or(0, |status| status.cursor as usize)
}

/// The sequence number of its latest status; the intent alone is number 1.
#[must_use]
pub fn seq(action: &HealAction) -> u64 {
    action.status.as_ref().map_or(1, |status| status.status_seq.max(1))
}

/// Its status, or an empty one in the state that it is in.
#[must_use]
pub fn status_of(action: &HealAction) -> HealActionStatus {
    action.status.clone().unwrap_or_else(|| HealActionStatus { status_seq: 1, ..HealActionStatus::default() })
}

/// What was changed on the node: the status's record where there is one, else the plan of the intent.
#[must_use]
pub fn undo_of(action: &HealAction) -> Undo {
    let entries = match &action.status {
        Some(status) if !status.undo.is_empty() => &status.undo,
        Some(_) | None => &action.spec.undo,
    };
    Undo { fields: entries.iter().filter_map(field).collect() }
}

fn field(entry: &UndoEntry) -> Option<UndoField> {
    Some(UndoField {
        kind: UndoKind::parse(&entry.kind)?,
        key: entry.key.clone(),
        before: entry.before.clone(),
        after: entry.after.clone(),
        resource_version: entry.resource_version.clone(),
    })
}

impl From<&UndoField> for UndoEntry {
    fn from(field: &UndoField) -> Self {
        Self {
            kind: field.kind.to_string(),
            key: field.key.clone(),
            before: field.before.clone(),
            after: field.after.clone(),
            resource_version: field.resource_version.clone(),
        }
    }
}

/// Says that nothing more will happen to it, as `kubectl wait --for=condition=Complete` asks. Said with the status that ends it.
pub fn set_complete(status: &mut HealActionStatus, now: Timestamp) {
    let reason = if status.state == CommandState::Succeeded.as_str() { "Succeeded" } else { "Ended" };
    let message = status.outcome.clone();
    set_condition(status, "Complete", true, reason, &message, now);
}

/// The status with every text and list cut to what the schema takes: one that is too long would never be written. And as a table shows it.
#[must_use]
pub fn bounded(mut status: HealActionStatus) -> HealActionStatus {
    let cut = |text: &mut String, max| text.truncate(clip(text, max).len());
    cut(&mut status.outcome, TEXT_MAX);
    status.shown_state = shown::state(&status);
    for step in &mut status.steps {
        cut(&mut step.message, TEXT_MAX);
        step.pods.truncate(PODS_MAX);
        step.pods.iter_mut().for_each(|pod| cut(&mut pod.reason, POD_TEXT_MAX));
    }
    status.conditions.iter_mut().for_each(|condition| cut(&mut condition.message, TEXT_MAX));
    status
}

/// Sets a condition; its transition time moves only when its status does.
pub(super) fn set_condition(status: &mut HealActionStatus, type_: &str, value: bool, reason: &str, message: &str, now: Timestamp) {
    let word = if value { "True" } else { "False" };
    let since = status.conditions.iter().find(|c| c.type_ == type_ && c.status == word).map(|c| c.last_transition_time.clone());
    status.conditions.retain(|condition| condition.type_ != type_);
    status.conditions.push(Condition {
        type_: type_.to_owned(),
        status: word.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: since.unwrap_or_else(|| now.to_string()),
    });
}

impl HealAction {
    /// A new one of the command of this id, kept by our finalizer.
    #[must_use]
    pub fn named(id: &str, namespace: &str, spec: HealActionSpec) -> Self {
        let spec = HealActionSpec { command_id: id.to_owned(), ..spec };
        let metadata = ObjectMeta {
            name: Some(name_of(id).into_owned()),
            namespace: Some(namespace.to_owned()),
            finalizers: Some(vec![gpuheal_proto::kubernetes::FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        };
        Self { metadata, spec, status: None }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// The command's id. One that says another than it is named by was made by somebody else, and is known by its name.
    #[must_use]
    pub fn id(&self) -> &str {
        let (id, name) = (self.spec.command_id.as_str(), self.name());
        if name_of(id) == name { id } else { name }
    }

    /// Our finalizer still holds it.
    #[must_use]
    pub fn held(&self) -> bool {
        self.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == gpuheal_proto::kubernetes::FINALIZER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::healaction::{PodRecord, StepRecord};

    #[test]
    fn a_number_of_a_command_that_no_hub_gave_out_hides_none_of_the_others() {
        let numbered = |id, command_seq| HealAction::named(id, "ns", HealActionSpec { command_seq, ..HealActionSpec::default() });
        let all =
            [numbered("a", 7), numbered("b", 1 << 41), numbered("d", 1 << 40), numbered("c", 1 << 40), numbered("e", u64::MAX)];
        assert_eq!(highest(all[..2].iter()), (7, "a"));
        assert_eq!(highest(all.iter()), (1 << 40, "c"), "the older of two");
        assert_eq!(highest([].iter()), (0, ""));
    }

    #[test]
    fn a_node_is_out_by_the_record_from_its_mark_on_until_our_watch_has_seen_that() {
        let undo = vec![UndoEntry { kind: "label".into(), ..UndoEntry::default() }];
        let spec = HealActionSpec {
            action: "mark".into(),
            node: "n".into(),
            node_uid: "u".into(),
            plan_revision: 3,
            undo,
            ..HealActionSpec::default()
        };
        let mut action = HealAction::named("a", "ns", spec);
        let done = StepRecord { name: "mark".into(), state: "done".into(), ..StepRecord::default() };
        action.status = Some(HealActionStatus { state: "SUCCEEDED".into(), steps: vec![done], ..HealActionStatus::default() });
        let unshown = |there: &str, revision: u64| {
            super::unshown([&action].into_iter(), |node, uid| (node == "n" && uid == there).then_some(revision)).len()
        };
        assert_eq!((unshown("u", 0), unshown("u", 2)), (1, 1), "as it was before our write");
        assert_eq!((unshown("u", 3), unshown("u", 4)), (0, 0), "shown, or passed by");
        assert_eq!(unshown("another", 0), 0, "another machine");
    }

    #[test]
    fn no_status_is_too_long_to_be_written() {
        let pod = PodRecord { reason: "ä".repeat(TEXT_MAX), ..PodRecord::default() };
        let step = StepRecord { message: "x".repeat(TEXT_MAX + 1), pods: vec![pod; PODS_MAX + 1], ..StepRecord::default() };
        let status = HealActionStatus { outcome: "ä".repeat(TEXT_MAX), steps: vec![step], ..HealActionStatus::default() };
        let cut = bounded(status);
        assert!(cut.outcome.len() <= TEXT_MAX && !cut.outcome.is_empty());
        assert_eq!((cut.steps[0].message.len(), cut.steps[0].pods.len()), (TEXT_MAX, PODS_MAX));
        assert!(cut.steps[0].pods.iter().all(|pod| pod.reason.len() <= POD_TEXT_MAX));
    }

    #[test]
    fn whatever_ends_is_complete_and_only_success_is_called_so() {
        for (state, reason) in [(CommandState::Succeeded, "Succeeded"), (CommandState::Cancelled, "Ended")] {
            let mut status = HealActionStatus { state: state.to_string(), outcome: "why".into(), ..HealActionStatus::default() };
            set_complete(&mut status, Timestamp::EPOCH);
            let told = &status.conditions[0];
            assert_eq!((&*told.type_, &*told.status, &*told.reason, &*told.message), ("Complete", "True", reason, "why"));
        }
    }

    #[test]
    fn a_reason_that_begins_with_a_fault_names_it_and_a_persons_words_do_not() {
        assert_eq!(short_fault("xid 79 on GPU 0000:5d:00: kernel line"), Some("xid 79".to_owned()));
        assert_eq!(short_fault("xid 79: two witnesses"), Some("xid 79".to_owned()));
        assert_eq!(short_fault("3 quarantines of this node within 24 h: marked"), None);
        assert_eq!(short_fault("looks odd"), None);
        assert_eq!(short_fault(""), None);
    }
}
