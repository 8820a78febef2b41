//! The names that users see in their clusters. They are an interface: changing one breaks people's queries.

/// Prefix of each key that we write on an object.
pub const PREFIX: &str = "gpu-selfhealing.io/";
/// Node label: `faulty` while a node is quarantined by us.
pub const LABEL_STATUS: &str = "gpu-selfhealing.io/status";
/// Value of [`LABEL_STATUS`].
pub const STATUS_FAULTY: &str = "faulty";
/// Node taint key; its value is [`TAINT_VALUE`], its effect [`TAINT_EFFECT`].
pub const TAINT_FAULTY: &str = "gpu-selfhealing.io/faulty";
/// Value of our taint.
pub const TAINT_VALUE: &str = "true";
/// Effect of our taint. Never NoExecute: that would kill pods past their PDBs.
pub const TAINT_EFFECT: &str = "NoSchedule";
/// Node annotation: RFC 3339 time of the last thing done to the node.
pub const ANNOTATION_LAST_PROCESS_TIME: &str = "gpu-selfhealing.io/last-process-time";
/// Node annotation: the incident that the last thing done belongs to.
pub const ANNOTATION_PROCESS_ID: &str = "gpu-selfhealing.io/process-id";
/// Node annotation: the highest plan revision that wrote to this node. It survives a release.
pub const ANNOTATION_PLAN_REVISION: &str = "gpu-selfhealing.io/plan-revision";
/// Node label by which its owner keeps us off: any value but `false`.
pub const LABEL_OPT_OUT: &str = "gpu-selfhealing.io/opt-out";
/// Namespace label: `allowed` lets stateful GPU pods of this namespace be evicted.
pub const LABEL_STATEFUL_EVICTION: &str = "gpu-selfhealing.io/stateful-eviction";
/// Pod label: `now`, `after-completion` or `never`.
pub const LABEL_EVICT: &str = "gpu-selfhealing.io/evict";
/// Finalizer that keeps a HealAction until its outcome has reached the hub.
pub const FINALIZER: &str = "gpu-selfhealing.io/report";
/// API group of HealAction.
pub const GROUP: &str = "gpu-selfhealing.io";
/// The spoke's namespace unless told otherwise.
pub const NAMESPACE: &str = "gpu-selfhealing";
/// The Lease that the leading replica holds.
pub const LEASE: &str = "gpu-selfhealing-leader";
/// The cluster owner's ConfigMap.
pub const CONFIG_MAP: &str = "gpu-selfhealing-config";
/// The key of [`CONFIG_MAP`] that holds the settings.
pub const CONFIG_KEY: &str = "config.yaml";
/// The ConfigMap that holds the highest key epoch, hub term and trust version seen.
pub const FENCE: &str = "gpu-selfhealing-fence";
/// Reason of every Kubernetes Event that we post.
pub const EVENT_REASON: &str = "GPUSelfHealing";
/// Field manager of everything that we write.
pub const FIELD_MANAGER: &str = "gpu-selfhealing";
