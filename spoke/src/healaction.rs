//! `HealAction`: the intent that exists in the cluster before anything is done, the record of how far it got, and the
//! tombstone of what was refused. Its name is the command's id, so that creating it twice is a conflict. Spec is what
//! was decided when it was made (signed command, undo record, refusal), and the API server lets nobody change it; status is
//! how it went, written by whoever leads. The finalizer keeps it until the hub has committed the outcome.
//!
//! The schema bounds what is written: words are enums where this file owns them, and texts are cut to their length by
//! [`bounded`] before they are sent, so that no outcome is too long to be told. Refusals are no enum: a spoke that is newer
//! than the CRD must be able to refuse.

mod name;
mod record;
mod shown;
mod standing;

use gpuheal_proto::{
    command::CommandState,
    limits::{self, ENVELOPE_BYTES_MAX, STEPS_MAX},
};
use gpuheal_spoke_core::verify::Refused;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::name::name_of;
pub use self::record::{
    begun, bounded, called_off_reason, called_off_spec, cursor, envelope_bytes, foreign_spec, highest, is_final, may_have_begun,
    new_spec, reign, seq, set_complete, state, state_refused, status_of, undo_of, unshown,
};
pub use self::shown::set_blocked;
pub use self::standing::{await_release, counted, marked_node, may_go, released, standing_marks, standing_undo};

/// The envelope as base64: four letters for three bytes.
const ENVELOPE_TEXT_MAX: usize = ENVELOPE_BYTES_MAX.div_ceil(3) * 4;
/// Names and ids: what Kubernetes takes for a name.
const NAME_MAX: usize = 253;
/// RFC 3339, words, versions.
const WORD_MAX: usize = 64;
/// One text for people: the outcome of a drain names every pod that is left. The outcome and 16 messages are 68 KiB. A pod's record
/// is 1.6 KiB at most: its reason 1,024 bytes, namespace 63, name 253, UID 36, its owner's 64, keys and words 150. The [`PODS_MAX`] of
/// a drain are 800 KiB in the status, and in the spec, where reasons are short, 350 KiB: together under the 1.5 MB that etcd takes.
pub(crate) const TEXT_MAX: usize = 4096;
/// Why a pod stays.
pub(crate) const POD_TEXT_MAX: usize = 1024;
/// JSON of a label, a taint or a boolean.
const VALUE_MAX: usize = 1024;
/// Fields of a node that are ours: label, taint and cordon, with room.
const UNDO_MAX: usize = 16;
/// Pods of one step: a node has 16 GPUs of seven slices.
pub(crate) const PODS_MAX: usize = 512;
/// Conditions, of which there are two.
const CONDITIONS_MAX: usize = 8;
/// What is counted in 32 bits here, and may grow by one. No bound of a number is ever reached: they are there since the API server takes 64
/// bits for any, and a record that does not fit our own would keep all of them from being read.
const COUNT_MAX: u32 = i32::MAX.unsigned_abs();

/// What was asked.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[kube(
    group = "gpu-selfhealing.io",
    version = "v1",
    kind = "HealAction",
    plural = "healactions",
    singular = "healaction",
    shortname = "ha",
    namespaced,
    status = "HealActionStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".spec.shownNode"}"#,
    printcolumn = r#"{"name":"What","type":"string","jsonPath":".spec.shownWhat"}"#,
    printcolumn = r#"{"name":"State","type":"string","jsonPath":".status.shownState"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Command","type":"string","jsonPath":".spec.commandId","priority":1}"#,
    printcolumn = r#"{"name":"Machine","type":"string","jsonPath":".spec.node","priority":1}"#,
    printcolumn = r#"{"name":"Fault","type":"string","jsonPath":".spec.fault","priority":1}"#,
    printcolumn = r#"{"name":"Level","type":"string","jsonPath":".spec.level","priority":1}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".spec.reason","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "self == oldSelf", "message": "what was decided when it was made does not change"}
]))]
pub struct HealActionSpec {
    /// The command's id, as the hub, the log and Events name it. The HealAction's own name is the same in fewer letters.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = WORD_MAX))]
    pub command_id: String,
    /// The signed command, base64 of the envelope exactly as it came. Empty in a tombstone of a cancelled command that
    /// never came, and of one that was for another cluster.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = ENVELOPE_TEXT_MAX))]
    pub envelope: String,
    /// Name of the node.
    #[serde(default)]
    #[schemars(length(max = NAME_MAX))]
    pub node: String,
    /// UID of the node.
    #[serde(default)]
    #[schemars(length(max = NAME_MAX))]
    pub node_uid: String,
    /// The GPU's slot or UUID, when the fault is one GPU's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = NAME_MAX))]
    pub gpu: String,
    /// Most far-reaching step: notify, mark, evict or release.
    #[serde(default)]
    #[schemars(extend("enum" = ["", "notify", "mark", "restart", "evict", "release"]))]
    pub action: String,
    /// The incident.
    #[serde(default)]
    #[schemars(length(max = WORD_MAX))]
    pub incident: String,
    /// P0, P1, P2 or manual.
    #[serde(default)]
    #[schemars(length(max = WORD_MAX))]
    pub level: String,
    /// What is wrong, in two words such as `xid 79`; empty where only a person's word is known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = WORD_MAX))]
    pub fault: String,
    /// The node's name as a narrow table shows it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = WORD_MAX))]
    pub shown_node: String,
    /// Action and fault as a narrow table shows them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = WORD_MAX))]
    pub shown_what: String,
    /// Why, with numbers.
    #[serde(default)]
    #[schemars(length(max = TEXT_MAX))]
    pub reason: String,
    /// Plan revision within the node.
    #[serde(default)]
    #[schemars(range(max = limits::SEQ_MAX))]
    pub plan_revision: u64,
    /// Number of the command within the cluster.
    #[serde(default)]
    #[schemars(range(max = limits::SEQ_MAX))]
    pub command_seq: u64,
    /// Epoch of the hub's database.
    #[serde(default)]
    #[schemars(range(max = limits::SEQ_MAX))]
    pub hub_term: u64,
    /// No first effect after it, RFC 3339, by the hub's clock.
    #[serde(default)]
    #[schemars(length(max = WORD_MAX))]
    pub start_by: String,
    /// No step after it.
    #[serde(default)]
    #[schemars(length(max = WORD_MAX))]
    pub finish_by: String,
    /// Nothing remembered as open after it.
    #[serde(default)]
    #[schemars(length(max = WORD_MAX))]
    pub expires: String,
    /// The replica that made it.
    #[serde(default)]
    #[schemars(length(max = NAME_MAX))]
    pub holder: String,
    /// The Lease's transitions at that moment.
    #[serde(default)]
    #[schemars(range(max = limits::REIGN_MAX))]
    pub lease_transitions: u64,
    /// What the first write to the node was planned to change, with how it was before: stored before that write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = UNDO_MAX))]
    pub undo: Vec<UndoEntry>,
    /// Pods that a drain was to evict as they were seen when it was made: whoever takes it up knows of those that are gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = PODS_MAX))]
    pub pods: Vec<PodRecord>,
    /// Set when this never will be done: it was final from its first moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tombstone: Option<Tombstone>,
}

/// One field of a node that we change.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UndoEntry {
    /// label, taint or unschedulable.
    #[schemars(extend("enum" = ["label", "taint", "unschedulable"]))]
    pub kind: String,
    /// Key of the label or taint.
    #[serde(default)]
    #[schemars(length(max = NAME_MAX))]
    pub key: String,
    /// JSON text before; empty = absent.
    #[serde(default)]
    #[schemars(length(max = VALUE_MAX))]
    pub before: String,
    /// JSON text after.
    #[serde(default)]
    #[schemars(length(max = VALUE_MAX))]
    pub after: String,
    /// The node's resourceVersion that `before` was read at.
    #[serde(default)]
    #[schemars(length(max = WORD_MAX))]
    pub resource_version: String,
}

/// Why something never will be done.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tombstone {
    /// REFUSED or CANCELLED.
    #[schemars(extend("enum" = ["REFUSED", "CANCELLED"]))]
    pub state: String,
    /// Code of the refusal; empty for a cancellation.
    #[serde(default)]
    #[schemars(length(max = WORD_MAX))]
    pub refusal: String,
    /// With its arithmetic.
    #[serde(default)]
    #[schemars(length(max = TEXT_MAX))]
    pub reason: String,
}

impl Tombstone {
    /// Of what is refused for ever.
    #[must_use]
    pub fn refused(refused: &Refused) -> Self {
        Self { state: CommandState::Refused.to_string(), refusal: refused.refusal.to_string(), reason: refused.reason.clone() }
    }
}

/// How it went. No status at all means that the intent exists and nothing more.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealActionStatus {
    /// RECEIVED, STARTED, SUCCEEDED, FAILED, UNKNOWN, REFUSED or CANCELLED.
    #[serde(default)]
    #[schemars(extend("enum" = ["", "RECEIVED", "STARTED", "SUCCEEDED", "FAILED", "UNKNOWN", "REFUSED", "CANCELLED"]))]
    pub state: String,
    /// The same as a table shows it: BLOCKED while it is STARTED and held.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = WORD_MAX))]
    pub shown_state: String,
    /// The replica at work on it.
    #[serde(default)]
    #[schemars(length(max = NAME_MAX))]
    pub holder: String,
    /// The Lease's transitions under which it is at work.
    #[serde(default)]
    #[schemars(range(max = limits::REIGN_MAX))]
    pub lease_transitions: u64,
    /// Index of the first step that is not done.
    #[serde(default)]
    #[schemars(range(max = COUNT_MAX))]
    pub cursor: u32,
    /// Raised with each status that the hub is told.
    #[serde(default)]
    #[schemars(range(max = limits::SEQ_MAX))]
    pub status_seq: u64,
    /// How it ended, with numbers.
    #[serde(default)]
    #[schemars(length(max = TEXT_MAX))]
    pub outcome: String,
    /// Code of a refusal after the intent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = WORD_MAX))]
    pub refusal: String,
    /// Per step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = STEPS_MAX))]
    pub steps: Vec<StepRecord>,
    /// What was changed on the node, where it differs from the spec's plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = UNDO_MAX))]
    pub undo: Vec<UndoEntry>,
    /// `Complete`, once nothing more will happen to it; `Blocked`, once a drain was held: by which pod, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = CONDITIONS_MAX))]
    pub conditions: Vec<Condition>,
}

/// One step's record.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepRecord {
    /// notify, mark, drain, restart or release.
    #[schemars(extend("enum" = ["", "notify", "mark", "drain", "restart", "release"]))]
    pub name: String,
    /// pending, running, done, failed or skipped.
    #[serde(default)]
    #[schemars(extend("enum" = ["", "pending", "running", "done", "failed", "skipped"]))]
    pub state: String,
    /// With numbers.
    #[serde(default)]
    #[schemars(length(max = TEXT_MAX))]
    pub message: String,
    /// When it began, milliseconds since the epoch.
    #[serde(default)]
    pub started_unix_ms: i64,
    /// When it ended.
    #[serde(default)]
    pub finished_unix_ms: i64,
    /// Pods of a drain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = PODS_MAX))]
    pub pods: Vec<PodRecord>,
}

/// One pod of a drain.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodRecord {
    /// Where.
    #[schemars(length(max = NAME_MAX))]
    pub namespace: String,
    /// Which.
    #[schemars(length(max = NAME_MAX))]
    pub name: String,
    /// What ties.
    #[schemars(length(max = NAME_MAX))]
    pub uid: String,
    /// planned, waiting, evicting, gone, blocked, skipped or failed.
    #[schemars(length(max = WORD_MAX))]
    pub state: String,
    /// Why it is blocked, skipped or failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = POD_TEXT_MAX))]
    pub reason: String,
    /// Left alone since it was known to use another GPU than the one that is drained: whoever takes the drain up spares it too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spared: bool,
    /// It came after the drain began, from an owner whose pods are drained: none of the plan's, for whoever takes the drain up too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub came_later: bool,
    /// It was deleted although a PodDisruptionBudget kept it, as whoever asked for the drain had allowed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub past_budget: bool,
    /// How often an eviction was asked for.
    #[serde(default)]
    #[schemars(range(max = COUNT_MAX))]
    pub eviction_calls: u32,
    /// UID of the controller that made it: who keeps putting pods onto a node is told from record to record.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = NAME_MAX))]
    pub owner_uid: String,
}

/// As `kubectl wait` expects it.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which.
    #[serde(rename = "type")]
    #[schemars(length(max = WORD_MAX))]
    pub type_: String,
    /// True, False or Unknown.
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
    /// One word: of Complete Succeeded, or Ended when it ended otherwise; of Blocked PodsHeld or NothingHeld.
    #[serde(default)]
    #[schemars(length(max = WORD_MAX))]
    pub reason: String,
    /// For people.
    #[serde(default)]
    #[schemars(length(max = TEXT_MAX))]
    pub message: String,
    /// RFC 3339.
    #[serde(default)]
    #[schemars(length(max = WORD_MAX))]
    pub last_transition_time: String,
}

/// The CRD as YAML: what `gpuheal-spoke crd` prints and `deploy/spoke/crd.yaml` holds.
#[must_use]
pub fn crd_yaml() -> String {
    use kube::CustomResourceExt as _;
    let body = serde_json::to_value(HealAction::crd()).expect("a CRD made of our own types is JSON");
    let yaml = serde_saphyr::to_string(&body).expect("JSON is YAML");
    format!("# Generated by `gpuheal-spoke crd`; a test fails when it differs.\n{yaml}")
}

#[cfg(test)]
mod tests;
