//! What a cluster's leader says of its nodes: a snapshot counts, absences included, when its last part is there.

use std::collections::BTreeSet;

use gpuheal_hub::{audit::Kind, ingest::Taken};
use gpuheal_hub_core::snapshot::{Mark, Ready};
use gpuheal_proto::{
    fault::{GpuRef, NodeRef},
    ids::{ClusterId, NodeName, NodeUid},
    link::v1::{self, cluster_state::Body},
    state_digest::{self, NodeWord},
    time::Timestamp,
};
use serde_json::json;

use super::{Memory, Node};
use crate::{mutation::Mutation, store::Error};

struct Change {
    whole: bool,
    nodes: Vec<v1::NodeState>,
    gone: Vec<String>,
    config: Option<v1::ClusterConfig>,
    digest: Option<v1::StateDigest>,
}

impl Memory {
    pub(super) fn take_state(&mut self, cluster: &ClusterId, state: v1::ClusterState) -> Result<Taken, Error> {
        let Some(body) = state.body else { return Err(Error::Refused("it has neither snapshot nor delta".to_owned())) };
        let change = match body {
            Body::Delta(delta) => {
                Change { whole: false, nodes: delta.changed, gone: delta.gone_uids, config: delta.config, digest: delta.digest }
            }
            Body::Snapshot(part) => match self.assemble(cluster, part)? {
                Some(change) => change,
                None => return Ok(Taken::Part),
            },
        };
        let (seq, as_of) = (state.seq, Timestamp::from_unix_ms(state.as_of_unix_ms).min(self.now));
        let whole = change.whole;
        let known = self.clusters.get(cluster).is_some_and(|rows| self.adopted(rows));
        let mut taken = self.apply_state(cluster, state.lease_transitions, seq, as_of, change)?;
        if let (Taken::Counts { .. }, true) = (&taken, state.told_upto_unix_ms > 0) {
            let upto = Timestamp::from_unix_ms(state.told_upto_unix_ms).min(as_of);
            let known = &mut self.cluster(cluster).told_upto;
            *known = (*known).max(Some(upto));
        }
        let term = self.hub_term;
        if matches!(taken, Taken::Counts { .. }) && state.all_told_term == term {
            let rows = self.cluster(cluster);
            if whole || rows.snapshot_term == Some(term) {
                rows.taken_over_term = Some(term);
            }
            if !known && self.clusters.get(cluster).is_some_and(|rows| self.adopted(rows)) {
                let rows = self.cluster(cluster);
                let waited: Vec<NodeUid> = rows.nodes.keys().filter(|uid| concerns(rows, uid)).cloned().collect();
                if let Taken::Counts { due, .. } = &mut taken {
                    *due |= !waited.is_empty();
                }
                self.ask(cluster, waited);
            }
        }
        Ok(taken)
    }

    fn assemble(&mut self, cluster: &ClusterId, part: v1::SnapshotPart) -> Result<Option<Change>, Error> {
        let parts = &mut self.cluster(cluster).parts;
        if part.part == 1 {
            parts.clear();
        }
        let (number, total) = (part.part, part.parts);
        if parts.len() + 1 != number as usize || parts.first().is_some_and(|first| first.parts != total) {
            parts.clear();
            return Err(Error::Refused(format!("part {number} of {total} is out of turn")));
        }
        parts.push(part);
        if number < total {
            return Ok(None);
        }
        let mut whole = Change { whole: true, nodes: Vec::new(), gone: Vec::new(), config: None, digest: None };
        for part in std::mem::take(parts) {
            whole.nodes.extend(part.nodes);
            whole.config = part.config.or(whole.config);
        }
        Ok(Some(whole))
    }

    fn apply_state(&mut self, id: &ClusterId, lease: u64, seq: u64, as_of: Timestamp, change: Change) -> Result<Taken, Error> {
        let (now, term) = (self.now, self.hub_term);
        let nodes: Vec<Node> = change.nodes.iter().map(|node| node_of(node, as_of)).collect::<Result<_, _>>()?;
        let cluster = self.cluster(id);
        let adopting = cluster.taken_over_term.unwrap_or(cluster.first_term) < term;
        let (told, known) = ((lease, seq), (cluster.state_lease, cluster.state_seq));
        let follows = told == (known.0, known.1 + 1) && known.1 > 0;
        if lease < known.0 || (!change.whole && told <= known && known.1 > 0) {
            return Ok(Taken::PassedOver);
        }
        if !change.whole && !follows {
            return Ok(Taken::Unfounded);
        }
        let present: BTreeSet<&NodeUid> = nodes.iter().map(|node| &node.reference.uid).collect();
        let absent: Vec<NodeUid> = if change.whole {
            let there = cluster.nodes.iter().filter(|(_, node)| node.gone_at.is_none());
            there.map(|(uid, _)| uid.clone()).filter(|uid| !present.contains(uid)).collect()
        } else {
            change.gone.iter().filter_map(|uid| NodeUid::parse(uid).ok()).collect()
        };
        let mut touched: BTreeSet<NodeUid> = BTreeSet::new();
        for node in &nodes {
            let name = &node.reference.name;
            for (uid, old) in &mut cluster.nodes {
                if old.gone_at.is_none() && old.reference.name == *name && *uid != node.reference.uid {
                    old.gone_at = Some(now);
                    touched.insert(uid.clone());
                }
            }
        }
        for node in nodes {
            let uid = node.reference.uid.clone();
            match cluster.nodes.get_mut(&uid) {
                Some(old) if !differs(old, &node) => {}
                Some(old) => {
                    let (created_at, plan_rev_issued) = (old.created_at, old.plan_rev_issued);
                    *old = Node { created_at, plan_rev_issued, ..node };
                    touched.insert(uid);
                }
                None => {
                    cluster.nodes.insert(uid.clone(), node);
                    touched.insert(uid);
                }
            }
        }
        let mut gone = Vec::new();
        for uid in &absent {
            if let Some(node) = cluster.nodes.get_mut(uid).filter(|node| node.gone_at.is_none()) {
                node.gone_at = Some(now);
                gone.push(uid.clone());
            }
        }
        touched.extend(gone.iter().cloned());
        (cluster.state_lease, cluster.state_seq, cluster.state_as_of) = (lease, seq, Some(as_of));
        if change.whole {
            cluster.snapshot_term = Some(term);
        }
        if let Some(config) = change.config {
            cluster.config_yaml = config.yaml;
        }
        let concern: Vec<NodeUid> = touched.into_iter().filter(|uid| concerns(cluster, uid)).collect();
        let due = !concern.is_empty();
        self.ask(id, concern);
        let differs = change.digest.is_some_and(|told| told != digest(self.cluster(id)));
        self.regression(id, adopting);
        if change.whole || !gone.is_empty() {
            let kind = if change.whole { Kind::InventorySnapshot } else { Kind::NodesGone };
            let body = json!({"gone": gone, "as_of_unix_ms": as_of.unix_ms(), "lease_transitions": lease});
            self.tell(id, kind, &format!("spoke/{id}"), &format!("cluster/{id}"), None, &body);
        }
        Ok(Taken::Counts { due, differs })
    }

    /// A node that carries a plan revision which this database never gave out proves that commits were lost.
    /// Is the epoch raised since, the loss is known.
    fn regression(&mut self, id: &ClusterId, adopting: bool) {
        let mut nodes = 0_u64;
        let blind = self.mutations.has(Mutation::TermNeverRises);
        for node in self.cluster(id).nodes.values_mut().filter(|node| node.plan_revision > node.plan_rev_issued) {
            node.plan_rev_issued = node.plan_revision;
            nodes += 1;
        }
        if nodes > 0 && !blind && !adopting {
            self.hub_term += 1;
            let body = json!({"term": self.hub_term, "nodes": nodes});
            self.tell(id, Kind::TermRaised, "hub/ingest", &format!("cluster/{id}"), None, &body);
        }
    }
}

/// Of the nodes that are held.
fn digest(cluster: &super::Cluster) -> v1::StateDigest {
    let there = cluster.nodes.iter().filter(|(_, node)| node.gone_at.is_none());
    state_digest::digest(there.map(|(uid, node)| {
        let word = NodeWord {
            uid: uid.as_str(),
            plan_revision: node.plan_revision,
            ready: match node.ready {
                Ready::Ready => v1::Readiness::Ready,
                Ready::NotReady => v1::Readiness::NotReady,
                Ready::Unknown => v1::Readiness::Unknown,
            },
            unschedulable: node.unschedulable,
            labelled: node.mark.labelled,
            tainted: node.mark.tainted,
            cordoned_by_us: node.mark.cordoned_by_us,
            opted_out: node.opted_out,
        };
        word.share()
    }))
}

/// There is anything to judge about the node.
fn concerns(cluster: &super::Cluster, uid: &NodeUid) -> bool {
    let marked = cluster.nodes.get(uid).is_some_and(|node| marked(&node.mark));
    let open = cluster.open_incident(uid).is_some();
    let faults = || cluster.faults.values().flatten().any(|fault| fault.node.uid == *uid && fault.known.settled.is_none());
    marked || open || cluster.holds.contains_key(uid) || faults()
}

pub(super) const fn marked(mark: &Mark) -> bool {
    mark.labelled || mark.tainted || mark.cordoned_by_us
}

/// What the hub compares before it writes: not when it was seen, nor what it has itself given out.
fn differs(old: &Node, new: &Node) -> bool {
    let as_new =
        Node { created_at: new.created_at, plan_rev_issued: new.plan_rev_issued, state_as_of: new.state_as_of, ..old.clone() };
    as_new != *new
}

fn node_of(node: &v1::NodeState, as_of: Timestamp) -> Result<Node, Error> {
    let refused = |error: gpuheal_proto::ids::ParseIdError| Error::Refused(error.to_string());
    let mark = node.mark.as_ref();
    Ok(Node {
        reference: NodeRef {
            name: NodeName::parse(&node.name).map_err(refused)?,
            uid: NodeUid::parse(&node.uid).map_err(refused)?,
            boot_id: node.boot_id.clone(),
        },
        created_at: Timestamp::from_unix_ms(node.created_unix_ms),
        labels: node.labels.clone().into_iter().collect(),
        gpus: node.gpus.iter().filter_map(|gpu| GpuRef::try_from(gpu.clone()).ok()).collect(),
        capacity_gpus: node.capacity_gpus,
        allocatable_gpus: node.allocatable_gpus,
        ready: match v1::Readiness::try_from(node.ready) {
            Ok(v1::Readiness::Ready) => Ready::Ready,
            Ok(v1::Readiness::NotReady) => Ready::NotReady,
            Ok(v1::Readiness::Unknown | v1::Readiness::Unspecified) | Err(_) => Ready::Unknown,
        },
        unschedulable: node.unschedulable,
        unschedulable_by: node.unschedulable_by.clone(),
        mark: Mark {
            labelled: mark.is_some_and(|mark| mark.labelled),
            tainted: mark.is_some_and(|mark| mark.tainted),
            cordoned_by_us: mark.is_some_and(|mark| mark.cordoned_by_us),
            incident: mark.map(|mark| mark.incident_id.clone()).unwrap_or_default(),
        },
        plan_revision: node.plan_revision,
        plan_rev_issued: 0,
        opted_out: node.opted_out,
        foreign_markers: node.foreign_markers.clone(),
        state_as_of: as_of,
        gone_at: None,
    })
}
