//! What the hub is told, from a cluster that changes.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::testing::TestCluster;

struct Teller {
    cluster: TestCluster,
    out: mpsc::Receiver<(u64, v1::ClusterState)>,
    wanted: watch::Sender<Wanted>,
    config: watch::Sender<Option<LocalConfig>>,
    cancel: CancellationToken,
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// Tells about a cluster of these nodes.
async fn teller(nodes: &[&str]) -> Teller {
    let mut cluster = TestCluster::new().await;
    nodes.iter().for_each(|name| cluster.node(name, &json!({})));
    let (out_tx, out) = mpsc::channel(16);
    let (wanted, wanting) = watch::channel(Wanted::default());
    let (config, configured) = watch::channel(Some(LocalConfig::default()));
    let cancel = CancellationToken::new();
    let deps = Deps {
        nodes: cluster.nodes.clone(),
        touched: Arc::clone(&cluster.touched),
        derive: Arc::clone(&cluster.derive),
        settings: Arc::clone(&cluster.settings),
        config: configured,
        flags: Flags::default(),
        leadership: cluster.leadership.subscribe(),
        attachment: cluster.attachment.subscribe(),
        wanted: wanting,
        out: out_tx,
    };
    tokio::spawn(run(deps, cancel.clone()));
    Teller { cluster, out, wanted, config, cancel }
}

impl Teller {
    async fn next(&mut self) -> (u64, v1::ClusterState) {
        tokio::time::timeout(Duration::from_secs(10), self.out.recv()).await.expect("it comes soon").expect("it goes on")
    }

    async fn snapshot(&mut self) -> v1::SnapshotPart {
        match self.next().await.1.body {
            Some(Body::Snapshot(part)) => part,
            other => panic!("not a snapshot: {other:?}"),
        }
    }

    async fn delta(&mut self) -> v1::StateDelta {
        match self.next().await.1.body {
            Some(Body::Delta(delta)) => delta,
            other => panic!("not a delta: {other:?}"),
        }
    }
}

fn names(nodes: &[v1::NodeState]) -> Vec<&str> {
    nodes.iter().map(|node| node.name.as_str()).collect()
}

#[tokio::test]
async fn the_hub_hears_all_first_and_then_only_what_changed() {
    let mut teller = teller(&["n1", "n2"]).await;
    let (generation, first) = teller.next().await;
    assert_eq!((generation, first.lease_transitions, first.seq), (7, 3, 1));
    assert!(is_snapshot(&first));
    teller.cluster.gpu_pod("train-0", "n2");
    let delta = teller.delta().await;
    assert_eq!(names(&delta.changed), ["n2"]);
    assert_eq!(delta.changed[0].gpu_pods[0].gpus, 2);
    assert_eq!((delta.config, delta.gone_uids.len()), (None, 0));
}

#[tokio::test]
async fn a_burst_of_changes_is_one_message() {
    let mut teller = teller(&["n1", "n2", "n3"]).await;
    teller.snapshot().await;
    for name in ["n1", "n2", "n3"] {
        for pod in ["a", "b", "c"] {
            teller.cluster.gpu_pod(&format!("{name}-{pod}"), name);
        }
    }
    assert_eq!(names(&teller.delta().await.changed), ["n1", "n2", "n3"]);
}

#[tokio::test]
async fn a_node_is_gone_only_when_its_object_is_and_a_replaced_one_is_gone_and_new() {
    let mut teller = teller(&["n1", "n2"]).await;
    teller.snapshot().await;
    teller.cluster.delete_node("n1");
    assert_eq!(teller.delta().await.gone_uids, ["uid-n1"]);
    teller.cluster.node("n2", &json!({"metadata": {"uid": "other"}}));
    let delta = teller.delta().await;
    assert_eq!((delta.gone_uids.as_slice(), delta.changed[0].uid.as_str()), (["uid-n2".to_owned()].as_slice(), "other"));
}

#[tokio::test]
async fn a_node_whose_gpus_are_all_lost_is_still_told() {
    let mut teller = teller(&["n1"]).await;
    teller.snapshot().await;
    teller.cluster.node("n1", &json!({"status": {"capacity": null, "allocatable": null}}));
    let delta = teller.delta().await;
    assert_eq!((names(&delta.changed), delta.changed[0].capacity_gpus), (vec!["n1"], 0));
}

#[tokio::test]
async fn a_new_session_a_new_reign_and_a_resync_each_get_a_snapshot() {
    let mut teller = teller(&["n1"]).await;
    teller.snapshot().await;
    teller.cluster.attachment.send_modify(|attachment| attachment.generation = Some(8));
    assert_eq!(names(&teller.snapshot().await.nodes), ["n1"]);
    teller.cluster.leadership.send_replace(Leadership::Leading { lease_transitions: 4 });
    let (generation, state) = teller.next().await;
    assert_eq!((generation, state.lease_transitions, is_snapshot(&state)), (8, 4, true));
    teller.wanted.send_modify(|wanted| wanted.snapshot += 1);
    teller.snapshot().await;
}

#[tokio::test]
async fn a_standby_says_nothing() {
    let mut teller = teller(&["n1"]).await;
    teller.snapshot().await;
    teller.cluster.leadership.send_replace(Leadership::Standby);
    teller.cluster.node("n2", &json!({}));
    // What comes next is the snapshot of the next reign: nothing was said in between.
    tokio::task::yield_now().await;
    teller.cluster.leadership.send_replace(Leadership::Leading { lease_transitions: 5 });
    let (_, state) = teller.next().await;
    assert_eq!((state.lease_transitions, state.seq, is_snapshot(&state)), (5, 2, true));
}

#[tokio::test]
async fn the_owners_config_is_told_as_it_is_with_what_is_wrong_in_it() {
    let mut teller = teller(&[]).await;
    let first = teller.snapshot().await;
    assert_eq!((first.part, first.parts, first.config), (1, 1, Some(v1::ClusterConfig::default())));
    let yaml = "cooldown: soon\n".to_owned();
    teller.config.send_replace(Some(LocalConfig { resource_version: "9".into(), yaml: yaml.clone() }));
    let config = teller.delta().await.config.unwrap();
    assert_eq!((config.resource_version.as_str(), config.yaml, config.errors.len()), ("9", yaml, 1));
}

#[test]
fn a_large_cluster_is_told_in_parts_that_fit_and_hold_each_node_once() {
    let node = |n: usize| (format!("n{n:04}"), v1::NodeState { name: format!("n{n:04}"), ..Default::default() });
    let nodes: BTreeMap<_, _> = (0..1201).map(node).collect();
    let parts = parts::snapshot(&nodes, &v1::ClusterConfig::default(), &[]);
    let parts: Vec<_> =
        parts.into_iter().map(|body| if let Body::Snapshot(part) = body { part } else { panic!("a snapshot") }).collect();
    assert_eq!(
        parts.iter().map(|part| (part.part, part.parts, part.nodes.len())).collect::<Vec<_>>(),
        [(1, 3, 500), (2, 3, 500), (3, 3, 201)]
    );
    assert_eq!(parts.iter().filter(|part| part.config.is_some()).count(), 1);
    let told: BTreeSet<_> = parts.iter().flat_map(|part| names(&part.nodes)).collect();
    assert_eq!(told.len(), 1201);
}
