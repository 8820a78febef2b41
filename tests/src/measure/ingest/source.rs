//! A session that sends distinct faults as a plan says, within the hub's credit, and notes when each batch was acked.

use std::{collections::VecDeque, time::Duration};

use anyhow::{Result, bail};
use gpuheal_proto::{
    ids::{ClusterId, FaultKey, GpuPlace, GpuSlot, NodeUid},
    limits,
    link::v1::{self, attach_request::Message as Up, attach_response::Message as Down},
};
use tokio::time::{Instant, MissedTickBehavior, sleep_until};

use crate::{
    measure::simulated::{End, Link, Replica, beat, gpu_of, gpus, node, now_ms, request, wait_after},
    seed::Seeded,
};

/// Attaches that are tried before the run is called broken.
const ATTEMPTS: u32 = 8;

/// Where faults come from: one cluster's leader, and the number of its next fault.
pub(super) struct Source {
    replica: Replica,
    cluster: ClusterId,
    next: u64,
    seeded: Seeded,
}

/// A batch to be sent, no sooner than it is due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    pub(super) at: Instant,
    pub(super) faults: u64,
}

/// A batch that was acked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acked {
    pub(super) faults: u64,
    /// From the moment at which it was due, or, where all is due at once, at which it was sent.
    pub(super) took: Duration,
    pub(super) at: Instant,
}

impl Source {
    pub(super) fn new(replica: Replica, seed: u64) -> Result<Self> {
        let cluster = ClusterId::parse(&replica.cluster)?;
        Ok(Self { replica, cluster, next: 0, seeded: Seeded::new(seed) })
    }

    /// Attaches with a stream of its own and tells the hub of the cluster's nodes.
    pub(super) async fn attach(&mut self, hub: &str, stream: &str) -> Result<Link> {
        for failures in 0..ATTEMPTS {
            let end = match self.replica.attach(hub, &[stream.to_owned()]).await {
                Ok(link) => {
                    let _ended = link.up.send(self.replica.snapshot(link.welcome.hub_term));
                    return Ok(link);
                }
                Err(end) => end,
            };
            tokio::time::sleep(wait_after(&end, failures, self.seeded.next() as f64 / u64::MAX as f64)).await;
            if let (End::Failed(error), true) = (end, failures + 1 == ATTEMPTS) {
                return Err(error.context("attaching"));
            }
        }
        bail!("the hub let a session wait {ATTEMPTS} times")
    }

    /// Plays a plan on an attached session until all of it is acked. `paced` counts the wait for credit as the hub's.
    pub(super) async fn play(&mut self, link: Link, stream: &str, mut plan: VecDeque<Due>, paced: bool) -> Result<Vec<Acked>> {
        let every = link.heartbeat();
        let Link { up, mut down, welcome } = link;
        let mut beats = tokio::time::interval_at(Instant::now() + every, every);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut credit, mut sent_upto, mut acked_upto, mut n) = (u64::from(welcome.credit), 0_u64, 0_u64, 0);
        let mut flying = VecDeque::<(u64, u64, Instant)>::new();
        let mut acked = Vec::with_capacity(plan.len());
        loop {
            // One moment for both looks: what is due is either sent or waits for credit, which an ack brings.
            let now = Instant::now();
            while let Some(due) = plan.front().copied()
                && due.at <= now
                && sent_upto - acked_upto + due.faults <= credit
            {
                plan.pop_front();
                let from = if paced { due.at } else { now };
                let batch = self.batch(stream, sent_upto + 1, due.faults);
                sent_upto += due.faults;
                flying.push_back((sent_upto, due.faults, from));
                if up.send(batch).is_err() {
                    bail!("the hub ended the stream");
                }
            }
            if plan.is_empty() && flying.is_empty() {
                return Ok(acked);
            }
            let next = plan.front().map(|due| due.at).filter(|at| *at > now);
            tokio::select! {
                message = down.message() => match message?.and_then(|message| message.message) {
                    Some(Down::FaultAck(ack)) => {
                        let now = Instant::now();
                        (acked_upto, credit) = (acked_upto.max(ack.persisted_upto), ack.credit.into());
                        while let Some((upto, faults, from)) = flying.front().copied() && upto <= acked_upto {
                            flying.pop_front();
                            acked.push(Acked { faults, took: now.saturating_duration_since(from), at: now });
                        }
                    }
                    Some(Down::Throttle(throttle)) => credit = throttle.credit.into(),
                    Some(Down::Goaway(goaway)) => bail!("the hub sent a session away: {}", goaway.reason),
                    Some(_) => {}
                    None => bail!("the hub ended the stream"),
                },
                () = sleep_until(next.unwrap_or(now)), if next.is_some() => {}
                _ = beats.tick() => {
                    n += 1;
                    let _ended = up.send(beat(n, self.replica.lease()));
                }
            }
        }
    }

    fn batch(&mut self, stream: &str, first_seq: u64, faults: u64) -> v1::AttachRequest {
        debug_assert!(faults as usize <= limits::BATCH_FAULTS_MAX, "the plan keeps the protocol's limit");
        let faults = (0..faults).map(|_| self.fault()).collect();
        request(Up::FaultBatch(v1::FaultBatch { stream_id: stream.to_owned(), first_seq, faults }))
    }

    /// No two are the same: nodes go round first, then GPUs, then codes.
    fn fault(&mut self) -> v1::Fault {
        let (nodes, number) = (self.replica.nodes as u64, self.next);
        self.next += 1;
        let at = (number % nodes) as usize;
        let slot = (number / nodes % u64::from(gpus())) as u32;
        let code = (1 + number / nodes / u64::from(gpus())).to_string();
        let (node, gpu) = (node(&self.replica.cluster, at), gpu_of(&self.replica.cluster, at, slot));
        let (uid, place) = (NodeUid::parse(&node.uid), GpuSlot::parse(&gpu.slot).ok().map(GpuPlace::Slot));
        let key = uid.ok().map(|uid| FaultKey::derive(&self.cluster, &uid, place.as_ref(), "xid", &code));
        v1::Fault {
            fault_key: key.map(|key| key.to_string()).unwrap_or_default(),
            node: Some(node),
            gpu: Some(gpu),
            class: v1::FaultClass::Xid.into(),
            detail: format!("DCGM_FI_DEV_XID_ERRORS says {code} on GPU {slot}"),
            code,
            onset: v1::Onset::Edge.into(),
            witness: v1::Witness::ExporterGauge.into(),
            observed_unix_ms: now_ms(),
            count: 1,
            source: format!("exporter 10.{}.{}.7:9400", at / 250, at % 250),
            workload: format!("train/job-{at}-0"),
            ..v1::Fault::default()
        }
    }
}
