//! What the leader tells of its cluster: a snapshot at each new session, reign or request, then what changed, and a word
//! that nothing did while its watches are fresh.

use std::{collections::BTreeMap, time::Duration};

use gpuheal_proto::{
    ids::FaultKey,
    kubernetes::{ANNOTATION_PROCESS_ID, LABEL_OPT_OUT, LABEL_STATUS, STATUS_FAULTY},
    limits,
    link::v1::{self, attach_request::Message as Up, cluster_state::Body},
    state_digest::{NodeWord, digest},
    time::Timestamp,
};
use gpuheal_spoke::{
    ports::Audience,
    state::{Reach, Whole},
};
use gpuheal_spoke_core::{
    derive::{Evidence, EvidenceState},
    mark::node::is_ours,
    release::{Cordon, cordon},
    verify::marker,
};

use super::{Out, Spoke, cache::shown};
use crate::api::NodeObject;

/// A quiet cluster says so this often.
const QUIET: Duration = Duration::from_secs(30);
/// A watch that was not heard for longer is not fresh.
const FRESH: Duration = Duration::from_secs(90);

/// A word that was told in a session that still lives so much later has arrived.
const ARRIVED_AFTER: Duration = Duration::from_secs(225);
/// What has cleared within it is told by a process that has just started.
const CLEARED_KEPT: Duration = Duration::from_secs(3600);

/// What was told.
#[derive(Debug, Default)]
pub(super) struct Told {
    audience: Option<(Audience, u64)>,
    nodes: BTreeMap<String, v1::NodeState>,
    pub(super) config: String,
    config_told: String,
    /// Something that is told may have changed since.
    pub(super) dirty: bool,
    seq: u64,
    said: Duration,
    pub(super) looked_at: Duration,
    /// Reign and session to which evidence was told last.
    evidence: Option<(u64, u64)>,
    /// Words that a fault has cleared, with when each was told.
    unsure: BTreeMap<FaultKey, Duration>,
    /// In which reign each node's exporter was asked last.
    pub(super) asked: BTreeMap<String, u64>,
    /// Faults found by this process.
    pub(super) found: u64,
    /// Faults that waited when it was first asked how many do.
    waited: Option<u64>,
    reach: Reach<(Audience, u64)>,
    /// The hub asked for what stands when another replica led.
    pub(super) owed_by_leader: bool,
    whole: Whole<(Audience, u64)>,
}

impl Spoke {
    pub(super) fn state_tick(&mut self) {
        let Some(to) = self.audience().filter(|_| self.cache.listed) else {
            self.told.audience = None;
            return;
        };
        let Some(as_of) = self.as_of() else { return };
        let told_upto = self.told_upto((to, self.wanted.snapshots));
        let all_told_term = if self.all_told((to, self.wanted.snapshots)) { to.asked_term } else { 0 };
        let audience = Some((to, self.wanted.snapshots));
        let news = all_told_term > 0 && !self.told.whole.said;
        let quiet = self.now.boot.saturating_sub(self.told.said) >= QUIET;
        if self.told.audience == audience && !self.told.dirty && !quiet && !news {
            return;
        }
        self.told.dirty = false;
        let nodes: BTreeMap<String, v1::NodeState> =
            self.cache.nodes.iter().map(|(name, node)| (name.clone(), self.node_state(node))).collect();
        let config = (self.told.config != self.told.config_told || self.told.audience != audience)
            .then(|| v1::ClusterConfig { yaml: self.told.config.clone(), ..v1::ClusterConfig::default() });
        let body = if self.told.audience == audience {
            let told = &self.told.nodes;
            let changed: Vec<_> = nodes.values().filter(|node| told.get(&node.name) != Some(node)).cloned().collect();
            let still = |node: &&v1::NodeState| nodes.values().any(|now| now.uid == node.uid);
            let gone_uids: Vec<_> = told.values().filter(|node| !still(node)).map(|node| node.uid.clone()).collect();
            let nothing = changed.is_empty() && gone_uids.is_empty() && config.is_none();
            let fresh = self.now.boot.saturating_sub(self.cache.heard) <= FRESH;
            if nothing && !news && !(quiet && fresh) {
                return;
            }
            let digest = Some(digest(nodes.values().map(|node| NodeWord::from(node).share())));
            Body::Delta(v1::StateDelta { changed, gone_uids, config, digest, ..v1::StateDelta::default() })
        } else {
            let nodes = nodes.values().cloned().collect();
            Body::Snapshot(v1::SnapshotPart { part: 1, parts: 1, nodes, config, ..v1::SnapshotPart::default() })
        };
        self.told.audience = audience;
        self.told.nodes = nodes;
        self.told.config_told.clone_from(&self.told.config);
        self.told.seq += 1;
        self.told.said = self.now.boot;
        self.told.whole.said |= all_told_term > 0;
        let state = v1::ClusterState {
            lease_transitions: to.reign,
            seq: self.told.seq,
            as_of_unix_ms: as_of.unix_ms(),
            told_upto_unix_ms: told_upto.map_or(0, |upto| upto.min(as_of).unix_ms()),
            all_told_term,
            body: Some(body),
        };
        self.out.push(Out::Up(Up::ClusterState(state)));
    }

    /// Never newer than what was seen: hub time, less the age of the watch and the clock's uncertainty.
    fn as_of(&self) -> Option<Timestamp> {
        let now = self.clock?.at(self.now.boot);
        let age = self.now.boot.saturating_sub(self.cache.heard);
        Some(now.at.before(age + now.uncertainty))
    }

    /// Up to which moment, by the hub's clock, it has been told all that the sources showed.
    fn told_upto(&mut self, audience: (Audience, u64)) -> Option<Timestamp> {
        if !self.has_told(audience.0) {
            self.told.reach.unknown();
            return None;
        }
        let unacked = self.disk.unacked() + u64::from(self.disk.unsynced());
        let found = *self.told.waited.get_or_insert(unacked) + self.told.found;
        let upto = self.told.reach.look(audience, self.now.boot, found, unacked)?;
        let now = self.clock?.at(self.now.boot);
        Some(now.at.before(self.now.boot.saturating_sub(upto) + now.uncertainty))
    }

    /// Every exporter was asked in this reign, and all that stands was told to this session.
    fn has_told(&self, to: Audience) -> bool {
        let looked = self.cache.nodes.keys().all(|node| self.told.asked.get(node) == Some(&to.reign));
        looked && !self.told.owed_by_leader && self.told.evidence == Some((to.reign, to.session))
    }

    /// Whether the hub has acked all that it asks for when it asks for everything, beside the snapshot.
    fn all_told(&mut self, audience: (Audience, u64)) -> bool {
        let on_record = self.pending.is_empty() && self.running.keys().all(|id| self.cache.actions.contains_key(&id.to_string()));
        let told = on_record && self.has_told(audience.0) && self.owed.whole_for() == Some(audience.0);
        let unacked = self.disk.unacked() + u64::from(self.disk.unsynced());
        let found = *self.told.waited.get_or_insert(unacked) + self.told.found;
        self.told.whole.look(Some(audience), told, found, unacked)
    }

    fn node_state(&self, node: &NodeObject) -> v1::NodeState {
        let facts = &node.facts;
        let uid = gpuheal_proto::ids::NodeUid::parse(&facts.uid).ok();
        let gpus = uid.map(|uid| self.held.gpus(&uid)).unwrap_or_default();
        let labelled = facts.label(LABEL_STATUS) == Some(STATUS_FAULTY);
        let tainted = facts.taints.iter().any(is_ours);
        let cordoned = facts.unschedulable.unwrap_or(false);
        let cordoned_by_us = cordoned && cordon(&shown(node).unschedulable_by, self.cordon_is_ours(&facts.uid)) == Cordon::Ours;
        v1::NodeState {
            name: facts.name.clone(),
            uid: facts.uid.clone(),
            boot_id: facts.boot_id.clone(),
            created_unix_ms: node.created_at.unix_ms(),
            labels: [("pool".to_owned(), facts.label("pool").unwrap_or_default().to_owned())].into(),
            gpus: gpus.iter().map(Into::into).collect(),
            capacity_gpus: node.gpus,
            allocatable_gpus: node.gpus,
            ready: v1::Readiness::Ready.into(),
            unschedulable: cordoned,
            unschedulable_by: if cordoned { node.unschedulable_by.clone() } else { String::new() },
            mark: (labelled || tainted || cordoned_by_us).then(|| v1::Mark {
                labelled,
                tainted,
                cordoned_by_us,
                incident_id: facts.annotation(ANNOTATION_PROCESS_ID).unwrap_or_default().to_owned(),
                last_process_unix_ms: 0,
            }),
            plan_revision: facts.plan_revision().unwrap_or(0),
            opted_out: facts.label(LABEL_OPT_OUT).is_some_and(|value| value != "false"),
            foreign_markers: marker::all(facts),
            ..v1::NodeState::default()
        }
    }

    /// What gathered about known faults, while this replica leads and a hub listens. Another session or reign is told first
    /// how everything stands, and what has cleared since the hub is sure to have heard.
    pub(super) fn tell_evidence(&mut self) {
        let audience = self.reign().zip(self.session.as_ref().map(|session| session.generation));
        let Some(audience) = audience else { return };
        let boot = self.now.boot;
        if self.told.evidence == Some(audience) {
            let waits = &self.evidence;
            self.told.unsure.retain(|key, told| waits.contains_key(key) || boot.saturating_sub(*told) < ARRIVED_AFTER);
        } else {
            self.tell_standing();
            self.told.evidence = Some(audience);
        }
        while !self.evidence.is_empty() {
            let mut items = Vec::new();
            while items.len() < limits::EVIDENCE_MAX
                && let Some((key, item)) = self.evidence.pop_first()
            {
                if item.state() == v1::EvidenceState::Clear {
                    self.told.unsure.insert(key, boot);
                } else {
                    self.told.unsure.remove(&key);
                }
                items.push(item);
            }
            self.out.push(Out::Up(Up::Evidence(v1::EvidenceBatch { items })));
        }
    }

    fn tell_standing(&mut self) {
        let first = self.told.evidence.is_none();
        let since = if first { self.now.wall.before(CLEARED_KEPT) } else { Timestamp::EPOCH };
        let unsure = &self.told.unsure;
        let unheard = |item: &Evidence| first || item.state != EvidenceState::Clear || unsure.contains_key(&item.key);
        let nodes = self.held.nodes_with_faults();
        let standing = nodes.iter().flat_map(|uid| self.held.evidence_of(uid, since)).filter(unheard);
        for evidence in standing.collect::<Vec<_>>() {
            self.evidence.insert(evidence.key, (&evidence).into());
        }
    }
}
