//! Every part of a running spoke, made and wired.

use std::sync::Arc;

use anyhow::Context as _;
use gpuheal_spoke_core::{gpu_resources::GpuResources, verify::Trust};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
};

use super::{Group, kube_system, needs};
use crate::{
    args::Run,
    ceiling,
    clock::{self, HubClock},
    derive::{self, Derive},
    elector::{Elector, ElectorHandle},
    execute::{self, Hand},
    http,
    identity::Keeper,
    journal::Journal,
    kube_client, link,
    metrics::{self, Metrics},
    ports::{Attachment, GpuUsers, Leadership, Seen},
    scrape,
    settings::Settings,
    state, tasks,
    watch::{self as cluster, Touched},
};

/// Messages to the hand: a storm's commands wait at the hub, not here.
const DOWN_MAX: usize = 256;
/// Statuses on their way to the link.
const STATUSES_MAX: usize = 256;
/// Parts of a cluster's state on their way: each is up to half a MiB, four times that in memory.
const STATES_MAX: usize = 2;
/// Messages of evidence on their way.
const EVIDENCE_MAX: usize = 8;
/// People's requests on their way.
const ASKS_MAX: usize = 64;
/// Messages of faults that the hub asks for: one each 5 s while there are any, and the detectors' loop is behind for as long as a full
/// journal's disk takes. A session without room for one ends.
const ASKED_MAX: usize = 8;

/// A running spoke.
pub(super) struct Parts {
    pub(super) elector: ElectorHandle,
    pub(super) journal: Journal,
    /// Web server, scraper, watches, detectors, state.
    pub(super) sources: Group,
    /// The executor.
    pub(super) hand: Group,
    /// The link.
    pub(super) link: Group,
}

impl Parts {
    /// Starts everything; ready once the web server listens.
    pub(super) async fn start(run: &Run) -> anyhow::Result<Self> {
        let metrics = Metrics::new();
        let keeper = Keeper::open(&run.identity, Arc::clone(&metrics)).with_context(|| {
            let dir = run.identity.display();
            format!("use the identity in {dir}; --identity takes a directory such as clusters/ID from gpuhealctl pki init")
        })?;
        let identity = keeper.identity(clock::wall()).context("identity")?;
        let trust = Trust::parse(&identity.trust).context("trust bundle")?;
        let clients = kube_client::connect(run.kubeconfig.as_deref()).await.context("Kubernetes client")?;
        let (journal, held) = Journal::open(&run.journal, run.journal_limits())
            .with_context(|| format!("open the journal in {}", run.journal.display()))?;
        let listener = TcpListener::bind(run.listen_http).await.with_context(|| format!("listen on {}", run.listen_http))?;
        let http_address = listener.local_addr().context("listener's address")?;

        let (clock, settings) = (HubClock::new(), Settings::new());
        let (mut sources, mut hand, mut link) = (Group::new("sources"), Group::new("hand"), Group::new("link"));
        let (touched, seen_nodes) = (Touched::new(), Touched::new());
        let (views, mut watches) = cluster::spawn(
            &clients.read,
            &cluster::Config {
                namespace: run.namespace.clone(),
                exporter_selector: run.sources.exporter_selector.clone(),
                plugin_selectors: run.sources.device_plugin_selectors.clone(),
                gpu_resources: GpuResources::of(&run.sources.gpu_resources),
                resync: cluster::RESYNC,
            },
            vec![Arc::clone(&touched), Arc::clone(&seen_nodes)],
            &metrics,
            &sources.cancel,
        );
        let act = execute::dates::witnessed(clients.act, Arc::clone(&clock));
        let (leadership, elector) = Elector::spawn(act.clone(), run.elector()).context("elector")?;
        let (attachment_tx, attachment) = watch::channel(Attachment::default());
        let (seen_tx, seen) = watch::channel(Seen::default());
        let (down_tx, down) = mpsc::channel(DOWN_MAX);
        let (statuses_tx, statuses) = mpsc::channel(STATUSES_MAX);
        let (states_tx, states) = mpsc::channel(STATES_MAX);
        let (evidence_tx, evidence) = mpsc::channel(EVIDENCE_MAX);
        let (asks_tx, asks) = mpsc::channel(ASKS_MAX);
        let (asked_tx, asked) = mpsc::channel(ASKED_MAX);

        let derive = Derive::new(
            derive::Deps {
                cluster: identity.cluster.clone(),
                journal: journal.clone(),
                settings: Arc::clone(&settings),
                nodes: views.nodes.clone(),
                exporters: views.exporters.clone(),
                plugins: Arc::clone(&views.plugins),
                touched: Arc::clone(&touched),
                metrics: Arc::clone(&metrics),
                leadership: leadership.clone(),
                attachment: attachment.clone(),
                evidence: evidence_tx,
            },
            held,
        );
        let stop = sources.cancel.clone();
        sources.spawn("watches", async move {
            tokio::select! {
                () = stop.cancelled() => {}
                never = tasks::watch_over(&mut watches) => match never {},
            }
        });
        let (listed_tx, listed) = watch::channel(false);
        let nodes = views.nodes.clone();
        let stop = sources.cancel.clone();
        sources.spawn("node watch", async move {
            tokio::select! {
                () = stop.cancelled() => return,
                () = nodes.ready() => { listed_tx.send_replace(true); }
            }
            stop.cancelled().await;
        });
        sources.spawn("leader metric", lead_metric(leadership.clone(), Arc::clone(&metrics), sources.cancel.clone()));
        sources.spawn("detectors", derive::run(Arc::clone(&derive), seen_nodes, asked, sources.cancel.clone()));
        let rounds = scrape::Rounds::new();
        let scraping = scrape::Deps {
            exporters: views.exporters.clone(),
            changes: views.exporter_changes.clone(),
            fixed: run.sources.exporters.clone().into(),
            port: run.sources.exporter_port,
            settings: Arc::clone(&settings),
            leadership: leadership.clone(),
            derive: Arc::clone(&derive),
            rounds: Arc::clone(&rounds),
            metrics: Arc::clone(&metrics),
        };
        sources.spawn("scraper", scrape::run(scraping, sources.cancel.clone()));
        let telling = state::Deps {
            nodes: views.nodes.clone(),
            touched,
            derive: Arc::clone(&derive),
            settings: Arc::clone(&settings),
            config: views.config.clone(),
            flags: run.flags(),
            leadership: leadership.clone(),
            attachment: attachment.clone(),
            seen: seen.clone(),
            heard: Arc::clone(&views.heard),
            clock: Arc::clone(&clock),
            rounds: Arc::clone(&rounds),
            journal: journal.depth(),
            metrics: Arc::clone(&metrics),
            cadence: state::Cadence::default(),
            out: states_tx,
        };
        sources.spawn("state", state::run(telling, sources.cancel.clone()));
        let (lacks_tx, lacks) = watch::channel(Vec::new());
        let looking = needs::look(clients.read.clone(), run.namespace.clone(), needs::Every::default(), lacks_tx);
        let cancel = sources.cancel.clone();
        sources.spawn("needs", async move {
            tokio::select! {
                () = cancel.cancelled() => {}
                () = looking => {}
            }
        });
        let serving = http::Deps {
            derive: Arc::clone(&derive),
            asks: asks_tx,
            attachment: attachment.clone(),
            journal: journal.depth(),
            given_up: journal.given_up(),
            listed,
            rounds,
            lacks,
            config: views.config.clone(),
            heard: Arc::clone(&views.heard),
            identity: Arc::clone(&keeper),
            settings: Arc::clone(&settings),
            metrics: Arc::clone(&metrics),
            token_file: run.webhook_token_file.clone(),
        };
        let cancel = sources.cancel.clone();
        sources.spawn("web server", http::serve(listener, serving, cancel));

        let linking = link::Deps {
            config: link::Config {
                dead_after: gpuheal_proto::limits::DEAD_AFTER,
                hub: run.hub.clone(),
                identity: keeper,
                replica: run.replica_id.clone(),
                // Filled in before the link runs.
                kube_system_uid: String::new(),
            },
            journal: journal.clone(),
            settings,
            clock: Arc::clone(&clock),
            metrics: Arc::clone(&metrics),
            leadership: leadership.clone(),
            seen,
            down: down_tx,
            asked: asked_tx,
            attachment: attachment_tx,
        };
        let (cancel, read) = (link.cancel.clone(), clients.read.clone());
        link.spawn("link", async move {
            let mut linking = linking;
            linking.config.kube_system_uid = tokio::select! {
                () = cancel.cancelled() => return,
                uid = kube_system::uid(read, kube_system::RETRY) => uid,
            };
            link::run(linking, link::Lanes { statuses, states, evidence, asks }, cancel).await;
        });

        let config = views.config.clone();
        let (stop, nodes) = (hand.cancel.clone(), views.nodes.clone());
        let (run_flags, namespace, replica) = (run.flags(), run.namespace.clone(), run.replica_id.clone());
        let (cluster, faults, client, heard) = (identity.cluster.clone(), derive, act, Arc::clone(&views.heard));
        let held_elector = elector.clone();
        hand.spawn("executor", async move {
            let config = tokio::select! {
                () = stop.cancelled() => return,
                config = ceiling::judged(config, &nodes) => config,
            };
            let deps = execute::Deps {
                client,
                namespace,
                replica,
                cluster,
                trust: Arc::new(trust),
                clock,
                nodes,
                users: Arc::clone(&faults) as Arc<dyn GpuUsers>,
                faults,
                leadership,
                elector: held_elector,
                config,
                heard,
                flags: run_flags,
                attachment,
                seen: seen_tx,
                metrics,
            };
            Hand::run(deps, down, statuses_tx, stop).await;
        });

        if let Some(path) = &run.ready_file {
            let ready = serde_json::json!({"http": http_address.to_string()}).to_string();
            std::fs::write(path, ready).with_context(|| format!("write {}", path.display()))?;
        }
        tracing::info!(cluster.id = %identity.cluster, replica.id = %run.replica_id, http = %http_address, "spoke started");
        Ok(Self { elector, journal, sources, hand, link })
    }

    /// Waits for a part that ends although nobody asked it to.
    pub(super) async fn died(&mut self) -> String {
        tokio::select! {
            why = self.sources.died() => why,
            why = self.hand.died() => why,
            why = self.link.died() => why,
        }
    }
}

async fn lead_metric(
    mut leadership: watch::Receiver<Leadership>,
    metrics: Arc<Metrics>,
    cancel: tokio_util::sync::CancellationToken,
) {
    loop {
        let leads = leadership.borrow_and_update().transitions();
        metrics.set(metrics::LEADER, &[], f64::from(u8::from(leads.is_some())));
        tokio::select! {
            () = cancel.cancelled() => return,
            changed = leadership.changed() => if changed.is_err() {
                cancel.cancelled().await;
                return;
            },
        }
    }
}
