//! Stage `derive`, the part with state: hands what the sources say to the pure detectors, keeps what they hold, journals
//! what they find before anybody hears of it. Both replicas take alerts; pages and node objects count for the leader
//! alone, and teach a standby the inventory. When the journal refuses, what was taken in is forgotten and found again.

mod again;
mod asked;
mod complain;
mod evidence;
mod nodes;
mod page;
mod telling;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use gpuheal_proto::{
    fault::NodeRef,
    ids::{ClusterId, FaultKey, NodeUid},
    link::v1,
    time::Timestamp,
};
use gpuheal_spoke_core::{
    derive::{Held, NodePart, Outcome, Settings as Detect},
    drain::{Unknown, Users},
    scrape::webhook,
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    clock,
    journal::{self, Journal, Submitted},
    metrics::{self, Metrics},
    ports::{Attachment, Audience, FaultView, GpuUsers, Leadership, Standing},
    settings::Settings,
    watch::{Nodes, Plugins, ServicePods, Touched},
};

use again::Again;
use complain::Complaints;
use evidence::Pending;
use nodes::Lookup;
use telling::Telling;

/// How often silence is looked at.
const TICK: Duration = Duration::from_secs(5);
/// Node objects are looked at for what must last before it counts twice in the shortest such span, within these bounds:
/// 5,000 nodes every second are a few milliseconds of work, and later than half a minute nobody would understand.
const NODES_EVERY_MIN: Duration = Duration::from_secs(1);
const NODES_EVERY_MAX: Duration = Duration::from_secs(30);
/// How often evidence is sent.
const EVIDENCE_EVERY: Duration = Duration::from_secs(1);
/// How often taking a storm of node changes pauses for others: changes are gathered in between.
const GATHER: Duration = Duration::from_millis(20);

/// Everything that the detectors touch.
pub struct Deps {
    /// Whose faults they are.
    pub cluster: ClusterId,
    /// Where they go.
    pub journal: Journal,
    /// When something is one.
    pub settings: Arc<Settings>,
    /// Nodes and GPU pods.
    pub nodes: Nodes,
    /// Exporter pods, by which an alert may name its node.
    pub exporters: ServicePods,
    /// When device plugins started.
    pub plugins: Arc<Plugins>,
    /// Gets nodes whose GPUs changed.
    pub touched: Arc<Touched>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// From the elector.
    pub leadership: watch::Receiver<Leadership>,
    /// From the link.
    pub attachment: watch::Receiver<Attachment>,
    /// To the link.
    pub evidence: mpsc::Sender<v1::EvidenceBatch>,
}

/// What became of a webhook's body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Faults journaled: new ones. What was known already is none.
    pub faults: usize,
    /// Alerts that said nothing new.
    pub repeats: u32,
    /// Alerts that led to nothing, by reason.
    pub skipped: BTreeMap<&'static str, u32>,
    /// Alerts that could not be read, each with its place and what belongs there.
    pub refused: Vec<String>,
    /// Alerts that the sender left out.
    pub truncated: u64,
}

/// Why a webhook's body was not taken.
#[derive(Debug, thiserror::Error)]
pub enum AlertError {
    /// The body.
    #[error(transparent)]
    Body(#[from] webhook::Error),
    /// Nodes are not known yet.
    #[error("nodes are not listed yet")]
    NotListed,
    /// It could not be kept.
    #[error(transparent)]
    Journal(#[from] journal::Error),
}

/// The detectors and what they hold.
pub struct Derive {
    deps: Deps,
    held: Mutex<Held>,
    /// Held while something is taken in and its place in the journal settled, so that the two orders are one.
    turn: tokio::sync::Mutex<()>,
    pending: Mutex<Pending>,
    /// UIDs by name, to tell which part goes when a node does.
    uids: Mutex<BTreeMap<String, NodeUid>>,
    /// Who has sent what could not be read.
    complaints: Complaints,
    /// When a webhook's body was last taken.
    alerted_at: Mutex<Option<Timestamp>>,
    /// Who was told of all, how it stands.
    told: Mutex<Option<Audience>>,
}

impl Derive {
    /// Detectors that hold what the journal held.
    #[must_use]
    pub fn new(deps: Deps, restored: BTreeMap<String, Bytes>) -> Arc<Self> {
        let mut held = Held::new(deps.cluster.clone());
        for (uid, bytes) in restored {
            if let Err(error) = held.restore(&bytes) {
                deps.metrics.inc(metrics::MEMORIES_LOST, &[]);
                tracing::error!(
                    node.uid = %uid, %error,
                    "what was held of a node is lost: its faults come as standing; those that only the kernel's log, a pod or an alert has told \
                     stay as the hub knows them, until a person releases the node"
                );
            }
        }
        held.read_clock(clock::wall(), clock::boottime());
        tracing::info!(nodes = held.nodes(), "detectors start with what the journal held");
        Arc::new(Self {
            deps,
            held: Mutex::new(held),
            turn: tokio::sync::Mutex::new(()),
            pending: Mutex::default(),
            uids: Mutex::default(),
            complaints: Complaints::default(),
            alerted_at: Mutex::default(),
            told: Mutex::default(),
        })
    }

    /// Takes a webhook's body; returns once everything that it says is on the disk, told now or before.
    ///
    /// # Errors
    /// When the body is none, or could not be kept.
    #[tracing::instrument(name = "spoke.derive", skip_all)]
    pub async fn alerts(&self, body: &[u8], now: Timestamp) -> Result<Taken, AlertError> {
        let settings = self.deps.settings.detect();
        let body = webhook::decode(body, &settings.alert_labels)?;
        if !self.deps.nodes.listed() {
            return Err(AlertError::NotListed);
        }
        self.count_malformed(&body);
        let lookup = Lookup::new(&self.deps.nodes, &self.deps.exporters);
        // Which nodes it names, found out on an empty memory: their parts can then be put back.
        Held::new(self.deps.cluster.clone()).take_alerts(&body, &lookup, &settings, now);
        let named = lookup.named();
        let outcome = self.take(&named, true, |held| held.take_alerts(&body, &lookup, &settings, now)).await?;
        *self.alerted_at.lock().expect("no holder of this lock panics") = Some(now);
        let skipped = outcome.skips.iter().map(|(skip, count)| (skip.as_str(), *count)).collect();
        let refused = body.refused.iter().map(|refused| format!("{}: expected {}", refused.path, refused.expected)).collect();
        Ok(Taken { faults: outcome.faults.len(), repeats: outcome.repeats, skipped, refused, truncated: body.truncated_alerts })
    }

    /// The wall clock's time, by which all is dated that the detectors take in. Where it was set, what they hold is moved with it.
    pub fn now(&self) -> Timestamp {
        let mut held = self.held.lock().expect("no holder of this lock panics");
        let now = clock::wall();
        let by_ms = held.read_clock(now, clock::boottime());
        if by_ms != 0 {
            let mut alerted_at = self.alerted_at.lock().expect("no holder of this lock panics");
            *alerted_at = alerted_at.map(|at| at.moved(by_ms));
            tracing::warn!(by_ms, "this machine's clock was set: the times of what the detectors hold were moved with it");
        }
        now
    }

    /// GPUs that the node's source shows.
    #[must_use]
    pub fn gpus(&self, node: &NodeUid) -> Vec<v1::GpuRef> {
        self.held.lock().expect("no holder of this lock panics").gpus(node).iter().map(Into::into).collect()
    }

    /// When a webhook was last taken.
    #[must_use]
    pub fn alerted_at(&self) -> Option<Timestamp> {
        *self.alerted_at.lock().expect("no holder of this lock panics")
    }

    /// How each source is.
    #[must_use]
    pub fn sources(&self) -> Vec<v1::SourceState> {
        let (settings, now) = (self.deps.settings.detect(), self.now());
        let held = self.held.lock().expect("no holder of this lock panics");
        held.sources(&settings, now).iter().map(Into::into).collect()
    }

    /// Alerts of a body that could not be read, while its others are used.
    fn count_malformed(&self, body: &webhook::Webhook) {
        if body.refused_total == 0 {
            return;
        }
        let count = u64::from(body.refused_total);
        self.deps.metrics.add(metrics::ALERTS_MALFORMED, &[], f64::from(body.refused_total));
        if let Some(unreadable) = self.complaints.due(&format!("webhook {}", body.receiver), count, clock::boottime()) {
            let first = body.refused.first().map(|first| format!("{}: expected {}", first.path, first.expected));
            let first = first.unwrap_or_default();
            tracing::warn!(receiver = %body.receiver, unreadable, first, "alerts of a webhook could not be read, the others were used");
        }
    }

    fn reign(&self) -> Option<u64> {
        self.deps.leadership.borrow().transitions()
    }

    fn leads(&self) -> bool {
        self.reign().is_some()
    }

    /// Takes something in and journals what it comes to. `nodes` are all whose part may change. With `wait` it returns
    /// once that, or what was known of it already, is on the disk.
    async fn take(
        &self,
        nodes: &BTreeSet<NodeUid>,
        wait: bool,
        take: impl FnOnce(&mut Held) -> Outcome,
    ) -> Result<Outcome, journal::Error> {
        let (outcome, before, submitted) = {
            let _turn = self.turn.lock().await;
            let (outcome, before, bytes) = {
                let mut held = self.held.lock().expect("no holder of this lock panics");
                let before: Vec<_> = nodes.iter().map(|uid| (uid.clone(), held.checkpoint(uid))).collect();
                let outcome = take(&mut held);
                let part = |uid: &NodeUid| (uid.to_string(), Bytes::from(held.node_bytes(uid)));
                let bytes: Vec<_> = outcome.touched.iter().map(part).collect();
                (outcome, before, bytes)
            };
            let submitted = if !outcome.faults.is_empty() || wait {
                Some(self.deps.journal.submit(&outcome.faults, bytes).await?)
            } else {
                if !bytes.is_empty() {
                    self.deps.journal.hold(bytes).await;
                }
                None
            };
            (outcome, before, submitted)
        };
        self.settled(&outcome, before, submitted).await?;
        self.told(&outcome);
        Ok(outcome)
    }

    async fn settled(
        &self,
        outcome: &Outcome,
        before: Vec<(NodeUid, Option<NodePart>)>,
        submitted: Option<Submitted>,
    ) -> Result<(), journal::Error> {
        let Some(submitted) = submitted else { return Ok(()) };
        let Err(error) = submitted.durable().await else { return Ok(()) };
        let reason = if matches!(error, journal::Error::Full { .. }) { "full" } else { "disk" };
        self.deps.metrics.inc(metrics::JOURNAL_FAILED, &[("reason", reason)]);
        tracing::error!(%error, faults = outcome.faults.len(), "faults were not journaled, they will be found again");
        let mut held = self.held.lock().expect("no holder of this lock panics");
        // What has no checkpoint, as all that time alone brings, is at least told anew.
        held.untell(&outcome.faults);
        before.into_iter().for_each(|(uid, part)| held.roll_back(&uid, part));
        Err(error)
    }

    fn told(&self, outcome: &Outcome) {
        for fault in &outcome.faults {
            let (class, witness) = (fault.class.as_str(), fault.witness.as_str());
            self.deps.metrics.inc(metrics::FAULTS, &[("class", class)]);
            tracing::info!(
                fault.id = %fault.key, node.name = %fault.node.name, class, code = %fault.code,
                onset = fault.onset.as_str(), witness, source = %fault.source, "fault found"
            );
        }
        for (skip, count) in &outcome.skips {
            self.deps.metrics.add(metrics::SIGNALS_SKIPPED, &[("reason", skip.as_str())], f64::from(*count));
        }
        if outcome.repeats > 0 {
            self.deps.metrics.add(metrics::SIGNALS_REPEATED, &[], f64::from(outcome.repeats));
        }
        self.pending.lock().expect("no holder of this lock panics").put(&outcome.evidence);
    }

    /// Takes one node object, if it is still there; forgets its part, if it was seen deleted.
    async fn node(&self, name: &str, settings: &Detect, now: Timestamp) {
        let Some(object) = self.deps.nodes.node(name) else {
            let gone = self.uids.lock().expect("no holder of this lock panics").remove(name);
            if let Some(uid) = gone {
                self.gone(uid).await;
            }
            return;
        };
        let Some(node) = nodes::node_ref(&object) else { return };
        let before = self.uids.lock().expect("no holder of this lock panics").insert(name.to_owned(), node.uid.clone());
        if let Some(before) = before.filter(|before| *before != node.uid) {
            self.gone(before).await;
        }
        if !self.leads() {
            return;
        }
        let named = [node.uid.clone()].into();
        let parts = nodes::Parts::of(&object, self.deps.plugins.started_at(name));
        let before = self.gpus(&node.uid);
        // A journal that refuses has said so; the node is looked at again.
        let _ = self.take(&named, false, |held| held.take_node(&parts.view(&node), settings, now)).await;
        // After a boot it is not known any more which board sits where.
        if self.gpus(&node.uid) != before {
            self.deps.touched.add(name);
        }
    }

    async fn gone(&self, uid: NodeUid) {
        self.held.lock().expect("no holder of this lock panics").gone(&uid);
        self.deps.journal.hold(vec![(uid.to_string(), Bytes::new())]).await;
    }

    fn node_named(&self, name: &str) -> Option<NodeRef> {
        nodes::node_ref(self.deps.nodes.node(name)?.as_ref())
    }
}

/// Looks at node objects as they change and at everything as time passes, takes up the faults that the hub asks for, and sends evidence,
/// until cancelled.
pub async fn run(
    derive: Arc<Derive>,
    touched: Arc<Touched>,
    mut asked_for: mpsc::Receiver<Vec<v1::FaultAsked>>,
    cancel: CancellationToken,
) {
    tokio::select! {
        () = cancel.cancelled() => return,
        () = derive.deps.nodes.ready() => {}
    }
    let mut ticks = tokio::time::interval(TICK);
    let mut settings = derive.deps.settings.changes();
    let mut all = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
    let mut tell = tokio::time::interval(EVIDENCE_EVERY);
    let mut again = Again::new(&derive.deps.journal);
    let mut telling = Telling::default();
    let mut leadership = derive.deps.leadership.clone();
    let mut attachment = derive.deps.attachment.clone();
    // It may have asked before all was listed.
    attachment.mark_changed();
    // The session that asked for all last, and under which epoch.
    let mut asked = None;
    // The reign in which every node object was looked at.
    let mut looked = None;
    loop {
        let mut whole = None;
        let names: BTreeSet<String> = tokio::select! {
            () = cancel.cancelled() => return,
            () = touched.wait() => {
                tokio::time::sleep(GATHER).await;
                touched.take()
            }
            () = all.as_mut() => {
                all.set(tokio::time::sleep(derive.nodes_every()));
                whole = derive.reign();
                derive.deps.nodes.nodes().iter().map(|node| node.name.to_string()).collect()
            }
            Ok(()) = settings.changed() => {
                all.set(tokio::time::sleep(Duration::ZERO));
                continue;
            }
            // While it stood by it took none of them in.
            Ok(()) = leadership.changed() => {
                all.set(tokio::time::sleep(Duration::ZERO));
                continue;
            }
            _ = ticks.tick() => {
                let (settings, now) = (derive.deps.settings.detect(), derive.now());
                let _ = derive.take(&BTreeSet::new(), false, |held| held.tick(&settings, now)).await;
                again.go_on(&derive).await;
                continue;
            }
            _ = tell.tick() => {
                derive.tell(&mut telling, again.owes_nothing(), looked, asked);
                continue;
            }
            () = again.due() => {
                again.go_on(&derive).await;
                continue;
            }
            Some(faults) = asked_for.recv() => {
                derive.take_up(faults).await;
                continue;
            }
            Ok(()) = attachment.changed() => {
                let Attachment { generation, asked_term, .. } = *attachment.borrow_and_update();
                let now = generation.filter(|_| asked_term > 0).map(|session| (session, asked_term));
                if let Some((session, _)) = now.filter(|_| now != asked) {
                    asked = now;
                    *derive.told.lock().expect("no holder of this lock panics") = None;
                    telling.owe_all(session, derive.nodes_with_faults());
                    again.owe_all(&derive);
                    again.go_on(&derive).await;
                }
                continue;
            }
        };
        let settings = derive.deps.settings.detect();
        for name in names {
            derive.node(&name, &settings, derive.now()).await;
        }
        looked = whole.or(looked);
    }
}

impl Derive {
    /// When node objects are looked at again without a change.
    fn nodes_every(&self) -> Duration {
        let settings = self.deps.settings.detect();
        let shortest = settings.holds.values().copied().fold(settings.allocatable_debounce, Duration::min);
        (shortest / 2).clamp(NODES_EVERY_MIN, NODES_EVERY_MAX)
    }

    /// Sends what gathered, while this replica leads and a hub listens. Another reign or session is told first how everything
    /// stands, node by node, so that what is new is not pushed out by it. `again_whole`: nothing is left that is to be journaled
    /// anew, of what `asked` says: a session, and the epoch under which it asked. `looked`: in which reign all node objects were
    /// looked at; until then it may not be said that all was told.
    fn tell(&self, telling: &mut Telling, again_whole: bool, looked: Option<u64>, asked: Option<(u64, u64)>) {
        let Some(audience) = self.reign().zip(self.deps.attachment.borrow().generation) else { return };
        let asked_term = asked.filter(|(session, _)| *session == audience.1).map_or(0, |(_, term)| term);
        let now = clock::boottime();
        if telling.begins(audience, self.now()) {
            self.pending.lock().expect("no holder of this lock panics").begin();
            telling.owe(self.nodes_with_faults());
        } else if telling.owes_nothing() {
            self.pending.lock().expect("no holder of this lock panics").lives(now);
        }
        while let Ok(permit) = self.deps.evidence.try_reserve() {
            self.gather(telling);
            let Some(batch) = self.pending.lock().expect("no holder of this lock panics").next(now) else {
                let (reign, session) = audience;
                let all = telling.owes_nothing() && again_whole && looked == Some(reign);
                *self.told.lock().expect("no holder of this lock panics") = all.then_some(Audience { reign, session, asked_term });
                return;
            };
            permit.send(batch);
        }
    }

    /// As if they had been told all.
    #[cfg(test)]
    pub(crate) fn told_all(&self, to: Audience) {
        *self.told.lock().expect("no holder of this lock panics") = Some(to);
    }

    /// Whether this audience was told how everything stands, and what it asked for journaled anew.
    pub fn has_told(&self, to: Audience) -> bool {
        *self.told.lock().expect("no holder of this lock panics") == Some(to)
    }

    /// Adds what is owed until a message is full.
    fn gather(&self, telling: &mut Telling) {
        while self.has_room()
            && let Some((uid, cleared)) = telling.next()
        {
            let standing = {
                let held = self.held.lock().expect("no holder of this lock panics");
                held.evidence_of(&uid, cleared.unwrap_or(Timestamp::EPOCH))
            };
            let mut pending = self.pending.lock().expect("no holder of this lock panics");
            match cleared {
                Some(_) => pending.put(&standing),
                None => pending.put_unheard(&standing),
            }
        }
    }

    fn has_room(&self) -> bool {
        self.pending.lock().expect("no holder of this lock panics").has_room()
    }

    fn nodes_with_faults(&self) -> Vec<NodeUid> {
        self.held.lock().expect("no holder of this lock panics").nodes_with_faults()
    }
}

impl FaultView for Derive {
    fn standing(&self, key: &FaultKey) -> Standing {
        use gpuheal_spoke_core::derive::Standing as Pure;
        let (settings, now) = (self.deps.settings.detect(), self.now());
        match self.held.lock().expect("no holder of this lock panics").standing(key, &settings, now) {
            Pure::Present => Standing::Present,
            Pure::Cleared => Standing::Cleared,
            Pure::Unknown => Standing::Unknown,
        }
    }
}

impl GpuUsers for Derive {
    fn users(&self, node: &NodeUid) -> Result<Users, Unknown> {
        let (settings, now) = (self.deps.settings.detect(), self.now());
        self.held.lock().expect("no holder of this lock panics").users(node, &settings, now)
    }
}

#[cfg(test)]
mod tests;
