//! What the hub is told, from a cluster that changes.

use std::time::Duration;

use gpuheal_proto::{
    state_digest::{self, NodeWord},
    time::Timestamp,
};
use serde_json::json;

use super::*;
use crate::{
    clock,
    ports::Audience,
    scrape::Target,
    testing::TestCluster,
    watch::{GPU_PODS, NODES},
};

struct Teller {
    cluster: TestCluster,
    out: mpsc::Receiver<(u64, v1::ClusterState)>,
    config: watch::Sender<Option<LocalConfig>>,
    seen: watch::Sender<Seen>,
    rounds: Arc<Rounds>,
    metrics: Arc<Metrics>,
    cancel: CancellationToken,
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// What the hub's clock showed at Welcome: far from this machine's.
const SERVER_TIME: Timestamp = Timestamp::from_unix_ms(1_700_000_000_000);

/// Tells about a cluster of these nodes.
async fn teller(nodes: &[&str]) -> Teller {
    teller_with(nodes, Flags::default(), Cadence::default()).await
}

async fn teller_with(nodes: &[&str], flags: Flags, cadence: Cadence) -> Teller {
    teller_over(nodes, flags, cadence, 16).await
}

/// Over a lane of so many messages.
async fn teller_over(nodes: &[&str], flags: Flags, cadence: Cadence, lane: usize) -> Teller {
    let mut cluster = TestCluster::new().await;
    nodes.iter().for_each(|name| cluster.node(name, &json!({})));
    let (out_tx, out) = mpsc::channel(lane);
    let (config, configured) = watch::channel(Some(LocalConfig::default()));
    let (seen, hand) = watch::channel(Seen::default());
    let clock = HubClock::new();
    clock.set(SERVER_TIME, Duration::ZERO);
    let (cancel, rounds, metrics) = (CancellationToken::new(), Rounds::new(), Metrics::new());
    let deps = Deps {
        nodes: cluster.nodes.clone(),
        touched: Arc::clone(&cluster.touched),
        derive: Arc::clone(&cluster.derive),
        settings: Arc::clone(&cluster.settings),
        config: configured,
        flags,
        leadership: cluster.leadership.subscribe(),
        attachment: cluster.attachment.subscribe(),
        seen: hand,
        heard: Arc::clone(&cluster.heard),
        clock,
        rounds: Arc::clone(&rounds),
        journal: cluster.journal.depth(),
        metrics: Arc::clone(&metrics),
        cadence,
        out: out_tx,
    };
    tokio::spawn(run(deps, cancel.clone()));
    Teller { cluster, out, config, seen, rounds, metrics, cancel }
}

impl Teller {
    async fn next(&mut self) -> (u64, v1::ClusterState) {
        tokio::time::timeout(Duration::from_secs(120), self.out.recv()).await.expect("it comes soon").expect("it goes on")
    }

    /// Nothing says up to when all was told, for longer than whoever says it needs to begin with it.
    async fn cannot_say(&mut self, why: &str) {
        let until = clock::boottime() + reach::MARK_EVERY * 2;
        while clock::boottime() < until {
            assert_eq!(self.next().await.1.told_upto_unix_ms, 0, "{why}");
        }
    }

    /// The first that does.
    async fn says(&mut self) -> v1::ClusterState {
        loop {
            let state = self.next().await.1;
            if state.told_upto_unix_ms != 0 {
                return state;
            }
        }
    }

    /// For so long that what is due would have come.
    async fn is_silent(&mut self, why: &str) {
        assert!(tokio::time::timeout(Duration::from_millis(200), self.out.recv()).await.is_err(), "{why}");
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
async fn a_part_whose_nodes_have_grown_over_the_limit_is_not_sent_and_all_is_told_by_their_sizes_as_they_are() {
    let all: Vec<String> = (0..1100).map(|n| format!("n{n:04}")).collect();
    let nodes: Vec<&str> = all.iter().map(String::as_str).collect();
    let mut teller = teller_over(&nodes, Flags::default(), Cadence::default(), 1).await;
    // The first is read, the second is on the lane or the third would be made: not before there is room.
    let first = teller.snapshot().await;
    assert_eq!((first.part, first.parts), (1, 3));
    for name in &nodes[1000..] {
        teller.cluster.node(name, &json!({"metadata": {"labels": {"pool": "x".repeat(12_000)}}}));
    }
    let (mut heard, mut anew) = (BTreeSet::new(), false);
    while heard.len() < nodes.len() {
        let (_, state) = teller.next().await;
        assert!(fits(&state).is_ok());
        let Some(Body::Snapshot(part)) = state.body else { panic!("a snapshot first") };
        if part.part == 1 {
            (heard, anew) = (BTreeSet::new(), true);
        } else if !anew {
            continue;
        }
        heard.extend(part.nodes.into_iter().map(|node| node.name));
    }
    assert_eq!(teller.metrics.get(metrics::LINK_DROPPED, &[("reason", "too large"), ("lane", "state")]), Some(1.0));
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
    teller.cluster.attachment.send_modify(|attachment| attachment.snapshots_asked += 1);
    teller.snapshot().await;
    teller.cluster.attachment.send_modify(|attachment| attachment.asked_term = 2);
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
    teller.config.send_replace(Some(LocalConfig { resource_version: "9".into(), yaml: yaml.clone(), lost: None }));
    let config = teller.delta().await.config.unwrap();
    assert_eq!((config.resource_version.as_str(), config.yaml, config.errors.len()), ("9", yaml, 1));
}

#[tokio::test]
async fn each_message_is_of_the_moment_at_which_the_nodes_were_heard_by_the_hubs_clock() {
    let mut teller = teller(&["n1"]).await;
    let as_of = Timestamp::from_unix_ms(teller.next().await.1.as_of_unix_ms);
    assert!(as_of <= SERVER_TIME.after(Duration::from_secs(60)), "{as_of}: this machine's wall clock has no say");
    // The watch of nodes was heard a minute ago: what is told of pods is told as of then.
    teller.cluster.heard.note(NODES, clock::boottime().saturating_sub(Duration::from_secs(60)));
    teller.cluster.gpu_pod("train-0", "n1");
    let later = Timestamp::from_unix_ms(teller.next().await.1.as_of_unix_ms);
    assert!(later <= SERVER_TIME.before(Duration::from_secs(30)), "{later}");
}

#[tokio::test]
async fn a_quiet_cluster_says_again_and_again_that_nothing_changed_but_only_while_its_watches_are_fresh() {
    let often = Cadence { look: Duration::from_millis(5), quiet: Duration::from_millis(20), ..Cadence::default() };
    let mut teller = teller_with(&["n1"], Flags::default(), often).await;
    teller.snapshot().await;
    let first = teller.next().await.1;
    let second = teller.next().await.1;
    assert_eq!((first.seq, first.body), (2, Some(Body::Delta(v1::StateDelta::default()))));
    assert_eq!((second.seq, second.body), (3, Some(Body::Delta(v1::StateDelta::default()))));
    // What was heard at one moment is told as of that, less a doubt that grows by 200 ppm.
    assert!(second.as_of_unix_ms + 1000 >= first.as_of_unix_ms);
    teller.cluster.heard.forget(GPU_PODS);
    // Whatever was on its way; then that the watch is stale, and nothing more.
    let stale = loop {
        let delta = teller.delta().await;
        if delta != v1::StateDelta::default() {
            break delta;
        }
    };
    assert_eq!(
        stale.sources.iter().map(|one| (one.source.as_str(), one.state.as_str())).collect::<Vec<_>>(),
        [("gpu pod watch", "stale")]
    );
    tokio::time::sleep(often.quiet * 5).await;
    assert!(teller.out.try_recv().is_err(), "a cluster that nobody sees is not called quiet");
}

#[tokio::test]
async fn what_all_nodes_add_up_to_is_told_now_and_then_with_what_the_change_itself_brings() {
    let always = Cadence { digest: Duration::ZERO, ..Cadence::default() };
    let mut teller = teller_with(&["n1", "n2"], Flags::default(), always).await;
    let mut held: BTreeMap<String, v1::NodeState> =
        teller.snapshot().await.nodes.into_iter().map(|node| (node.uid.clone(), node)).collect();
    teller.cluster.node("n2", &json!({"spec": {"unschedulable": true}}));
    let delta = teller.delta().await;
    held.extend(delta.changed.into_iter().map(|node| (node.uid.clone(), node)));
    let digest = |held: &BTreeMap<String, v1::NodeState>| state_digest::digest(held.values().map(|n| NodeWord::from(n).share()));
    assert_eq!((delta.digest, held.len()), (Some(digest(&held)), 2));
    teller.cluster.delete_node("n1");
    let delta = teller.delta().await;
    held.retain(|uid, _| !delta.gone_uids.contains(uid));
    assert_eq!((delta.digest, held.len()), (Some(digest(&held)), 1));
}

#[tokio::test]
async fn up_to_when_all_was_told_is_said_once_every_exporter_was_asked_and_the_session_knows_how_all_stands() {
    let target = Arc::new(Target { node: "n1".into(), url: "http://n1:9400/metrics".into(), start: String::new() });
    // Each of the two is missing alone for so long that it is missed, at once so that the test takes half the time.
    let asked = async {
        let mut teller = often_told(&target).await;
        teller.cluster.derive.told_all(to(7, 0));
        teller.cannot_say("the exporter may show what nobody knows").await;
        teller.rounds.asked(&target, 3);
        let said = teller.says().await;
        let upto = Timestamp::from_unix_ms(said.told_upto_unix_ms);
        assert!(said.told_upto_unix_ms <= said.as_of_unix_ms && upto >= SERVER_TIME.before(Duration::from_secs(60)), "{said:?}");
    };
    let told = async {
        let mut teller = often_told(&target).await;
        teller.rounds.asked(&target, 3);
        teller.cluster.derive.told_all(to(6, 0));
        teller.cannot_say("another session was told, and this one nothing yet").await;
        teller.cluster.derive.told_all(to(7, 0));
        teller.says().await;
    };
    tokio::join!(asked, told);
}

/// In reign 3.
const fn to(session: u64, asked_term: u64) -> Audience {
    Audience { reign: 3, session, asked_term }
}

#[tokio::test]
async fn that_all_was_told_is_said_once_the_hub_has_what_stands_and_every_command_on_record() {
    let target = Arc::new(Target { node: "n1".into(), url: "http://n1:9400/metrics".into(), start: String::new() });
    let often = Cadence { look: Duration::from_millis(5), quiet: Duration::from_secs(3600), ..Cadence::default() };
    let mut teller = teller_with(&["n1"], Flags::default(), often).await;
    teller.rounds.expect(std::iter::once(&target));
    teller.snapshot().await;
    teller.cluster.attachment.send_modify(|attachment| attachment.asked_term = 5);
    assert_eq!(teller.next().await.1.all_told_term, 0, "its nodes are not all");
    teller.cluster.derive.told_all(to(7, 5));
    teller.seen.send_modify(|seen| seen.told_again = Some(to(7, 4)));
    teller.is_silent("the commands were told to who asked before the epoch rose again").await;
    teller.seen.send_modify(|seen| seen.told_again = Some(to(7, 5)));
    teller.is_silent("an exporter may show what nobody knows").await;
    teller.rounds.asked(&target, 3);
    let (_, said) = teller.next().await;
    assert!(said.all_told_term == 5 && !is_snapshot(&said), "at once, though nothing changed: {said:?}");
    teller.is_silent("and once").await;
    teller.cluster.attachment.send_modify(|attachment| attachment.asked_term = 6);
    assert_eq!(teller.next().await.1.all_told_term, 0, "a hub that asks under another epoch does not have it");
}

/// Failure table, row 18: whoever attached a moment before the epoch rose has told all to a hub that asked for nothing.
#[tokio::test]
async fn a_session_that_was_asked_for_nothing_does_not_say_that_all_was_told() {
    let often = Cadence { look: Duration::from_millis(5), quiet: Duration::from_millis(20), ..Cadence::default() };
    let mut teller = teller_with(&["n1"], Flags::default(), often).await;
    teller.rounds.expect(std::iter::empty());
    teller.cluster.derive.told_all(to(7, 0));
    teller.seen.send_modify(|seen| seen.told_again = Some(to(7, 0)));
    teller.says().await;
    assert_eq!(teller.next().await.1.all_told_term, 0);
}

/// Tells again and again, in reign 3 and session 7, of a cluster with that exporter.
async fn often_told(exporter: &Arc<Target>) -> Teller {
    let often = Cadence { look: Duration::from_millis(5), quiet: Duration::from_millis(20), ..Cadence::default() };
    let mut teller = teller_with(&["n1"], Flags::default(), often).await;
    teller.rounds.expect(std::iter::once(exporter));
    let (generation, first) = teller.next().await;
    assert_eq!((first.lease_transitions, generation), (3, 7));
    teller
}

#[test]
fn a_quiet_cluster_is_heard_of_within_half_a_minute() {
    let Cadence { look, quiet, .. } = Cadence::default();
    assert!(look + quiet < Duration::from_secs(30));
}

#[tokio::test]
async fn whose_a_cordon_is_is_told_when_the_hand_knows_better() {
    let mut teller = teller(&[]).await;
    teller.snapshot().await;
    let marked = json!({
        "metadata": {
            "labels": {"gpu-selfhealing.io/status": "faulty"},
            "managedFields": [{"manager": "gpu-selfhealing", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}],
        },
        "spec": {"unschedulable": true},
    });
    teller.cluster.node("n1", &marked);
    assert!(teller.delta().await.changed[0].mark.as_ref().unwrap().cordoned_by_us);
    teller.seen.send_modify(|seen| seen.cordons = [("uid-n1".to_owned(), false)].into());
    assert!(!teller.delta().await.changed[0].mark.as_ref().unwrap().cordoned_by_us);
}

#[tokio::test]
async fn what_the_flags_narrow_is_told_as_part_of_the_owners_config() {
    let flags =
        Flags { cooldown: Some(Duration::from_secs(1800)), level: Some(gpuheal_proto::words::Level::P0), notify_only: true };
    let mut teller = teller_with(&[], flags, Cadence::default()).await;
    let parse = |config: &v1::ClusterConfig| gpuheal_spoke_core::ceiling::parse(&config.yaml).unwrap();
    let first = parse(&teller.snapshot().await.config.unwrap());
    assert_eq!((first.cooldown, first.notify_only), (Some(Duration::from_secs(1800)), true));
    let yaml = "cooldown: 1h\nalertLevel: P1\nnotifyOnly: false\n".to_owned();
    teller.config.send_replace(Some(LocalConfig { resource_version: "9".into(), yaml, lost: None }));
    let told = parse(&teller.delta().await.config.unwrap());
    assert_eq!((told.cooldown, told.notify_only), (Some(Duration::from_secs(3600)), true), "the more careful of the two");
    assert_eq!(told.alert_level, Some(gpuheal_proto::words::Level::P0));
}

#[test]
fn a_large_cluster_is_told_in_parts_that_fit_and_hold_each_node_once() {
    let nodes = (0..1201).map(|n| (Arc::from(format!("n{n:04}")), 1000));
    let parts = parts::snapshot(nodes, &v1::ClusterConfig::default(), vec![]).unwrap();
    let state = |name: &str| Some(v1::NodeState { name: name.to_owned(), ..Default::default() });
    let body = |part: Part| if let Body::Snapshot(part) = part.body(state) { part } else { panic!("a snapshot") };
    let parts: Vec<_> = parts.into_iter().map(body).collect();
    assert_eq!(
        parts.iter().map(|part| (part.part, part.parts, part.nodes.len())).collect::<Vec<_>>(),
        [(1, 3, 500), (2, 3, 500), (3, 3, 201)]
    );
    assert_eq!(parts.iter().filter(|part| part.config.is_some()).count(), 1);
    let told: BTreeSet<_> = parts.iter().flat_map(|part| names(&part.nodes)).collect();
    assert_eq!(told.len(), 1201);
}
