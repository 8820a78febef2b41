//! What a cluster's leader says of its nodes. A snapshot counts, absences included, when its last part is there: its parts
//! wait in memory, and a leader that attaches elsewhere sends them all again. A change counts only on top of the state that
//! it was made for, the one numbered before it under the same leadership: on any other it would leave a state that the
//! cluster never had, and all is asked for again.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use gpuheal_proto::{
    bytes_text::clip,
    ids::{ClusterId, NodeName, NodeUid, ParseIdError},
    limits,
    link::v1,
    time::Timestamp,
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use sqlx::{PgConnection, PgPool};

use super::{Error, Origin};
use crate::{
    audit::{self, Entry, Kind, chain_of},
    metrics,
    store::{
        Labelled as _,
        judgement::judgements_ask,
        moment,
        node::{
            Config, NodeRow, StateHead, StateMove, cluster_ensure, nodes_absent, nodes_digest, nodes_gone, nodes_lock,
            nodes_of_concern, nodes_upsert, plan_revs_adopt, size_count, state_advance, state_head_lock,
        },
        session::session_hold,
        term::term_raise,
    },
};

/// Parts of one snapshot.
const PARTS_MAX: u32 = limits::SNAPSHOT_PARTS_MAX as u32;

/// The end of the year 9999: later moments are somebody's mistake, and Postgres has no room for all of them.
const MOMENT_MS_MAX: i64 = 253_402_300_799_999;

/// Nodes named in one entry of the audit, which counts them all: of at most 600 bytes each, 10 KiB.
const ASIDE_NAMED_MAX: usize = 16;

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is kept in memory until the rest of its snapshot is there.
    Part,
    /// It counts.
    Counts {
        /// A node is due to be judged by it.
        due: bool,
        /// What is held of the nodes now is not what the cluster says it told of them.
        differs: bool,
    },
    /// Something newer is known.
    PassedOver,
    /// A change of a state that is not known here, by a failover, a message that was set aside or a database that was
    /// restored: only a snapshot tells how things are.
    Unfounded,
}

/// Snapshots that have begun, by the session that tells them: what an older leader still sends touches nothing of the new one's.
#[derive(Default)]
pub(super) struct Assembly {
    open: Mutex<BTreeMap<Origin, Open>>,
}

struct Open {
    lease_transitions: u64,
    parts: u32,
    taken: Vec<v1::SnapshotPart>,
}

/// What is to be applied: all nodes, or some.
struct Change {
    lease_transitions: u64,
    seq: u64,
    as_of: Timestamp,
    told_upto: Timestamp,
    all_told_term: u64,
    whole: bool,
    nodes: Vec<v1::NodeState>,
    gone: Vec<String>,
    config: Option<v1::ClusterConfig>,
    sources: Vec<v1::SourceState>,
    digest: Option<v1::StateDigest>,
}

impl Assembly {
    /// Takes one message.
    pub(super) async fn take(&self, pool: &PgPool, from: &Origin, state: v1::ClusterState) -> Result<Taken, Error> {
        match self.change(from, state)? {
            Some(change) => apply(pool, from, change).await,
            None => Ok(Taken::Part),
        }
    }

    /// What a session has begun and will not end.
    pub(super) fn forget(&self, from: &Origin) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(from);
    }

    fn change(&self, from: &Origin, state: v1::ClusterState) -> Result<Option<Change>, Error> {
        use v1::cluster_state::Body;
        // It would count before every leader's to come.
        if state.lease_transitions > limits::REIGN_MAX {
            let why = format!("no Lease has {} transitions", state.lease_transitions);
            return Err(Error::Invalid { what: "cluster state", why });
        }
        let change = Change {
            lease_transitions: state.lease_transitions,
            seq: state.seq,
            as_of: Timestamp::from_unix_ms(state.as_of_unix_ms),
            told_upto: Timestamp::from_unix_ms(state.told_upto_unix_ms),
            all_told_term: state.all_told_term,
            whole: false,
            nodes: Vec::new(),
            gone: Vec::new(),
            config: None,
            sources: Vec::new(),
            digest: None,
        };
        match state.body {
            Some(Body::Delta(delta)) => {
                bounded(delta.changed.len())?;
                Ok(Some(Change {
                    nodes: delta.changed,
                    gone: delta.gone_uids,
                    config: delta.config,
                    sources: delta.sources,
                    digest: delta.digest,
                    ..change
                }))
            }
            Some(Body::Snapshot(part)) => {
                bounded(part.nodes.len())?;
                let Some(parts) = self.assemble(from, state.lease_transitions, part)? else { return Ok(None) };
                let mut whole = Change { whole: true, ..change };
                for part in parts {
                    whole.nodes.extend(part.nodes);
                    whole.sources.extend(part.sources);
                    whole.config = part.config.or(whole.config);
                }
                Ok(Some(whole))
            }
            None => Err(Error::Invalid { what: "cluster state", why: "it has neither snapshot nor delta".to_owned() }),
        }
    }

    /// All parts once the last is there. A first part begins anew; one out of turn forgets what was begun.
    fn assemble(
        &self,
        from: &Origin,
        lease_transitions: u64,
        part: v1::SnapshotPart,
    ) -> Result<Option<Vec<v1::SnapshotPart>>, Error> {
        if part.part == 0 || part.part > part.parts || part.parts > PARTS_MAX {
            return Err(Error::Invalid {
                what: "snapshot",
                why: format!("part {} of {}, at most {PARTS_MAX} are allowed", part.part, part.parts),
            });
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if part.part == 1 {
            open.insert(from.clone(), Open { lease_transitions, parts: part.parts, taken: Vec::new() });
        }
        let (number, parts) = (part.part, part.parts);
        let fits = |begun: &Open| {
            begun.lease_transitions == lease_transitions && begun.parts == parts && begun.taken.len() + 1 == number as usize
        };
        match open.get_mut(from) {
            Some(begun) if fits(begun) => begun.taken.push(part),
            Some(_) | None => {
                open.remove(from);
                return Err(Error::Invalid { what: "snapshot", why: format!("part {number} of {parts} is out of turn") });
            }
        }
        Ok(if number == parts { open.remove(from).map(|begun| begun.taken) } else { None })
    }
}

fn bounded(nodes: usize) -> Result<(), Error> {
    let max = limits::SNAPSHOT_NODES_MAX;
    if nodes > max { Err(Error::TooMany { what: "nodes", count: nodes, max }) } else { Ok(()) }
}

/// Whether a change was made for the state that is known, or came too late for it. A snapshot needs none; one of the same
/// leader with a lower number is of a process that has started anew.
fn unfit(change: &Change, head: &StateHead) -> Option<Taken> {
    let (told, known) = ((change.lease_transitions, change.seq), (head.lease_transitions, head.seq));
    if change.lease_transitions < head.lease_transitions {
        return Some(Taken::PassedOver);
    }
    let follows = told == (known.0, known.1 + 1) && head.seq > 0;
    if change.whole || follows {
        None
    } else if told <= known && head.seq > 0 {
        Some(Taken::PassedOver)
    } else {
        Some(Taken::Unfounded)
    }
}

async fn apply(pool: &PgPool, from: &Origin, change: Change) -> Result<Taken, Error> {
    let cluster = &from.cluster;
    let (mut rows, aside) = readable(cluster, &change.nodes);
    rows.sort_by(|one, other| one.node_uid.cmp(&other.node_uid));
    rows.dedup_by(|one, other| one.node_uid == other.node_uid);
    let mut tx = pool.begin().await.label("state.begin")?;
    cluster_ensure(&mut tx, cluster).await?;
    let mut uids: Vec<&str> = rows.iter().map(|row| row.node_uid.as_str()).collect();
    // Absences are looked up before the locks, and again under them by the statement that marks them.
    let absent = match change.whole {
        // One that could not be read may be any of those that seem to be absent.
        true if aside.is_empty() => nodes_absent(&mut tx, cluster, &uids).await?,
        true => Vec::new(),
        false => change.gone.clone(),
    };
    uids.extend(absent.iter().map(String::as_str));
    uids.sort_unstable();
    nodes_lock(&mut tx, cluster, &uids).await?;
    let head = state_head_lock(&mut tx, cluster).await?;
    // After the cluster's row, as an attach takes them.
    session_hold(&mut tx, cluster, from.session.as_ref()).await?;
    if let Some(unfit) = unfit(&change, &head) {
        let (spoke_seq, lead_term, known_seq, known_term) =
            (change.seq, change.lease_transitions, head.seq, head.lease_transitions);
        tracing::debug!(cluster.id = %cluster, spoke_seq, lead_term, known_seq, known_term, ?unfit, "a state is not taken");
        return Ok(unfit);
    }
    let now = moment::now(&mut tx).await?;
    let as_of = change.as_of.min(now);
    let changed = nodes_upsert(&mut tx, cluster, &rows, as_of, now).await?;
    let gone = nodes_gone(&mut tx, cluster, &absent, now).await?;
    let state = StateMove {
        lease_transitions: change.lease_transitions,
        seq: change.seq,
        as_of,
        told_upto: (change.told_upto > Timestamp::EPOCH).then(|| change.told_upto.min(as_of)),
        all_told_term: change.all_told_term,
        whole: change.whole,
        config: change.config.map(|config| Config {
            resource_version: config.resource_version,
            yaml: config.yaml,
            errors: config.errors,
        }),
        sources: sources(change.sources),
    };
    let taken_over = state_advance(&mut tx, cluster, &state, now).await?;
    let touched: Vec<String> = changed.iter().chain(&gone).cloned().collect();
    if !touched.is_empty() {
        size_count(&mut tx, cluster).await?;
    }
    // What waited for that is looked at now.
    let all = taken_over && !head.taken_over;
    let concern = nodes_of_concern(&mut tx, cluster, (!all).then_some(touched.as_slice())).await?;
    judgements_ask(&mut tx, &concern, "cluster state").await?;
    let mut entries = regression(&mut tx, cluster, &head).await?;
    if change.whole || !gone.is_empty() {
        entries.push(entry(cluster, &state, rows.len(), &gone));
    }
    if !aside.is_empty() {
        entries.push(unreadable(cluster, &state, &aside));
    }
    audit::append(&mut tx, chain_of(cluster), &entries, now).await?;
    let differs = match change.digest {
        Some(told) => differs(&mut tx, cluster, &told).await?,
        None => false,
    };
    tx.commit().await.label("state.commit")?;
    Ok(Taken::Counts { due: !concern.is_empty(), differs })
}

/// Whether the nodes that are held make another digest than those that were told.
async fn differs(conn: &mut PgConnection, cluster: &ClusterId, told: &v1::StateDigest) -> Result<bool, Error> {
    let held = nodes_digest(conn, cluster).await?;
    let differs = held != *told;
    if differs {
        metrics::STATE_DIFFERS.add(1);
        tracing::error!(
            cluster.id = %cluster, nodes_told = told.nodes, nodes_held = held.nodes,
            "what is held of a cluster's nodes is not what it told of them, all of it is asked for"
        );
    }
    Ok(differs)
}

/// A node that carries a higher plan revision than this database ever gave out proves that commits were lost: the epoch of
/// the database rises, and what the cluster shows is taken over. When the epoch rose since this cluster was taken over last, or
/// while its state was taken, the loss is known: raising it again for each cluster would have the whole fleet taken over as often as
/// it has clusters.
async fn regression(conn: &mut PgConnection, cluster: &ClusterId, head: &StateHead) -> Result<Vec<Entry>, Error> {
    let nodes = plan_revs_adopt(conn, cluster).await?;
    if nodes == 0 {
        return Ok(Vec::new());
    }
    if !head.adopting {
        let reason = format!("{nodes} nodes of cluster {cluster} carry plan revisions that this database never gave out");
        let raised = term_raise(conn, head.hub_term, 0, &reason, ("hub/ingest", format!("cluster/{cluster}"))).await?;
        if let Some((term, entry)) = raised {
            tracing::error!(cluster.id = %cluster, nodes, hub.term = term, "the database has lost commits: its epoch is raised");
            return Ok(vec![entry]);
        }
    }
    tracing::warn!(cluster.id = %cluster, nodes, "plan revisions that were lost with the database's commits are taken over");
    Ok(Vec::new())
}

fn entry(cluster: &ClusterId, state: &StateMove, nodes: usize, gone: &[String]) -> Entry {
    Entry {
        kind: if state.whole { Kind::InventorySnapshot } else { Kind::NodesGone },
        actor: format!("spoke/{cluster}"),
        subject: format!("cluster/{cluster}"),
        incident: None,
        body: json!({"nodes": nodes, "gone": gone, "as_of_unix_ms": state.as_of.unix_ms(), "lease_transitions": state.lease_transitions}),
    }
}

fn unreadable(cluster: &ClusterId, state: &StateMove, aside: &[Aside]) -> Entry {
    let named: Vec<&Aside> = aside.iter().take(ASIDE_NAMED_MAX).collect();
    Entry {
        kind: Kind::NodesUnreadable,
        actor: format!("spoke/{cluster}"),
        subject: format!("cluster/{cluster}"),
        incident: None,
        body: json!({"count": aside.len(), "nodes": named, "whole": state.whole, "as_of_unix_ms": state.as_of.unix_ms()}),
    }
}

/// Sources by name and node. These are keys, by which lists are paged: on one line, and no longer than the protocol has them.
fn sources(sources: Vec<v1::SourceState>) -> Map<String, Value> {
    let line = |text: &str| clip(text, limits::SOURCE_BYTES_MAX).replace(char::is_control, " ");
    let value = |source: &v1::SourceState| {
        let (state, reason) = (clip(&source.state, limits::CODE_BYTES_MAX), clip(&source.reason, limits::REASON_BYTES_MAX));
        json!({"last_seen_unix_ms": source.last_seen_unix_ms, "state": state, "reason": reason})
    };
    let key = |source: &v1::SourceState| format!("{}|{}", line(&source.source), line(&source.node));
    sources.iter().map(|source| (key(source), value(source))).collect()
}

/// A node that could not be read.
#[derive(Debug, Serialize)]
struct Aside {
    name: String,
    uid: String,
    why: String,
}

/// The nodes that can be stored, and those that cannot: one bad name must not keep a whole cluster's state from us.
fn readable(cluster: &ClusterId, nodes: &[v1::NodeState]) -> (Vec<NodeRow>, Vec<Aside>) {
    let (mut rows, mut aside) = (Vec::with_capacity(nodes.len()), Vec::new());
    for node in nodes {
        match row(node) {
            Ok(row) => rows.push(row),
            Err(error) => aside.push(Aside {
                name: clip(&node.name, limits::SOURCE_BYTES_MAX).to_owned(),
                uid: clip(&node.uid, limits::SOURCE_BYTES_MAX).to_owned(),
                why: error,
            }),
        }
    }
    if let Some(first) = aside.first() {
        metrics::SET_ASIDE.add(["node"], aside.len() as u64);
        tracing::warn!(cluster.id = %cluster, nodes = aside.len(), error = first.why, "nodes that cannot be read are set aside");
    }
    (rows, aside)
}

fn row(node: &v1::NodeState) -> Result<NodeRow, String> {
    let mark = node.mark.as_ref();
    let id = |error: ParseIdError| error.to_string();
    if node.plan_revision > limits::SEQ_MAX {
        return Err(format!("its plan revision {} was never given out", node.plan_revision));
    }
    Ok(NodeRow {
        node_uid: NodeUid::parse(&node.uid).map_err(id)?,
        node_name: NodeName::parse(&node.name).map_err(id)?,
        boot_id: node.boot_id.clone(),
        created_ms: node.created_unix_ms.clamp(0, MOMENT_MS_MAX),
        labels: json!(node.labels),
        gpus: node
            .gpus
            .iter()
            .filter_map(|gpu| gpuheal_proto::fault::GpuRef::try_from(gpu.clone()).ok())
            .map(|gpu| json!(gpu))
            .collect(),
        gpus_capacity: node.capacity_gpus.min(i32::MAX.unsigned_abs()),
        gpus_allocatable: node.allocatable_gpus.min(i32::MAX.unsigned_abs()),
        ready: match v1::Readiness::try_from(node.ready) {
            Ok(v1::Readiness::Ready) => "ready",
            Ok(v1::Readiness::NotReady) => "not_ready",
            Ok(v1::Readiness::Unknown | v1::Readiness::Unspecified) | Err(_) => "unknown",
        },
        unschedulable: node.unschedulable,
        unschedulable_by: node.unschedulable_by.clone(),
        labelled: mark.is_some_and(|mark| mark.labelled),
        tainted: mark.is_some_and(|mark| mark.tainted),
        cordoned_by_us: mark.is_some_and(|mark| mark.cordoned_by_us),
        mark_incident_id: mark.map(|mark| mark.incident_id.clone()).unwrap_or_default(),
        last_process_ms: mark.map(|mark| mark.last_process_unix_ms).filter(|ms| *ms > 0).map(|ms| ms.min(MOMENT_MS_MAX)),
        plan_revision: node.plan_revision,
        opted_out: node.opted_out,
        foreign_markers: node.foreign_markers.clone(),
        gpu_pods: node
            .gpu_pods
            .iter()
            .map(|pod| json!({"namespace": pod.namespace, "name": pod.name, "uid": pod.uid, "owner": pod.owner, "gpus": pod.gpus}))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(part: u32, parts: u32) -> v1::SnapshotPart {
        v1::SnapshotPart { part, parts, ..Default::default() }
    }

    /// One session of a replica of c1.
    fn of(generation: u64) -> Origin {
        let session = Some((gpuheal_proto::ids::ReplicaId::parse("r0").unwrap(), generation));
        Origin { cluster: ClusterId::parse("c1").unwrap(), session }
    }

    #[test]
    fn what_an_older_session_still_sends_costs_the_new_one_nothing_of_its_snapshot() {
        let (assembly, old, new) = (Assembly::default(), of(1), of(2));
        assert!(assembly.assemble(&old, 1, part(1, 3)).unwrap().is_none());
        assert!(assembly.assemble(&new, 2, part(1, 2)).unwrap().is_none());
        assert!(assembly.assemble(&old, 1, part(2, 3)).unwrap().is_none(), "its own goes on");
        assert!(assembly.assemble(&old, 1, part(2, 3)).is_err(), "out of turn");
        assert_eq!(assembly.assemble(&new, 2, part(2, 2)).unwrap().unwrap().len(), 2);
    }

    #[test]
    fn what_a_session_began_is_forgotten_when_it_ends() {
        let assembly = Assembly::default();
        assert!(assembly.assemble(&of(1), 1, part(1, 2)).unwrap().is_none());
        assembly.forget(&of(1));
        assert!(assembly.open.lock().unwrap().is_empty());
    }

    #[test]
    fn a_state_of_a_reign_that_no_lease_can_have_outranks_no_leader_to_come() {
        let state = |lease_transitions| v1::ClusterState {
            lease_transitions,
            seq: 1,
            body: Some(v1::cluster_state::Body::Delta(v1::StateDelta::default())),
            ..Default::default()
        };
        let assembly = Assembly::default();
        assert!(assembly.change(&of(1), state(limits::REIGN_MAX)).is_ok_and(|change| change.is_some()));
        assert!(assembly.change(&of(1), state(limits::REIGN_MAX + 1)).is_err());
        assert!(assembly.change(&of(1), state(u64::MAX)).is_err());
    }

    #[test]
    fn a_snapshot_counts_when_its_last_part_is_there() {
        let (assembly, cluster) = (Assembly::default(), of(1));
        assert!(assembly.assemble(&cluster, 1, part(1, 3)).unwrap().is_none());
        assert!(assembly.assemble(&cluster, 1, part(2, 3)).unwrap().is_none());
        assert_eq!(assembly.assemble(&cluster, 1, part(3, 3)).unwrap().unwrap().len(), 3);
    }

    #[test]
    fn parts_of_two_leaders_never_make_one_snapshot() {
        let (assembly, cluster) = (Assembly::default(), of(1));
        assert!(assembly.assemble(&cluster, 1, part(1, 2)).unwrap().is_none());
        assert!(assembly.assemble(&cluster, 2, part(2, 2)).is_err());
        assert!(assembly.assemble(&cluster, 1, part(2, 2)).is_err(), "what was begun is forgotten");
    }

    #[test]
    fn a_first_part_begins_anew_and_endless_parts_are_refused() {
        let (assembly, cluster) = (Assembly::default(), of(1));
        assert!(assembly.assemble(&cluster, 1, part(1, 2)).unwrap().is_none());
        assert!(assembly.assemble(&cluster, 1, part(1, 2)).unwrap().is_none());
        assert!(assembly.assemble(&cluster, 1, part(2, 2)).unwrap().is_some());
        assert!(assembly.assemble(&cluster, 1, part(1, PARTS_MAX + 1)).is_err());
        assert!(assembly.assemble(&cluster, 1, part(0, 1)).is_err());
    }

    #[test]
    fn a_change_counts_only_on_the_state_that_it_was_made_for() {
        let change = |lease_transitions, seq, whole| Change {
            lease_transitions,
            seq,
            as_of: Timestamp::EPOCH,
            told_upto: Timestamp::EPOCH,
            all_told_term: 0,
            whole,
            nodes: Vec::new(),
            gone: Vec::new(),
            config: None,
            sources: Vec::new(),
            digest: None,
        };
        let head = |lease_transitions, seq| StateHead { lease_transitions, seq, adopting: false, taken_over: true, hub_term: 1 };
        let unfit = |lease, seq, whole, head| super::unfit(&change(lease, seq, whole), &head);
        assert_eq!(unfit(2, 8, false, head(2, 7)), None);
        assert_eq!(unfit(2, 9, false, head(2, 7)), Some(Taken::Unfounded), "one between was set aside");
        assert_eq!(unfit(2, 900, false, head(2, 7)), Some(Taken::Unfounded), "the database was restored");
        assert_eq!(unfit(3, 8, false, head(2, 7)), Some(Taken::Unfounded), "another leader's numbers");
        assert_eq!(unfit(2, 1, false, head(0, 0)), Some(Taken::Unfounded), "nothing is known yet");
        assert_eq!(unfit(2, 7, false, head(2, 7)), Some(Taken::PassedOver));
        assert_eq!(unfit(1, 8, false, head(2, 7)), Some(Taken::PassedOver), "an older leader's");
        assert_eq!(unfit(1, 9, true, head(2, 7)), Some(Taken::PassedOver));
        assert_eq!(unfit(2, 1, true, head(2, 7)), None, "a process that started anew");
        assert_eq!(unfit(3, 4, true, head(2, 7)), None);
    }
}
