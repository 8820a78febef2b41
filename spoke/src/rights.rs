//! What the spoke's account may do in its cluster: one table, from which the YAML under deploy/spoke is made and by which
//! `doctor` asks the API server. A row is there because some code of ours makes that call, and no call is made without one:
//! the claims of `tests/executor` all run as this account, and one compares the API server's record of them with the table.
//!
//! Nothing here has a wildcard, reads a Secret, impersonates, or may create a Lease or a ConfigMap: RBAC cannot limit a
//! creation by name, so those two objects ship with the account. What a node's `patch` may change is narrowed further by
//! [`admission`].

mod admission;
mod sheet;

use gpuheal_proto::kubernetes::{CONFIG_MAP, FENCE, LEASE};

pub use self::sheet::Sheet;

/// Name of the spoke's ServiceAccount, in our own namespace.
pub const ACCOUNT: &str = "gpuheal-spoke";
/// In [`Right::names`]: our own namespace, whatever it is called.
pub const OWN_NAMESPACE: &str = "(our own namespace)";
/// Where the API server keeps the Events of what has no namespace, nodes among it.
pub const NODE_EVENTS: &str = "default";

/// How far the account may go. Each needs those before it, but for the last two: either stands on [`Grant::Heal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Grant {
    /// See, tell the hub, keep records. Writes nothing outside of our own namespace.
    Observe,
    /// And say it on the node, as an Event.
    Notify,
    /// And mark nodes, and undo that.
    Mark,
    /// And evict GPU pods within their budgets: what both modes `approve` and `heal` need.
    #[value(alias = "approve")]
    Heal,
    /// And restart workloads by their pod template.
    Restart,
    /// And delete GPU pods past their budgets, where a person asked for it and policy allows it.
    PastBudgets,
}

impl Grant {
    /// All, the least first.
    pub const ALL: [Self; 6] = [Self::Observe, Self::Notify, Self::Mark, Self::Heal, Self::Restart, Self::PastBudgets];

    /// As people write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Notify => "notify",
            Self::Mark => "mark",
            Self::Heal => "heal",
            Self::Restart => "restart",
            Self::PastBudgets => "past-budgets",
        }
    }

    /// Whether who is to do what `self` gives needs `other` too.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        other == self || other < self.min(Self::Restart)
    }
}

/// Where a right holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In our own namespace.
    Own,
    /// In [`NODE_EVENTS`].
    NodeEvents,
    /// In the whole cluster.
    Cluster,
    /// Where pods and workloads are: in the whole cluster too, or in those namespaces alone for which the files were made.
    Workloads,
}

impl Grant {
    /// Whether some of what it gives can be given for a few namespaces alone.
    #[must_use]
    pub fn narrows(self) -> bool {
        RIGHTS.iter().any(|right| right.grant == self && right.place == Place::Workloads)
    }
}

/// What the account may do to one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// From which grant on.
    pub grant: Grant,
    /// Where.
    pub place: Place,
    /// API group; empty for the core's.
    pub group: &'static str,
    /// Plural, and the subresource after a slash.
    pub resource: &'static str,
    /// These objects alone; empty = any.
    pub names: &'static [&'static str],
    /// What, in Kubernetes' words.
    pub verbs: &'static [&'static str],
    /// For whom it is explained.
    pub why: &'static str,
}

impl Right {
    /// The resource without its subresource.
    #[must_use]
    pub fn plural(&self) -> &'static str {
        self.resource.split_once('/').map_or(self.resource, |(plural, _)| plural)
    }

    /// The subresource; empty for the object itself.
    #[must_use]
    pub fn subresource(&self) -> &'static str {
        self.resource.split_once('/').map_or("", |(_, subresource)| subresource)
    }
}

const CORE: &str = "";
const OURS: &str = gpuheal_proto::kubernetes::GROUP;

/// Everything that the spoke does with the Kubernetes API.
pub const RIGHTS: &[Right] = &[
    Right {
        grant: Grant::Observe,
        place: Place::Own,
        group: "coordination.k8s.io",
        resource: "leases",
        names: &[LEASE],
        verbs: &["get", "update"],
        why: "Who of the replicas leads. The Lease ships with the account, so that none need be created.",
    },
    Right {
        grant: Grant::Observe,
        place: Place::Own,
        group: CORE,
        resource: "configmaps",
        names: &[FENCE],
        verbs: &["get", "update"],
        why: "The highest key epoch and hub term seen: no older hub is obeyed. Ships with the account too.",
    },
    Right {
        grant: Grant::Observe,
        place: Place::Own,
        group: CORE,
        resource: "configmaps",
        names: &[CONFIG_MAP],
        verbs: &["list", "watch"],
        why: "The cluster owner's own settings and ceiling: followed, never written.",
    },
    Right {
        grant: Grant::Observe,
        place: Place::Own,
        group: OURS,
        resource: "healactions",
        names: &[],
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "The record of each command: made before anything is done, its finalizer taken off (patch) once the hub has the \
              outcome, deleted a day after it ran out. A refusal is a record too.",
    },
    Right {
        grant: Grant::Observe,
        place: Place::Own,
        group: OURS,
        resource: "healactions/status",
        names: &[],
        verbs: &["update"],
        why: "How far a command got.",
    },
    Right {
        grant: Grant::Observe,
        place: Place::Own,
        group: CORE,
        resource: "events",
        names: &[],
        verbs: &["create"],
        why: "Events on those records.",
    },
    Right {
        grant: Grant::Observe,
        place: Place::Cluster,
        group: CORE,
        resource: "nodes",
        names: &[],
        verbs: &["get", "list", "watch"],
        why: "GPUs, conditions, labels and taints of nodes, and whose node a command means.",
    },
    Right {
        grant: Grant::Observe,
        place: Place::Cluster,
        group: CORE,
        resource: "pods",
        names: &[],
        verbs: &["list", "watch"],
        why: "GPU pods, and the pods of exporters and device plugins. Of the others nothing is kept.",
    },
    Right {
        grant: Grant::Observe,
        place: Place::Cluster,
        group: CORE,
        resource: "namespaces",
        names: &[OWN_NAMESPACE, "kube-system"],
        verbs: &["get"],
        why: "Whether our own is there, and by the UID of the other which cluster this is.",
    },
    Right {
        grant: Grant::Notify,
        place: Place::NodeEvents,
        group: CORE,
        resource: "events",
        names: &[],
        verbs: &["create"],
        why: "Events on nodes, which Kubernetes keeps in this namespace.",
    },
    Right {
        grant: Grant::Mark,
        place: Place::Cluster,
        group: CORE,
        resource: "nodes",
        names: &[],
        verbs: &["patch"],
        why: "Our label, our taint, our three annotations and the cordon, set and taken off. RBAC cannot say which fields: \
              admission.yaml does.",
    },
    Right {
        grant: Grant::Heal,
        place: Place::Workloads,
        group: CORE,
        resource: "pods/eviction",
        names: &[],
        verbs: &["create"],
        why: "Evictions, which the API server holds to the budgets.",
    },
    Right {
        grant: Grant::Heal,
        place: Place::Workloads,
        group: CORE,
        resource: "events",
        names: &[],
        verbs: &["create"],
        why: "Events on the pods that a drain evicts, deletes or leaves, in their own namespaces.",
    },
    Right {
        grant: Grant::Heal,
        place: Place::Cluster,
        group: CORE,
        resource: "pods",
        names: &[],
        verbs: &["get"],
        why: "Whether a pod is still there after an answer that left it open.",
    },
    Right {
        grant: Grant::Heal,
        place: Place::Cluster,
        group: "policy",
        resource: "poddisruptionbudgets",
        names: &[],
        verbs: &["list"],
        why: "Which budgets are on one pod, where the API server says only that there are several.",
    },
    Right {
        grant: Grant::Heal,
        place: Place::Cluster,
        group: CORE,
        resource: "namespaces",
        names: &[],
        verbs: &["get"],
        why: "Whether a namespace's owner has allowed the eviction of pods with storage.",
    },
    Right {
        grant: Grant::Heal,
        place: Place::Cluster,
        group: CORE,
        resource: "persistentvolumeclaims",
        names: &[],
        verbs: &["get"],
        why: "Whether the claims of such a pod are bound, and to which volumes.",
    },
    Right {
        grant: Grant::Heal,
        place: Place::Cluster,
        group: "storage.k8s.io",
        resource: "volumeattachments",
        names: &[],
        verbs: &["list"],
        why: "Whether those volumes can follow the pod, and which of them a dead node keeps.",
    },
    Right {
        grant: Grant::Heal,
        place: Place::Cluster,
        group: "resource.k8s.io",
        resource: "resourceclaims",
        names: &[],
        verbs: &["get"],
        why: "Which devices a pod's claims were given: whether they are GPUs, and which.",
    },
    Right {
        grant: Grant::Heal,
        place: Place::Cluster,
        group: "resource.k8s.io",
        resource: "resourceslices",
        names: &[],
        verbs: &["list"],
        why: "Which GPU such a device is: the slices of the node itself.",
    },
    Right {
        grant: Grant::Restart,
        place: Place::Workloads,
        group: "apps",
        resource: "deployments",
        names: &[],
        verbs: &["get", "patch"],
        why: "Our annotation on the pod template, which rolls the workload out anew. admission.yaml allows nothing else.",
    },
    Right {
        grant: Grant::Restart,
        place: Place::Workloads,
        group: "apps",
        resource: "statefulsets",
        names: &[],
        verbs: &["get", "patch"],
        why: "The same.",
    },
    Right {
        grant: Grant::Restart,
        place: Place::Workloads,
        group: "apps",
        resource: "daemonsets",
        names: &[],
        verbs: &["get", "patch"],
        why: "The same.",
    },
    Right {
        grant: Grant::PastBudgets,
        place: Place::Workloads,
        group: CORE,
        resource: "pods",
        names: &[],
        verbs: &["delete"],
        why: "Past a budget at a drain's deadline, bound to the pod's UID and with its grace.",
    },
];

#[cfg(test)]
mod tests;
