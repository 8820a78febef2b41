//! Findings about what runs: our own replicas, records that are stuck, the device plugin and driver, and backups of what has storage.

use std::{collections::BTreeMap, time::Duration};

use super::{seen, some};
use crate::doctor::{
    Finding, Level,
    facts::{Action, Facts, Node, Spoke},
};

/// From so many restarts on one is told of: a Lease that was lost ends the process by design, and a rollout or an upgrade of the API server
/// brings one or two.
const RESTARTS_TOLD: u32 = 3;
/// A command that is open so long past its time has nobody who carries it on: a takeover takes seconds.
const OPEN_OVERDUE: Duration = Duration::from_secs(300);
/// An outcome that waits so long for the hub is told: it is told again at each session.
const REPORT_OVERDUE: Duration = Duration::from_secs(3600);
/// A snapshot that is older is told of with its age.
const SNAPSHOT_OLD: Duration = Duration::from_secs(7 * 86_400);

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut all = Vec::new();
    if let Some(known) = seen("spokes", &facts.spokes, &mut all) {
        spokes(&facts.namespace, known, &mut all);
    }
    if let Some(known) = seen("healactions", &facts.actions, &mut all) {
        actions(&facts.namespace, known, &mut all);
    }
    // Nodes that could not be seen are told elsewhere.
    if let Ok(nodes) = &facts.nodes {
        driver(nodes, &mut all);
        plugin(facts, nodes, &mut all);
    }
    backup(facts, &mut all);
    all
}

fn spokes(namespace: &str, known: &[Spoke], all: &mut Vec<Finding>) {
    let before = all.len();
    let mut tell = |level, about: &str, found, next: &str| all.push(Finding::new(level, "spokes", about, found, next));
    for one in known {
        if one.restarts >= RESTARTS_TOLD {
            let last = if one.ended.is_empty() { String::new() } else { format!(", the last time by {}", one.ended) };
            let next = format!("kubectl logs -n {namespace} {} --previous, and docs/execution.md, Troubleshooting", one.name);
            tell(Level::Warning, &one.name, format!("was restarted {} times{last}", one.restarts), &next);
        }
        if !one.ready {
            tell(Level::Warning, &one.name, "is not ready".to_owned(), "its /readyz says why, in words");
        }
    }
    match known.len() {
        0 => tell(Level::Note, "", format!("none runs in {namespace}"), ""),
        1 => tell(Level::Warning, "", "one runs alone: nobody takes over when it ends".to_owned(), "run two"),
        many if before == all.len() => all.push(Finding::new(Level::Ok, "spokes", "", format!("{many} run and are ready"), "")),
        _ => {}
    }
}

fn actions(namespace: &str, known: &[Action], all: &mut Vec<Finding>) {
    let before = all.len();
    let mut tell = |stuck: &dyn Fn(&Action) -> bool, what: &str, next: &str| {
        let names: Vec<&str> = known.iter().filter(|action| stuck(action)).map(|action| action.name.as_str()).collect();
        if !names.is_empty() {
            let found = format!("{} {what}: {}", names.len(), some(&names));
            all.push(Finding::new(Level::Warning, "healactions", "", found, next));
        }
    };
    tell(
        &|action| action.open && action.overdue > OPEN_OVERDUE,
        "still open though their time is over",
        "does a spoke lead (gpu_selfhealing_leader_active), and what does its log say? The next leader ends them",
    );
    tell(
        &|action| !action.open && action.held && !action.waits_for_release && !action.deleting && action.overdue > REPORT_OVERDUE,
        "over, and the hub has not taken their outcome for an hour",
        "does the hub answer: /readyz, gpu_selfhealing_spoke_link_attached, gpuhealctl clusters",
    );
    let free = format!("kubectl patch ha NAME -n {namespace} --type=merge -p '{{\"metadata\":{{\"finalizers\":null}}}}'");
    let next = format!("they go once they are let go; with neither hub nor spoke: {free}");
    tell(&|action| action.deleting && action.held, "deleted by somebody and held by our finalizer", &next);
    if all.len() == before && !known.is_empty() {
        all.push(Finding::new(Level::Ok, "healactions", "", format!("none of {} is stuck", known.len()), ""));
    }
}

/// As GPU feature discovery labels nodes. Where it does not run nothing is known, which is no fault.
fn driver(nodes: &[Node], all: &mut Vec<Finding>) {
    let mut versions: BTreeMap<&str, usize> = BTreeMap::new();
    for node in nodes.iter().filter(|node| node.gpus > 0) {
        *versions.entry(&node.driver).or_default() += 1;
    }
    let unknown = versions.remove("").unwrap_or_default();
    let told: Vec<_> = versions.iter().map(|(version, count)| format!("{version} on {count}")).collect();
    let mut tell = |level, found, next| all.push(Finding::new(level, "driver", "", found, next));
    match told.len() {
        0 => {}
        1 => tell(Level::Ok, format!("of nodes with GPUs: {}", told[0]), ""),
        _ => tell(Level::Note, format!("not one and the same on all nodes with GPUs: {}", told.join(", ")), ""),
    }
    if unknown > 0 {
        let next = "run GPU feature discovery, which labels nodes with nvidia.com/cuda.driver-version.full";
        tell(Level::Note, format!("its version is not told by {unknown} nodes with GPUs"), next);
    }
}

fn plugin(facts: &Facts, nodes: &[Node], all: &mut Vec<Finding>) {
    let Some(ready) = seen("plugin", &facts.plugins, all) else { return };
    let meant: Vec<&str> = nodes.iter().filter(|node| node.gpus > 0 || node.labelled).map(|node| node.name.as_str()).collect();
    let without: Vec<&str> = meant.iter().copied().filter(|node| !ready.contains(*node)).collect();
    if without.is_empty() && !meant.is_empty() {
        all.push(Finding::new(Level::Ok, "plugin", "", format!("is ready on all {} nodes with GPUs", meant.len()), ""));
    } else if !without.is_empty() {
        let found = format!("no pod of it is ready on {} of {} nodes with GPUs: {}", without.len(), meant.len(), some(&without));
        let next = "look at its DaemonSet; where its pods have other labels, say which: --device-plugin-selector";
        all.push(Finding::new(Level::Warning, "plugin", "", found, next));
    }
}

/// A namespace's owner who allows the eviction of what has storage has confirmed backups: there it is worth knowing, elsewhere a warning.
fn backup(facts: &Facts, all: &mut Vec<Finding>) {
    // What could not be seen of pods and namespaces is told elsewhere.
    let (Ok(pods), Ok(allowed)) = (&facts.pods, &facts.allowed) else { return };
    let mut claims: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for pod in pods {
        let of_pod = pod.claims.iter().map(|claim| format!("{}/{claim}", pod.namespace));
        claims.entry(&pod.namespace).or_default().extend(of_pod);
    }
    claims.retain(|_, claims| !claims.is_empty());
    if claims.is_empty() {
        return;
    }
    let Some(snapshots) = seen("backup", &facts.snapshots, all) else { return };
    for (namespace, claims) in claims {
        let age = |claim: &String| snapshots.as_ref().and_then(|known| known.get(claim)).copied();
        let named = |fits: &dyn Fn(Option<Duration>) -> bool| -> Vec<&str> {
            claims.iter().filter(|claim| fits(age(claim))).map(|claim| claim.rsplit('/').next().unwrap_or_default()).collect()
        };
        let (none, old) = (named(&|age| age.is_none()), named(&|age| age.is_some_and(|age| age > SNAPSHOT_OLD)));
        let level = if allowed.contains(namespace) { Level::Note } else { Level::Warning };
        let mut tell = |level, found: String, next: &str| all.push(Finding::new(level, "backup", namespace, found, next));
        if !none.is_empty() {
            let what = if snapshots.is_none() {
                "the cluster has no VolumeSnapshots"
            } else {
                "no VolumeSnapshot is ready to restore from"
            };
            let next = "see that a backup is kept elsewhere, or take a snapshot, before the namespace allows evictions";
            tell(level, format!("{what}, for claims of GPU pods: {}", some(&none)), next);
        }
        if !old.is_empty() {
            let found = format!("the newest VolumeSnapshot is older than {} days: {}", SNAPSHOT_OLD.as_secs() / 86_400, some(&old));
            tell(level, found, "look at the schedule of its snapshots");
        }
        if none.is_empty() && old.is_empty() {
            tell(Level::Ok, "every claim of a GPU pod has a fresh VolumeSnapshot".to_owned(), "");
        }
    }
}
