//! A watch against a simulated API server.

use kube::config::Kubeconfig;
use kubesim::{Config, Fault, KubeSim, Then, When, build};

use super::*;
use crate::watch::{NodeSeen, heard::NODES, tables};

struct Watched {
    sim: KubeSim,
    nodes: crate::watch::Nodes,
    heard: Arc<Heard>,
    touched: Arc<crate::watch::Touched>,
    cancel: CancellationToken,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

async fn watched(bookmark_every: Duration, resync: Duration) -> Watched {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let sim = KubeSim::start(Config { bookmark_every, ..Config::default() }).await.unwrap();
    for name in ["n1", "n2"] {
        sim.store().create(build::gpu_node(name, 8, "NVIDIA-H100-80GB-HBM3")).unwrap();
    }
    let kubeconfig = Kubeconfig::from_yaml(&sim.kubeconfig_yaml()).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
    let (heard, cancel, touched) = (Heard::new(), CancellationToken::new(), crate::watch::Touched::new());
    let (keep, _, nodes) =
        tables::keepers(tables::Ears::new(vec![Arc::clone(&touched)]), &gpuheal_spoke_core::gpu_resources::GpuResources::default());
    let follow = Follow::<NodeSeen> {
        kind: NODES,
        client: Client::try_from(config).unwrap(),
        path: "/api/v1/nodes".to_owned(),
        labels: None,
        fields: None,
        keep: Box::new(keep),
        resync,
        shared: Shared { metrics: Metrics::new(), heard: Arc::clone(&heard), cancel: cancel.clone() },
    };
    tokio::spawn(follow.run());
    let watched = Watched { sim, nodes, heard, touched, cancel };
    watched.until(|watched| watched.nodes.nodes().len() == 2 && watched.age().is_some()).await;
    watched
}

impl Watched {
    fn age(&self) -> Option<Duration> {
        self.heard.ages().into_iter().find(|known| known.0 == NODES)?.1
    }

    /// The moment since boot at which it was last heard. Never later than it was, however slow the machine.
    fn heard_at(&self) -> Option<Duration> {
        let now = clock::boottime();
        Some(now.saturating_sub(self.age()?))
    }

    /// Waits until it is heard again.
    async fn until_heard(&self) {
        let now = clock::boottime();
        self.until(|watched| watched.heard_at() > Some(now)).await;
    }

    async fn until(&self, is: impl Fn(&Self) -> bool) {
        let wait = async {
            while !is(self) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(Duration::from_secs(120), wait).await.expect("it comes soon");
    }
}

#[tokio::test]
async fn a_quiet_watch_is_heard_by_its_bookmarks() {
    let watched = watched(Duration::from_millis(20), Duration::from_secs(600)).await;
    // Heard again and again although nothing happens.
    for _ in 0..3 {
        watched.until_heard().await;
    }
}

#[tokio::test]
async fn a_watch_that_stalls_grows_old_and_a_watch_that_is_cut_goes_on() {
    let watched = watched(Duration::from_millis(20), Duration::from_secs(600)).await;
    let stall = watched.sim.faults().stall_watches("nodes");
    watched.until(|watched| watched.age().is_some_and(|age| age > Duration::from_millis(200))).await;
    watched.sim.faults().remove(stall);
    watched.sim.faults().drop_watches("nodes");
    watched.until_heard().await;
    watched.sim.store().create(build::gpu_node("n3", 8, "NVIDIA-H100-80GB-HBM3")).unwrap();
    watched.until(|watched| watched.nodes.nodes().len() == 3).await;
}

/// Told by an ERROR in the stream, or as the status of its answer.
#[tokio::test]
async fn a_watch_whose_version_was_compacted_away_lists_all_anew_and_misses_nothing() {
    for refused in [false, true] {
        let watched = watched(Duration::from_secs(10), Duration::from_secs(600)).await;
        let lists = || {
            let all = watched.sim.recorder().requests();
            all.iter().filter(|seen| seen.verb == "list" && seen.resource == "nodes").count()
        };
        let before = lists();
        if refused {
            watched.sim.faults().add(Fault::once(When::verb("watch", "nodes"), Then::WatchGone));
        }
        let stall = watched.sim.faults().stall_watches("nodes");
        watched.sim.store().delete_now("nodes", "", "n1").unwrap();
        watched.sim.store().create(build::gpu_node("n3", 8, "NVIDIA-H100-80GB-HBM3")).unwrap();
        watched.sim.store().compact();
        watched.sim.faults().drop_watches("nodes");
        watched.sim.faults().remove(stall);
        watched.until(|watched| watched.nodes.node("n1").is_none() && watched.nodes.node("n3").is_some()).await;
        assert!(watched.touched.take().contains("n1"));
        assert!(lists() > before, "the changes themselves are gone");
        watched.sim.store().create(build::gpu_node("n4", 8, "NVIDIA-H100-80GB-HBM3")).unwrap();
        watched.until(|watched| watched.nodes.node("n4").is_some()).await;
    }
}

#[tokio::test]
async fn what_vanished_between_two_lists_is_told_as_deleted() {
    let watched = watched(Duration::from_secs(10), Duration::from_millis(50)).await;
    let stall = watched.sim.faults().stall_watches("nodes");
    watched.sim.store().delete_now("nodes", "", "n1").unwrap();
    watched.sim.faults().remove(stall);
    watched.sim.faults().drop_watches("nodes");
    watched.until(|watched| watched.nodes.node("n1").is_none()).await;
    assert!(watched.touched.take().contains("n1"));
    assert_eq!(watched.nodes.nodes().len(), 1);
}
