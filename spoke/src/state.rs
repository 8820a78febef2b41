//! What the hub knows of this cluster: a snapshot after each attach, change of leadership or Resync, then what changed,
//! gathered for at most 50 ms, and now and then that nothing did. Only the leader says it. A node leaves when its object
//! was seen deleted; a read that failed removes nothing. Each message says of which moment it is, by the hub's clock:
//! never later than the watch of nodes was heard. Of what was told no more is kept than tells it from what is so now.

mod config;
mod node;
mod parts;
mod reach;
mod sources;
mod told;
mod whole;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use gpuheal_proto::{bytes_text::clip, ids::NodeUid, limits, link::v1, time::Timestamp};
use prost::Message as _;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use v1::cluster_state::Body;

use crate::{
    ceiling::Flags,
    clock::{self, HubClock},
    derive::Derive,
    journal::Depth,
    link::{TooLarge, fits},
    metrics::{self, Metrics},
    ports::{self, Attachment, Leadership, LocalConfig, Seen},
    scrape::Rounds,
    settings::Settings,
    watch::{Heard, NodeEntry, Nodes, Touched},
};

use parts::Part;
use told::{News, Told};

pub use node::{is_gpu_node, node_state};
pub use reach::Reach;
pub use whole::Whole;

/// How long changes are gathered: an eviction of eight pods is one message.
const GATHER: Duration = Duration::from_millis(50);
/// Errors of the ConfigMap that are told.
const ERRORS_MAX: usize = 32;

/// How often something is done that no event asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cadence {
    /// Sources are looked at for a change.
    pub look: Duration,
    /// A quiet cluster says that it is.
    pub quiet: Duration,
    /// A change comes with the digest of all that was told.
    pub digest: Duration,
}

impl Default for Cadence {
    /// A look every 5 s; a word when there was none for 20 s, so that with the look before it no silence lasts 30 s. A digest every
    /// five minutes: the hub reads all of the cluster's nodes for it, 5,000 at most.
    fn default() -> Self {
        Self { look: Duration::from_secs(5), quiet: Duration::from_secs(20), digest: Duration::from_secs(300) }
    }
}

/// Everything that the state is made of and goes to.
pub struct Deps {
    /// Nodes and pods.
    pub nodes: Nodes,
    /// Nodes that changed.
    pub touched: Arc<Touched>,
    /// GPUs by node, and how fresh sources are.
    pub derive: Arc<Derive>,
    /// Which labels policy uses.
    pub settings: Arc<Settings>,
    /// The owner's ConfigMap.
    pub config: watch::Receiver<Option<LocalConfig>>,
    /// What the spoke's flags narrow.
    pub flags: Flags,
    /// From the elector.
    pub leadership: watch::Receiver<Leadership>,
    /// From the link.
    pub attachment: watch::Receiver<Attachment>,
    /// From the hand: whose the cordons are.
    pub seen: watch::Receiver<Seen>,
    /// How old the news of the watches is.
    pub heard: Arc<Heard>,
    /// By which each message says of which moment it is.
    pub clock: Arc<HubClock>,
    /// Which exporters this reign has asked.
    pub rounds: Arc<Rounds>,
    /// How many faults the hub does not have yet.
    pub journal: watch::Receiver<Depth>,
    /// What could not be told is counted.
    pub metrics: Arc<Metrics>,
    /// How often it speaks unasked.
    pub cadence: Cadence,
    /// To the link, with the session's generation.
    pub out: mpsc::Sender<(u64, v1::ClusterState)>,
}

/// What a snapshot is for: one of these changed, and the hub needs all of it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Audience {
    to: ports::Audience,
    snapshots_asked: u64,
}

/// Tells until cancelled.
pub async fn run(mut deps: Deps, cancel: CancellationToken) {
    deps.nodes.ready().await;
    let mut seq = 0;
    let mut audience = None;
    let mut told = Told::default();
    let mut ticks = tokio::time::interval(deps.cadence.look);
    let mut said = Instant::now();
    let mut digested = Instant::now();
    let mut refused: Option<Instant> = None;
    let (mut reach, mut whole) = (Reach::default(), Whole::default());
    loop {
        let now = deps.audience();
        let as_of = deps.heard.nodes_as_of(&deps.clock);
        let told_upto = deps.told_upto(&mut reach, now);
        let all_told_term = deps.all_told(&mut whole, now).unwrap_or(0);
        let mut parts = match now.zip(as_of) {
            None => Vec::new(),
            Some(_) if refused.is_some_and(|at| at.elapsed() < deps.cadence.quiet) => Vec::new(),
            Some((now, _)) if Some(now) != audience => {
                let _ = deps.touched.take();
                digested = Instant::now();
                let parts = deps.snapshot(&mut told);
                refused = parts.is_none().then(Instant::now);
                parts.unwrap_or_default()
            }
            Some(_) => match deps.changed(&mut told) {
                Some(delta) => parts::delta(delta),
                // Nothing happened, and somebody looked: what the hub waits for in vain it can then give back.
                None if said.elapsed() >= deps.cadence.quiet && deps.heard.fresh() => vec![Part::nothing()],
                // A hub that asked for everything lets nothing happen here before it knows that this was all.
                None if all_told_term > 0 && !whole.said => vec![Part::nothing()],
                None => Vec::new(),
            },
        };
        if let Some(last) = parts.last_mut().filter(|_| digested.elapsed() >= deps.cadence.digest) {
            last.sum_up(|| told.digest());
            digested = Instant::now();
        }
        // Without a time nothing was told: the snapshot is still to come.
        audience = now.filter(|_| as_of.is_some() && refused.is_none());
        for part in parts {
            let body = part.body(|name| deps.tell(name, &mut told));
            seq += 1;
            said = Instant::now();
            let Some((Audience { to, .. }, as_of)) = now.zip(as_of) else { break };
            let state = v1::ClusterState {
                lease_transitions: to.reign,
                seq,
                as_of_unix_ms: as_of.unix_ms(),
                told_upto_unix_ms: told_upto.map_or(0, |upto| upto.min(as_of).unix_ms()),
                all_told_term,
                body: Some(body),
            };
            if let Err(error) = fits(&state) {
                deps.too_large(&error);
                // Its nodes have grown since it was made: all of it is told again, by their sizes as they are.
                audience = None;
                break;
            }
            whole.said |= all_told_term > 0;
            if deps.out.send((to.session, state)).await.is_err() {
                return;
            }
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            () = deps.touched.wait() => tokio::time::sleep(GATHER).await,
            Ok(()) = deps.config.changed() => {}
            Ok(()) = deps.leadership.changed() => {}
            Ok(()) = deps.attachment.changed() => {}
            Ok(()) = deps.seen.changed() => {}
            Ok(()) = deps.journal.changed(), if all_told_term == 0 => {}
            _ = ticks.tick() => {}
        }
    }
}

impl Deps {
    /// Up to which moment, by the hub's clock, it has been told all that the sources showed.
    fn told_upto(&self, reach: &mut Reach<Audience>, audience: Option<Audience>) -> Option<Timestamp> {
        // Before anything is looked at: what is found while we look is of a later moment.
        let at = clock::boottime();
        let depth = *self.journal.borrow();
        let Some(audience) = audience.filter(|audience| !depth.broken && self.has_told(audience.to)) else {
            reach.unknown();
            return None;
        };
        let upto = reach.look(audience, at, depth.found, depth.unacked)?;
        let (now, uncertainty) = self.clock.now_at(at)?;
        Some(now.before(at.saturating_sub(upto) + uncertainty))
    }

    /// The epoch under which this session asked for all, once the hub has acked all of it beside the snapshot.
    fn all_told(&self, whole: &mut Whole<Audience>, audience: Option<Audience>) -> Option<u64> {
        let depth = *self.journal.borrow();
        let told = |Audience { to, .. }| !depth.broken && self.has_told(to) && self.seen.borrow().told_again == Some(to);
        let is = whole.look(audience, audience.is_some_and(told), depth.found, depth.unacked);
        audience.filter(|_| is).map(|audience| audience.to.asked_term)
    }

    /// All that there is to see was looked at in this reign, and told or journaled.
    fn has_told(&self, to: ports::Audience) -> bool {
        self.rounds.whole(to.reign) && self.derive.has_told(to)
    }

    /// Whom to tell: nobody while another replica leads or no hub listens.
    fn audience(&self) -> Option<Audience> {
        let reign = self.leadership.borrow().transitions()?;
        let attachment = *self.attachment.borrow();
        let to = attachment.audience(reign)?;
        Some(Audience { to, snapshots_asked: attachment.snapshots_asked })
    }

    fn too_large(&self, error: &TooLarge) {
        tracing::error!(%error, "a part of the cluster's state could not be sent, all of it is told anew");
        self.metrics.inc(metrics::LINK_DROPPED, &[("reason", "too large"), ("lane", "state")]);
    }

    /// Begins anew: which nodes go into which part. What is said of them is made as each part goes. Nothing where a hub would not take
    /// all of it: a part of the cluster would have it take the rest for gone.
    fn snapshot(&self, told: &mut Told) -> Option<Vec<Part>> {
        *told = Told::begin(self.cluster_config(), self.seen.borrow().cordons.clone());
        let sources = self.sources();
        told.takes_sources(&sources);
        let labels = self.settings.node_labels();
        let sized = self.nodes.nodes().into_iter().filter_map(|object| {
            let state = self.state(&object, false, &labels, &told.cordons)?;
            Some((Arc::clone(&object.name), state.encoded_len()))
        });
        let parts = parts::snapshot(sized, &told.config, sources);
        if let Err(error) = &parts {
            tracing::error!(%error, "the hub is told nothing of this cluster's nodes: there is too much to say of them");
            self.metrics.inc(metrics::LINK_DROPPED, &[("reason", "too many parts"), ("lane", "state")]);
        }
        parts.ok()
    }

    /// The node as it is now, taken as told; nothing of one that is gone, which is told later.
    fn tell(&self, name: &str, told: &mut Told) -> Option<v1::NodeState> {
        let state = self.state(self.nodes.node(name)?.as_ref(), true, &self.settings.node_labels(), &told.cordons)?;
        told.takes(&state);
        Some(state)
    }

    /// What there is to say of a node; nothing of one without GPUs, but where it had some once.
    fn state(
        &self,
        object: &NodeEntry,
        had_gpus: bool,
        labels: &[String],
        cordons: &BTreeMap<String, bool>,
    ) -> Option<v1::NodeState> {
        let gpus = self.gpus(object);
        let tells = had_gpus || !gpus.is_empty() || is_gpu_node(object);
        tells.then(|| node_state(object, &self.nodes.pods_on(&object.name), gpus, labels, cordons.get(&*object.uid).copied()))
    }

    /// What is not as it was told; and takes it as told.
    fn changed(&self, told: &mut Told) -> Option<v1::StateDelta> {
        let mut delta = v1::StateDelta::default();
        let labels = self.settings.node_labels();
        let mut gone = BTreeSet::new();
        let mut names = self.touched.take();
        let cordons = self.seen.borrow().cordons.clone();
        if cordons != told.cordons {
            names.extend(told.moved(&cordons));
            told.cordons.clone_from(&cordons);
        }
        for name in names {
            let Some(object) = self.nodes.node(&name) else {
                gone.extend(told.forgets(&name));
                continue;
            };
            // Once told, always told: a node whose GPUs are all lost has none in its capacity.
            let Some(state) = self.state(&object, told.knows(&name), &labels, &cordons) else { continue };
            let News { changed, gone: before } = told.takes(&state);
            gone.extend(before);
            if changed {
                delta.changed.push(state);
            }
        }
        delta.gone_uids = gone.into_iter().collect();
        let config = self.cluster_config();
        if config != told.config {
            told.config.clone_from(&config);
            delta.config = Some(config);
        }
        let sources = self.sources();
        delta.sources = told.takes_sources(&sources);
        (delta != v1::StateDelta::default()).then_some(delta)
    }

    fn gpus(&self, node: &NodeEntry) -> Vec<v1::GpuRef> {
        NodeUid::parse(&node.uid).map(|uid| self.derive.gpus(&uid)).unwrap_or_default()
    }

    /// Exporters, then what is not a node's: alerts and our own watches. In texts as long as the hub keeps them.
    fn sources(&self) -> Vec<v1::SourceState> {
        let mut all = self.derive.sources();
        for source in &mut all {
            shorten(&mut source.source, limits::SOURCE_BYTES_MAX);
            shorten(&mut source.node, limits::SOURCE_BYTES_MAX);
            shorten(&mut source.reason, limits::REASON_BYTES_MAX);
        }
        all.push(sources::alertmanager(self.derive.alerted_at(), self.settings.detect().webhook_off));
        all.extend(sources::watches(&self.heard.ages(), self.clock.now().map(|(now, _)| now)));
        all
    }

    fn cluster_config(&self) -> v1::ClusterConfig {
        let local = self.config.borrow().clone().unwrap_or_default();
        let (yaml, errors) = config::told(&local, self.flags, ERRORS_MAX);
        let fits = yaml.len() <= limits::ENVELOPE_BYTES_MAX;
        v1::ClusterConfig { resource_version: local.resource_version, yaml: if fits { yaml } else { String::new() }, errors }
    }
}

fn shorten(text: &mut String, bytes_max: usize) {
    let fits = clip(text, bytes_max).len();
    text.truncate(fits);
}

/// Where a body says what it is, for tests and the log.
#[must_use]
pub const fn is_snapshot(state: &v1::ClusterState) -> bool {
    matches!(state.body, Some(Body::Snapshot(_)))
}

#[cfg(test)]
mod tests;
