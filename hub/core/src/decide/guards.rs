//! What stands between a plan and its command: each guard says no with its arithmetic and with when to ask again.
//! Guards gate harm alone. A release passes none of them.

use std::time::Duration;

use gpuheal_proto::{
    ids::{ClusterId, IncidentId},
    time::Timestamp,
};

use super::BudgetOp;
use crate::{
    incident::IncidentState,
    policy::Settings,
    snapshot::{Request, Snapshot},
};

/// How soon something that only others can end is looked at again. Events wake the decision anyway; this is the net.
pub(super) const RECHECK: Duration = Duration::from_secs(60);

/// A guard's no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) state: IncidentState,
    pub(super) reason: String,
    pub(super) recheck_at: Timestamp,
    pub(super) would: String,
}

impl Block {
    fn new(reason: impl Into<String>, would: impl Into<String>, recheck_at: Timestamp) -> Self {
        Self { state: IncidentState::Blocked, reason: reason.into(), recheck_at, would: would.into() }
    }
}

/// What a plan that passed may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pass {
    pub(super) budget: BudgetOp,
    pub(super) takes_rate: bool,
    pub(super) words: Vec<String>,
}

/// May something harmful be done to this node now?
pub(super) fn admit(snapshot: &Snapshot, settings: &Settings, request: Option<&Request>, now: Timestamp) -> Result<Pass, Block> {
    begun(snapshot, settings, request, now)?;
    room(snapshot, settings, now)
}

/// Why nothing new begins in a cluster of which a database that is new, or may have lost commits, does not know all yet.
pub(super) fn not_taken_over(cluster: &ClusterId) -> String {
    format!(
        "cluster {cluster} is not taken over yet: its nodes, the faults that stand and the commands on record have not all been told \
         since the epoch of the hub's database began, so that no budget and no opt-out can be judged"
    )
}

/// May something be done to what runs on this node, which stays in its place? The same but for the budgets, of nodes that are out.
pub(super) fn admit_in_place(snapshot: &Snapshot, settings: &Settings, request: &Request, now: Timestamp) -> Result<(), Block> {
    begun(snapshot, settings, Some(request), now)?;
    rated(snapshot, settings, now)
}

/// May anything be begun here at all, however much is out and how fast it goes?
fn begun(snapshot: &Snapshot, settings: &Settings, request: Option<&Request>, now: Timestamp) -> Result<(), Block> {
    believed(snapshot, now)?;
    allowed(snapshot, settings, now)?;
    let incident = snapshot.incident.as_ref().map(|incident| incident.id);
    cooled(snapshot, incident, request, now)
}

/// Stops, and whether we know enough of the cluster at all.
fn believed(snapshot: &Snapshot, now: Timestamp) -> Result<(), Block> {
    let cluster = &snapshot.cluster;
    let later = now.after(RECHECK);
    if let Some(why) = &cluster.fleet_stop {
        return Err(Block::new(format!("the fleet is stopped: {why}"), "the stop is lifted", later));
    }
    if !cluster.taken_over() {
        return Err(Block::new(not_taken_over(&cluster.id), "the cluster's leading spoke has told all that it has", later));
    }
    if snapshot.node.seen_at == Timestamp::EPOCH {
        return Err(Block::new("the node is not in the cluster's state yet", "the spoke shows this node", later));
    }
    Ok(())
}

/// The node's owner, others at work on it, its youth, and how much looks ill at once.
fn allowed(snapshot: &Snapshot, settings: &Settings, now: Timestamp) -> Result<(), Block> {
    let node = &snapshot.node;
    let later = now.after(RECHECK);
    if node.opted_out {
        return Err(Block::new("the node's owner keeps us off (opt-out label)", "the opt-out label is removed", later));
    }
    let foreign: Vec<&str> =
        node.foreign_markers.iter().filter(|marker| !settings.markers_ignored.contains(marker)).map(String::as_str).collect();
    if !foreign.is_empty() {
        return Err(Block::new(format!("somebody else is at work on the node: {}", foreign.join(", ")), "that marker goes", later));
    }
    let youth = settings.windows.node_youth;
    let grown = node.created_at.after(youth);
    if now < grown {
        let age = now.since(node.created_at).as_secs();
        let reason = format!("the node is {age} s old, younger than {} min", youth.as_secs() / 60);
        return Err(Block::new(reason, format!("the node is old enough at {grown}"), grown));
    }
    breaker(snapshot, settings, now)
}

fn breaker(snapshot: &Snapshot, settings: &Settings, now: Timestamp) -> Result<(), Block> {
    let (rule, cluster) = (settings.breaker, &snapshot.cluster);
    let ill = cluster.newly_suspect;
    let share = u64::from(ill) * 100 >= u64::from(rule.percent) * u64::from(cluster.gpu_nodes);
    if rule.percent > 0 && ill >= rule.nodes_min && share {
        let reason = format!(
            "breaker: {ill} of {} GPU nodes of cluster {} newly suspect within {} min, {} % and at least {} trip it",
            cluster.gpu_nodes,
            cluster.id,
            rule.window.as_secs() / 60,
            rule.percent,
            rule.nodes_min
        );
        return Err(Block::new(reason, "fewer nodes newly suspect, or a person", now.after(RECHECK)));
    }
    Ok(())
}

fn cooled(snapshot: &Snapshot, incident: Option<IncidentId>, request: Option<&Request>, now: Timestamp) -> Result<(), Block> {
    let waived = request.is_some_and(|request| request.ignore_cooldown);
    let held = snapshot.incident.as_ref().is_some_and(|incident| incident.held);
    let Some(row) = snapshot.cooldown.filter(|_| !waived && !held) else { return Ok(()) };
    match row.holds_back(incident, now) {
        None => Ok(()),
        Some(Some(until)) => Err(Block {
            state: IncidentState::Suppressed,
            ..Block::new(
                format!("in cooldown of incident {} until {until}{}", row.incident, waiver(request)),
                format!("the cooldown ends at {until}, or a person waives it"),
                until,
            )
        }),
        Some(None) => Err(Block {
            state: IncidentState::Suppressed,
            ..Block::new(
                format!("a command of incident {} has not been heard of yet", row.incident),
                "that command ends",
                now.after(RECHECK),
            )
        }),
    }
}

/// How whoever asks can go on all the same.
fn waiver(request: Option<&Request>) -> &'static str {
    if request.is_some() { "; gpuhealctl process --override-cooldown waives it" } else { "" }
}

/// Whose nodes count though nobody has seen them out.
fn adopting(nodes: u32) -> String {
    if nodes == 0 {
        return String::new();
    }
    format!("; {nodes} of them count for clusters that are not taken over yet, see gpuhealctl clusters")
}

/// Budgets and rates, in their fixed order: fleet, then cluster. A node that holds its place already needs none.
fn room(snapshot: &Snapshot, settings: &Settings, now: Timestamp) -> Result<Pass, Block> {
    let cluster = &snapshot.cluster;
    if snapshot.incident.as_ref().is_some_and(|incident| incident.held) {
        return Ok(Pass { budget: BudgetOp::Keep, takes_rate: false, words: Vec::new() });
    }
    let later = now.after(RECHECK);
    let no = |why: String| Block::new(why, "a node comes back, or the budget is raised", later);
    let budgets = settings.budgets;
    let fleet = budgets.fleet.admit("the fleet", cluster.fleet_gpu_nodes, cluster.fleet_out);
    let fleet = fleet.map_err(|why| no(format!("{why}{}", adopting(cluster.fleet_adopting))))?;
    let scope = format!("cluster {}", cluster.id);
    let ours = budgets.cluster.admit(&scope, cluster.gpu_nodes, cluster.out).map_err(no)?;
    rated(snapshot, settings, now)?;
    let budget = BudgetOp::Hold {
        cluster_allowed: budgets.cluster.allowed(cluster.gpu_nodes),
        fleet_allowed: budgets.fleet.allowed(cluster.fleet_gpu_nodes),
    };
    Ok(Pass { budget, takes_rate: true, words: vec![ours, fleet] })
}

/// How fast it may go, of the fleet and of the cluster.
fn rated(snapshot: &Snapshot, settings: &Settings, now: Timestamp) -> Result<(), Block> {
    let cluster = &snapshot.cluster;
    let slow = |scope: &str, at: Timestamp| Block::new(format!("rate of {scope} used up until {at}"), "time passes", at);
    settings.rates.fleet.take(cluster.fleet_rate, now).map_err(|at| slow("the fleet", at))?;
    settings.rates.cluster.take(cluster.rate, now).map_err(|at| slow(&format!("cluster {}", cluster.id), at))?;
    Ok(())
}
