//! Faults, gaps and evidence. What one more sight is, the hub's core `admit` says.

use std::collections::{BTreeMap, BTreeSet};

use gpuheal_hub::audit::Kind;
use gpuheal_hub_core::{
    admit::{Admission, Known, Sight},
    snapshot::{Evidence, EvidenceState, KnownFault},
};
use gpuheal_proto::{
    fault::Fault as Seen,
    ids::{ClusterId, FaultKey, NodeUid, StreamId},
    limits,
    link::v1,
    time::Timestamp,
};
use serde_json::json;

use super::{Fault, Memory};
use crate::{
    mutation::Mutation,
    store::{Error, Owner},
};

/// Evidence that says the same again is written at most this often.
const EVIDENCE_REPEAT: std::time::Duration = std::time::Duration::from_secs(10);

impl Memory {
    pub(super) fn take_faults(&mut self, from: &Owner, batch: v1::FaultBatch) -> Result<v1::FaultAck, Error> {
        if batch.faults.len() > limits::BATCH_FAULTS_MAX {
            return Err(Error::Refused(format!("{} faults in one message", batch.faults.len())));
        }
        if batch.first_seq > limits::SEQ_MAX {
            return Err(Error::Refused(format!("batch of faults is not valid: no journal has a number {}", batch.first_seq)));
        }
        let stream = StreamId::parse(&batch.stream_id).map_err(|error| Error::Refused(error.to_string()))?;
        self.owns(from)?;
        let now = self.now;
        let cluster = &from.cluster;
        let acked = *self.cluster(cluster).streams.entry(stream.clone()).or_default();
        let ack = |upto| v1::FaultAck {
            stream_id: stream.to_string(),
            persisted_upto: upto,
            credit: limits::CREDIT,
            resume: batch.first_seq > upto + 1,
        };
        let end = (batch.first_seq + batch.faults.len() as u64).saturating_sub(1);
        if self.mutations.has(Mutation::AckBeforeCommit) {
            self.cluster(cluster).streams.insert(stream.clone(), acked.max(end));
            return Ok(ack(acked.max(end)));
        }
        if batch.first_seq > acked + 1 {
            return Ok(ack(acked));
        }
        let mut sights: BTreeMap<FaultKey, Sight> = BTreeMap::new();
        let (mut records, mut poison) = (0_u64, 0_u64);
        for (_, wire) in (batch.first_seq..).zip(&batch.faults).filter(|(seq, _)| *seq > acked) {
            records += 1;
            match believe(cluster, wire) {
                Some(fault) => {
                    let sight = Sight::of(fault, now);
                    let key = sight.fault.key;
                    let sight = match sights.remove(&key) {
                        Some(before) => before.and(sight),
                        None => sight,
                    };
                    sights.insert(key, sight);
                }
                None => poison += 1,
            }
        }
        let upto = acked.max(end);
        let rows = self.cluster(cluster);
        rows.streams.insert(stream.clone(), upto);
        rows.poison += poison;
        let (opened, gained) = self.admit(cluster, sights);
        if records > 0 {
            let body =
                json!({"records": records, "poison": poison, "opened": opened, "gained": gained, "stream": stream, "upto": upto});
            self.tell(cluster, Kind::FaultsIngested, &format!("spoke/{cluster}"), &format!("cluster/{cluster}"), None, &body);
        }
        Ok(ack(upto))
    }

    pub(super) fn take_gap(&mut self, from: &Owner, gap: v1::Gap) -> Result<v1::FaultAck, Error> {
        if gap.from_seq == 0 || gap.to_seq < gap.from_seq || gap.to_seq > limits::SEQ_MAX {
            return Err(Error::Refused(format!("gap is not valid: {} to {} is no range", gap.from_seq, gap.to_seq)));
        }
        let stream = StreamId::parse(&gap.stream_id).map_err(|error| Error::Refused(error.to_string()))?;
        self.owns(from)?;
        let cluster = self.cluster(&from.cluster);
        let upto = cluster.streams.entry(stream).or_default();
        let told = gap.from_seq <= *upto + 1 && gap.to_seq > *upto;
        if told {
            *upto = gap.to_seq;
        }
        let resume = gap.from_seq > *upto + 1;
        let ack = v1::FaultAck { stream_id: gap.stream_id.clone(), persisted_upto: *upto, credit: limits::CREDIT, resume };
        if told {
            cluster.gaps += 1;
            let id = &from.cluster;
            let body = json!({"records": 0, "gaps": 1, "stream": gap.stream_id, "upto": gap.to_seq});
            self.tell(id, Kind::FaultsIngested, &format!("spoke/{id}"), &format!("cluster/{id}"), None, &body);
        }
        Ok(ack)
    }

    fn admit(&mut self, cluster: &ClusterId, sights: BTreeMap<FaultKey, Sight>) -> (Vec<String>, Vec<String>) {
        let now = self.now;
        let (mut opened, mut gained) = (Vec::new(), Vec::new());
        let mut nodes = BTreeSet::new();
        for (key, sight) in sights {
            let node = sight.fault.node.uid.clone();
            let episodes = self.cluster(cluster).faults.entry(key).or_default();
            let known = episodes.last().map(known);
            match (sight.admit(known.as_ref(), now), known) {
                (Admission::Opens { episode }, _) => {
                    episodes.push(opens(episode, sight, now));
                    opened.push(format!("{key}#{episode}"));
                    nodes.insert(node);
                }
                (Admission::Gains, Some(known)) => {
                    gained.push(format!("{key}#{}", known.episode));
                    merge(episodes, sight.onto(known), now);
                    nodes.insert(node);
                }
                (Admission::Refreshes, Some(known)) => merge(episodes, sight.onto(known), now),
                (Admission::Gains | Admission::Refreshes | Admission::Repeats, _) => {}
            }
        }
        self.ask(cluster, nodes);
        (opened, gained)
    }

    pub(super) fn take_evidence(&mut self, cluster: &ClusterId, batch: &v1::EvidenceBatch) {
        let now = self.now;
        let silent = self.mutations.has(Mutation::SilenceIsHealth);
        let mut items: Vec<(FaultKey, EvidenceState, u32)> = batch.items.iter().filter_map(standing).collect();
        items.sort_by_key(|item| item.0);
        items.dedup_by_key(|item| item.0);
        let mut nodes: BTreeSet<NodeUid> = BTreeSet::new();
        for (key, state, count) in items {
            let state = if silent && state == EvidenceState::Stale { EvidenceState::Clear } else { state };
            let Some(fault) = self.cluster(cluster).faults.get_mut(&key).and_then(|episodes| episodes.last_mut()) else { continue };
            let moved = fault.known.evidence.state != state;
            if moved {
                nodes.insert(fault.node.uid.clone());
            }
            if !(moved || fault.evidence_at <= now.before(EVIDENCE_REPEAT) || count > fault.known.count) {
                continue;
            }
            fault.evidence_at = now;
            fault.known.count = fault.known.count.max(count);
            if moved {
                fault.known.evidence = Evidence { state, since: now };
            }
            if state == EvidenceState::Seen {
                fault.known.last_at = now;
            }
        }
        self.ask(cluster, nodes);
    }
}

/// A spoke speaks only for its own cluster.
fn believe(cluster: &ClusterId, wire: &v1::Fault) -> Option<Seen> {
    let fault = Seen::try_from(wire.clone()).ok()?;
    (fault.derived_key(cluster) == fault.key).then_some(fault)
}

fn standing(item: &v1::Evidence) -> Option<(FaultKey, EvidenceState, u32)> {
    let state = match v1::EvidenceState::try_from(item.state) {
        Ok(v1::EvidenceState::Seen) => EvidenceState::Seen,
        Ok(v1::EvidenceState::Clear) => EvidenceState::Clear,
        Ok(v1::EvidenceState::Stale) => EvidenceState::Stale,
        Ok(v1::EvidenceState::Unspecified) | Err(_) => return None,
    };
    Some((FaultKey::parse(&item.fault_key).ok()?, state, item.count))
}

fn known(fault: &Fault) -> Known {
    let uuid = fault.known.gpu.as_ref().and_then(|gpu| gpu.uuid.as_ref());
    Known {
        episode: fault.known.episode,
        settled: fault.settled().is_some(),
        onset: fault.onset,
        value: fault.value,
        count: fault.known.count,
        gpu_uuid: uuid.map(ToString::to_string).unwrap_or_default(),
        witnesses: fault.witnesses.clone(),
        last_at: fault.known.last_at,
        observed_at: fault.observed_at,
        evidence: fault.evidence().state,
    }
}

fn opens(episode: u32, sight: Sight, now: Timestamp) -> Fault {
    let Sight { fault, onset, value, count, witnesses } = sight;
    let known = KnownFault {
        key: fault.key,
        gpu: fault.gpu.filter(|gpu| gpu.slot.is_some() || gpu.uuid.is_some() || !gpu.model.is_empty()),
        class: fault.class,
        code: fault.code,
        episode,
        first_at: now,
        last_at: now,
        count,
        witnesses: witnesses.values().cloned().collect(),
        evidence: Evidence { state: EvidenceState::Seen, since: now },
        workload: fault.workload,
        settled: None,
    };
    Fault { known, node: fault.node, onset, value, witnesses, observed_at: fault.observed_at, evidence_at: now, asked_at: None }
}

fn merge(episodes: &mut [Fault], sight: Sight, now: Timestamp) {
    let Some(stored) = episodes.last_mut() else { return };
    let Sight { fault, onset, value, count, witnesses } = sight;
    let evidence = stored.evidence();
    if !fault.node.boot_id.is_empty() {
        stored.node.boot_id = fault.node.boot_id;
    }
    if let Some(gpu) = fault.gpu {
        let had = stored.known.gpu.get_or_insert_default();
        had.uuid = gpu.uuid.or(had.uuid.take());
        if !gpu.model.is_empty() {
            had.model = gpu.model;
        }
    }
    stored.onset = onset;
    stored.value = value;
    stored.known.count = count;
    stored.known.witnesses = witnesses.values().cloned().collect();
    stored.witnesses = witnesses;
    if !fault.workload.is_empty() {
        stored.known.workload = fault.workload;
    }
    stored.observed_at = stored.observed_at.max(fault.observed_at);
    stored.known.last_at = now;
    stored.evidence_at = now;
    let since = if evidence.state == EvidenceState::Seen { evidence.since } else { now };
    stored.known.evidence = Evidence { state: EvidenceState::Seen, since };
}
