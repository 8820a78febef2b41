//! What this spoke says: control before statuses before bulk, yet bulk at least once in sixteen. Heartbeats go out on
//! time and at once when the leadership changes, however much else waits. Sizes are looked at where messages are made; one over the
//! limit that comes here all the same is a defect: it is set aside and counted, and blocks nothing.

use std::time::Duration;

use futures::FutureExt as _;
use gpuheal_proto::{
    limits,
    link::v1::{self, attach_request::Message},
};
use prost::Message as _;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, Interval, MissedTickBehavior},
};

use super::{
    Deps, End, Error, Lanes,
    session::{Shared, wire_head},
    waiting::Waiting,
};
use crate::{
    clock, metrics,
    ports::{Attachment, Leadership, Seen},
    send,
};

/// Urgent messages in a row before bulk has its turn.
const URGENT_RUN_MAX: u32 = 15;

/// A sign of life, with all that it says of this replica.
pub(super) fn heartbeat(deps: &Deps) -> v1::Heartbeat {
    let (depth, head) = (*deps.journal.depth().borrow(), deps.journal.head().borrow().clone());
    // A copy: two looks at it are two moments, and a lock that is held while it is taken again waits for ever.
    let seen = deps.seen.borrow().clone();
    v1::Heartbeat {
        wall_unix_ms: clock::wall().unix_ms(),
        queue_depth: u32::try_from(depth.unacked).unwrap_or(u32::MAX),
        lease_transitions: proof(deps, &seen),
        hub_term_seen: seen.hub_term,
        cmd_seq_seen: seen.cmd_seq,
        cmd_id_seen: seen.cmd_id,
        head: Some(wire_head(&head.stream, head.next_seq)),
        ..v1::Heartbeat::default()
    }
}

/// The proof of leadership, once this replica knows all that its cluster has seen: a hub whose database lost commits must learn
/// of them before it commands anything on the strength of it.
pub(super) fn proof(deps: &Deps, seen: &Seen) -> Option<u64> {
    deps.leadership.borrow().transitions().filter(|reign| seen.whole_in == Some(*reign))
}

/// What a heartbeat may have to tell at once.
struct News {
    leadership: watch::Receiver<Leadership>,
    seen: watch::Receiver<Seen>,
    attachment: watch::Receiver<Attachment>,
}

impl News {
    fn of(deps: &Deps) -> Self {
        Self { leadership: deps.leadership.clone(), seen: deps.seen.clone(), attachment: deps.attachment.subscribe() }
    }

    /// Whether there is any, once. Whose sender is gone says nothing new.
    fn take(&mut self) -> bool {
        let is = self.leadership.has_changed().unwrap_or(false)
            || self.seen.has_changed().unwrap_or(false)
            || self.attachment.has_changed().unwrap_or(false);
        self.leadership.mark_unchanged();
        self.seen.mark_unchanged();
        self.attachment.mark_unchanged();
        is
    }

    /// Until there is some.
    async fn wait(&mut self) {
        tokio::select! {
            Ok(()) = self.leadership.changed() => {}
            Ok(()) = self.seen.changed() => {}
            Ok(()) = self.attachment.changed() => {}
            else => std::future::pending().await,
        }
    }
}

/// The writing loop.
pub(super) struct Outbound<'a> {
    deps: &'a Deps,
    shared: &'a Shared,
    waiting: &'a Waiting,
    /// What the session before asked and was not answered.
    again: Vec<v1::Process>,
    control: mpsc::Receiver<Message>,
    wire: mpsc::Sender<v1::AttachRequest>,
    ticks: Interval,
    beats: u64,
    /// What the last beat said of leadership.
    proof_told: Option<u64>,
    /// The epoch under which the hub had asked for all when it was last told of leadership.
    asked: u64,
    urgent_run: u32,
}

impl<'a> Outbound<'a> {
    pub(super) fn new(
        deps: &'a Deps,
        shared: &'a Shared,
        waiting: &'a Waiting,
        control: mpsc::Receiver<Message>,
        wire: mpsc::Sender<v1::AttachRequest>,
        heartbeat: Duration,
    ) -> Self {
        // The first beat at once: it carries the leadership as it is after Hello.
        let mut ticks = tokio::time::interval(heartbeat.mul_f64(0.8 + 0.4 * crate::chance::chance(1.0)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (again, asked) = (waiting.unanswered(), deps.attachment.borrow().asked_term);
        Self { deps, shared, waiting, again, control, wire, ticks, beats: 0, proof_told: None, asked, urgent_run: 0 }
    }

    /// Until the stream takes nothing more.
    pub(super) async fn run(mut self, lanes: &mut Lanes) -> End {
        let mut head = self.deps.journal.head();
        let mut news = News::of(self.deps);
        loop {
            match self.next(lanes, &mut news).await {
                Err(error) => return End::Failed(error),
                Ok(Some(message)) => {
                    if let Err(error) = self.put(message).await {
                        return End::Failed(error);
                    }
                    continue;
                }
                Ok(None) => {}
            }
            // Nothing is ready: wait for whatever comes first.
            let message = tokio::select! {
                Some(message) = self.control.recv() => Some(message),
                Some(status) = lanes.statuses.recv() => Some(Message::CommandStatus(status)),
                Some(ask) = lanes.asks.recv() => self.waiting.ask(ask).map(Message::Process),
                Some(state) = lanes.states.recv() => self.state(state),
                Some(batch) = lanes.evidence.recv() => Some(Message::Evidence(batch)),
                Ok(()) = head.changed() => None,
                () = self.shared.moved.notified() => None,
                () = news.wait() => self.beat_if_news(),
                _ = self.ticks.tick() => match self.alive() {
                    Ok(()) => Some(self.beat()),
                    Err(error) => return End::Failed(error),
                },
            };
            if let Some(message) = message
                && let Err(error) = self.put(message).await
            {
                return End::Failed(error);
            }
        }
    }

    /// What goes out now: first what has its time, which no traffic may hold up, or a hub would take us for dead, and us for a
    /// standby, while we say so much.
    async fn next(&mut self, lanes: &mut Lanes, news: &mut News) -> Result<Option<Message>, Error> {
        if self.ticks.tick().now_or_never().is_some() {
            self.alive()?;
            return Ok(Some(self.beat()));
        }
        if news.take()
            && let Some(beat) = self.beat_if_news()
        {
            return Ok(Some(beat));
        }
        self.ready(lanes).await
    }

    /// What can be sent without waiting.
    async fn ready(&mut self, lanes: &mut Lanes) -> Result<Option<Message>, Error> {
        if self.urgent_run < URGENT_RUN_MAX
            && let Some(message) = self.urgent(lanes)
        {
            self.urgent_run += 1;
            return Ok(Some(message));
        }
        self.urgent_run = 0;
        if let Some(message) = self.bulk(lanes).await? {
            return Ok(Some(message));
        }
        Ok(self.urgent(lanes))
    }

    fn urgent(&mut self, lanes: &mut Lanes) -> Option<Message> {
        if let Ok(message) = self.control.try_recv() {
            return Some(message);
        }
        if let Ok(status) = lanes.statuses.try_recv() {
            return Some(Message::CommandStatus(status));
        }
        if let Some(process) = self.again.pop() {
            return Some(Message::Process(process));
        }
        while let Ok(ask) = lanes.asks.try_recv() {
            if let Some(process) = self.waiting.ask(ask) {
                return Some(Message::Process(process));
            }
        }
        None
    }

    /// Faults first, then evidence, then the cluster's state, which says up to when all of that was told. Evidence comes once a
    /// second at most.
    async fn bulk(&self, lanes: &mut Lanes) -> Result<Option<Message>, Error> {
        if let Some(message) = send::next(&self.shared.outbox, &self.deps.journal).await? {
            return Ok(Some(message));
        }
        if let Ok(evidence) = lanes.evidence.try_recv() {
            return Ok(Some(Message::Evidence(evidence)));
        }
        while let Ok(state) = lanes.states.try_recv() {
            if let Some(message) = self.state(state) {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// State made for an earlier session is old: a snapshot for this one is on its way.
    fn state(&self, (generation, state): (u64, v1::ClusterState)) -> Option<Message> {
        let current = self.deps.attachment.borrow().generation == Some(generation);
        current.then_some(Message::ClusterState(state))
    }

    fn beat(&mut self) -> Message {
        self.beats += 1;
        let beat = heartbeat(self.deps);
        self.proof_told = beat.lease_transitions;
        Message::Heartbeat(v1::Heartbeat { n: self.beats, ..beat })
    }

    /// What else was seen goes with the next beat in its time, unless the hub asks for all that there is.
    fn beat_if_news(&mut self) -> Option<Message> {
        let seen = self.deps.seen.borrow().clone();
        let asked = self.deps.attachment.borrow().asked_term;
        let news = proof(self.deps, &seen) != self.proof_told || asked != self.asked;
        self.asked = asked;
        news.then(|| self.beat())
    }

    /// Faults in flight must be acked in time, unless the hub says that it is busy.
    fn alive(&self) -> Result<(), Error> {
        let in_flight = self.shared.outbox.lock().expect("no holder of this lock panics").in_flight();
        let mut progress = self.shared.progress.lock().expect("no holder of this lock panics");
        if progress.is_stuck(in_flight, Instant::now()) { Err(Error::NoProgress { in_flight }) } else { Ok(()) }
    }

    async fn put(&self, message: Message) -> Result<(), Error> {
        let request = v1::AttachRequest { message: Some(message) };
        let bytes = request.encoded_len();
        if bytes > limits::MESSAGE_BYTES_MAX {
            tracing::error!(bytes, "message over the limit set aside");
            self.deps.metrics.inc(metrics::LINK_DROPPED, &[("reason", "too large"), ("lane", "up")]);
            return Ok(());
        }
        // Nothing is read for as long as it takes to be dead: then nobody is there.
        let dead_after = self.deps.config.dead_after;
        match tokio::time::timeout(dead_after, self.wire.send(request)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Error::Ended),
            Err(_) => Err(Error::Silent(dead_after)),
        }
    }
}
