//! The table as YAML that `kubectl apply -f` takes: a file per grant, and one of the admission policies. Pure. The files
//! under deploy/spoke are these for the usual namespace; whoever has another prints them for it.

use std::fmt::Write as _;

use gpuheal_proto::kubernetes::{FENCE, LEASE, NAMESPACE};

use super::{ACCOUNT, Grant, NODE_EVENTS, OWN_NAMESPACE, Place, RIGHTS, Right, admission};

/// Between two objects.
const BETWEEN: &str = "---\n";

/// One file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sheet {
    /// Namespace, account, its Lease and fence, and what it takes to observe.
    Observe,
    /// What an account that may change nodes or workloads must not change of them. Kubernetes 1.30 and later.
    Admission,
    /// Events on nodes.
    Notify,
    /// Marks on nodes.
    Mark,
    /// Evictions: for the modes `approve` and `heal`.
    Heal,
    /// Restarts of workloads.
    Restart,
    /// Deletions past a budget.
    PastBudgets,
}

impl Sheet {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Observe, Self::Admission, Self::Notify, Self::Mark, Self::Heal, Self::Restart, Self::PastBudgets];

    /// Its place under deploy/spoke. What lies in the folder itself is an install that only observes.
    #[must_use]
    pub const fn file(self) -> &'static str {
        match self {
            Self::Observe => "observe.yaml",
            Self::Admission => "admission.yaml",
            Self::Notify => "modes/notify.yaml",
            Self::Mark => "modes/mark.yaml",
            Self::Heal => "modes/heal.yaml",
            Self::Restart => "modes/restart.yaml",
            Self::PastBudgets => "modes/past-budgets.yaml",
        }
    }

    /// The command that brings it into the cluster.
    #[must_use]
    pub fn apply(self, namespace: &str) -> String {
        self.apply_within(namespace, &[])
    }

    /// The same for pods and workloads of these namespaces alone; of all where none is named.
    #[must_use]
    pub fn apply_within(self, namespace: &str, within: &[String]) -> String {
        if namespace == NAMESPACE && within.is_empty() {
            return format!("kubectl apply -f deploy/spoke/{}", self.file());
        }
        let home = if namespace == NAMESPACE { String::new() } else { format!(" --namespace {namespace}") };
        let within = if within.is_empty() { String::new() } else { format!(" --namespaces {}", within.join(",")) };
        format!("gpuheal-spoke rights {}{home}{within} | kubectl apply -f -", self.name())
    }

    /// Whether some of what it gives can be given for a few namespaces alone.
    #[must_use]
    pub fn narrows(self) -> bool {
        self.grant().is_some_and(Grant::narrows)
    }

    /// As `gpuheal-spoke rights` takes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.grant() {
            Some(grant) => grant.name(),
            None => "admission",
        }
    }

    const fn grant(self) -> Option<Grant> {
        match self {
            Self::Observe => Some(Grant::Observe),
            Self::Admission => None,
            Self::Notify => Some(Grant::Notify),
            Self::Mark => Some(Grant::Mark),
            Self::Heal => Some(Grant::Heal),
            Self::Restart => Some(Grant::Restart),
            Self::PastBudgets => Some(Grant::PastBudgets),
        }
    }

    /// Its objects, for a spoke whose own namespace has this name.
    #[must_use]
    pub fn objects(self, namespace: &str) -> Vec<serde_json::Value> {
        self.objects_within(namespace, &[])
    }

    /// The same for pods and workloads of these namespaces alone; of all where none is named.
    #[must_use]
    pub fn objects_within(self, namespace: &str, within: &[String]) -> Vec<serde_json::Value> {
        let parse = |text: &str| serde_saphyr::from_str(text).expect("our own text is YAML: a test reads all of it");
        self.yaml(namespace, within).split(BETWEEN).map(parse).collect()
    }

    /// Its text. What is done to pods and workloads may be done in the namespaces of `within` alone; in all where it names none.
    #[must_use]
    pub fn yaml(self, namespace: &str, within: &[String]) -> String {
        let Some(grant) = self.grant() else {
            return join(&shipped(self.name()), admission::ABOUT, &admission::objects(namespace));
        };
        let mut objects = if grant == Grant::Observe { home(namespace) } else { Vec::new() };
        let mut give = |scope: Scope<'_>, places: &[Place]| {
            let held = |right: &&Right| right.grant == grant && places.contains(&right.place);
            let rights: Vec<&Right> = RIGHTS.iter().filter(held).collect();
            if !rights.is_empty() {
                objects.extend(role(namespace, grant, scope, &rights));
            }
        };
        give(Scope::Namespace(namespace), &[Place::Own]);
        give(Scope::Namespace(NODE_EVENTS), &[Place::NodeEvents]);
        if within.is_empty() {
            give(Scope::Cluster, &[Place::Cluster, Place::Workloads]);
            return join(&shipped(self.name()), about(grant), &objects);
        }
        give(Scope::Cluster, &[Place::Cluster]);
        within.iter().for_each(|namespace| give(Scope::Namespace(namespace), &[Place::Workloads]));
        let made_by = format!("Generated by `gpuheal-spoke rights {} --namespaces {}`.", self.name(), within.join(","));
        join(&made_by, &format!("{} {ABOUT_WITHIN}", about(grant)), &objects)
    }
}

impl Grant {
    /// The file that gives it.
    #[must_use]
    pub const fn sheet(self) -> Sheet {
        match self {
            Self::Observe => Sheet::Observe,
            Self::Notify => Sheet::Notify,
            Self::Mark => Sheet::Mark,
            Self::Heal => Sheet::Heal,
            Self::Restart => Sheet::Restart,
            Self::PastBudgets => Sheet::PastBudgets,
        }
    }
}

/// Names of cluster-scoped objects bear our namespace: two spokes of one cluster, as tests have them, share none.
pub(super) fn named(namespace: &str, what: &str) -> String {
    format!("{namespace}-spoke-{what}")
}

/// For whoever reads a file that was made for a few namespaces.
const ABOUT_WITHIN: &str = "Of pods and workloads, in the namespaces named above alone: what is in another one stays and is named. \
    Where the file for every namespace was applied before, delete that first: what it gives adds to this.";

/// Where a role holds.
#[derive(Clone, Copy)]
enum Scope<'a> {
    Cluster,
    Namespace(&'a str),
}

const fn about(grant: Grant) -> &'static str {
    match grant {
        Grant::Observe => "A spoke that sees, tells the hub and keeps records. It writes nothing outside of its own namespace.",
        Grant::Notify => "Beside observe.yaml, for mode notify: Events on nodes.",
        Grant::Mark => "Beside notify.yaml, for mode mark: marks on nodes, and their release. Apply admission.yaml before it.",
        Grant::Heal => "Beside mark.yaml, for the modes approve and heal: evictions within the budgets.",
        Grant::Restart => "Beside heal.yaml, for restarts of workloads that people ask for. Apply admission.yaml before it.",
        Grant::PastBudgets => {
            "Beside heal.yaml, for drains that may pass a budget at their deadline because a person asked for it. Without it \
             such a pod stays and is named."
        }
    }
}

/// The first line of a file of deploy/spoke.
fn shipped(sheet: &str) -> String {
    format!("Generated by `gpuheal-spoke rights {sheet}`; a test fails when it differs.")
}

fn join(made_by: &str, about: &str, objects: &[String]) -> String {
    let mut text = format!("# {made_by}\n");
    comment(&mut text, "", about);
    text.push_str(&objects.join(BETWEEN));
    text
}

/// A comment of lines that fit beside code.
fn comment(text: &mut String, indent: &str, words: &str) {
    let mut line = String::new();
    for word in words.split_whitespace() {
        if !line.is_empty() && indent.len() + line.len() + word.len() + 3 > 120 {
            let _ = writeln!(text, "{indent}#{line}");
            line.clear();
        }
        let _ = write!(line, " {word}");
    }
    let _ = writeln!(text, "{indent}#{line}");
}

/// What must be there before the account can do anything. Lease and fence come empty, and applying them again empties
/// neither: what a file does not name, `kubectl apply` leaves as it is.
fn home(namespace: &str) -> Vec<String> {
    let object = |api: &str, kind: &str, name: &str| {
        format!("apiVersion: {api}\nkind: {kind}\nmetadata:\n  name: {name}\n  namespace: {namespace}\n")
    };
    vec![
        format!("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {namespace}\n"),
        object("v1", "ServiceAccount", ACCOUNT),
        object("coordination.k8s.io/v1", "Lease", LEASE),
        object("v1", "ConfigMap", FENCE),
    ]
}

/// A role and its binding to the account.
fn role(namespace: &str, grant: Grant, scope: Scope<'_>, rights: &[&Right]) -> [String; 2] {
    let name = named(namespace, grant.name());
    let (kind, within) = match scope {
        Scope::Cluster => ("ClusterRole", String::new()),
        Scope::Namespace(there) => ("Role", format!("  namespace: {there}\n")),
    };
    let head = |kind: &str| format!("apiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata:\n  name: {name}\n{within}");
    let mut role = head(kind) + "rules:\n";
    for right in rights {
        rule(&mut role, right, namespace);
    }
    let mut binding = head(&format!("{kind}Binding"));
    let _ = write!(
        binding,
        "roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: {kind}\n  name: {name}\n\
         subjects:\n- kind: ServiceAccount\n  name: {ACCOUNT}\n  namespace: {namespace}\n"
    );
    [role, binding]
}

fn rule(text: &mut String, right: &Right, namespace: &str) {
    let group = if right.group.is_empty() { "\"\"" } else { right.group };
    comment(text, "", right.why);
    let _ = writeln!(text, "- apiGroups: [{group}]\n  resources: [{}]", right.resource);
    if !right.names.is_empty() {
        let names: Vec<&str> = right.names.iter().map(|name| if *name == OWN_NAMESPACE { namespace } else { name }).collect();
        let _ = writeln!(text, "  resourceNames: [{}]", names.join(", "));
    }
    let _ = writeln!(text, "  verbs: [{}]", right.verbs.join(", "));
}
