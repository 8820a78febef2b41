//! Pages and node objects through the detectors into a real journal.

use serde_json::json;

use super::*;
use crate::{scrape::Target, testing::TestCluster};

fn page(xid: u32, energy: u32) -> String {
    let labels = |gpu: u32| {
        format!(
            "gpu=\"{gpu}\",UUID=\"GPU-{gpu}\",pci_bus_id=\"00000000:5{gpu}:00.0\",device=\"nvidia{gpu}\",modelName=\"NVIDIA H100\""
        )
    };
    let mut out = String::new();
    for gpu in 0..8 {
        let xid = if gpu == 3 { xid } else { 0 };
        out += &format!("DCGM_FI_DEV_XID_ERRORS{{{}}} {xid}\n", labels(gpu));
        out += &format!("DCGM_FI_DEV_GPU_TEMP{{{}}} 41\n", labels(gpu));
        out += &format!("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{}}} {energy}\n", labels(gpu));
    }
    out
}

fn target() -> Target {
    Target { node: "n1".into(), url: "http://10.0.0.1:9400/metrics".into(), start: "p/0".into() }
}

async fn scraped(cluster: &TestCluster, xid: u32, at_s: u32) {
    scraped_at(cluster, xid, at_s, Timestamp::from_unix_ms(1_800_000_000_000 + i64::from(at_s) * 1000)).await;
}

async fn scraped_at(cluster: &TestCluster, xid: u32, energy: u32, now: Timestamp) {
    cluster.derive.page(&target(), Ok(page(xid, energy + 1).as_bytes()), now).await;
}

#[tokio::test]
async fn an_xid_that_appears_between_two_pages_is_journaled_as_an_edge_once() {
    let mut cluster = TestCluster::new().await;
    cluster.node("n1", &json!({}));
    for (xid, at_s) in [(0, 0), (79, 60), (79, 120)] {
        scraped(&cluster, xid, at_s).await;
    }
    let faults = cluster.journaled().await;
    let xids: Vec<_> = faults.iter().filter(|fault| fault.class() == v1::FaultClass::Xid).collect();
    assert_eq!(xids.len(), 1, "{faults:?}");
    assert_eq!((xids[0].code.as_str(), xids[0].onset()), ("79", v1::Onset::Edge));
    assert_eq!(xids[0].gpu.as_ref().unwrap().slot, "0000:53:00");
    assert_eq!(xids[0].source, "exporter 10.0.0.1:9400");
    let key = FaultKey::parse(&xids[0].fault_key).unwrap();
    // Judged by the wall clock, which the pages' times are not near: what cannot be told is not clear.
    assert_ne!(cluster.derive.standing(&key), Standing::Cleared);
    assert_eq!(cluster.derive.gpus(&NodeUid::parse("uid-n1").unwrap()).len(), 8);
    assert_eq!(cluster.derive.sources().len(), 1);
}

#[tokio::test]
async fn an_unreadable_alert_is_counted_and_its_neighbours_are_used() {
    let mut cluster = TestCluster::new().await;
    cluster.node("n1", &json!({}));
    let good = json!({"status": "firing", "startsAt": "2026-11-29T19:00:00Z", "labels": {"alertname": "GPUXid", "node": "n1", "xid": "79"}});
    let body = json!({"receiver": "spoke", "alerts": [good, {"labels": 5}, "no alert"]});
    let taken = cluster.derive.alerts(body.to_string().as_bytes(), Timestamp::from_unix_ms(1_800_000_000_000)).await.unwrap();
    assert_eq!((taken.faults, taken.refused.len()), (1, 2), "{taken:?}");
    assert_eq!(cluster.metrics.get(crate::metrics::ALERTS_MALFORMED, &[]), Some(2.0));
    assert_eq!(cluster.derive.complaints.due("webhook spoke", 1, clock::boottime()), None, "it was warned about just now");
}

#[tokio::test]
async fn an_exporters_broken_lines_are_counted_and_warned_about_once_a_minute() {
    let mut cluster = TestCluster::new().await;
    cluster.node("n1", &json!({}));
    let broken = "DCGM_FI_DEV_XID_ERRORS{gpu=\"0\",UUID=\"GPU-0\"} 0\nDCGM_FI_DEV_GPU_TEMP{gpu= 4\n";
    for at_s in [0, 15] {
        let now = Timestamp::from_unix_ms(1_800_000_000_000 + at_s * 1000);
        cluster.derive.page(&target(), Ok(broken.as_bytes()), now).await;
    }
    let refused = cluster.metrics.render();
    assert!(
        refused.lines().any(|line| line.starts_with("gpu_selfhealing_spoke_rows_refused_total") && line.ends_with(" 2")),
        "{refused}"
    );
    assert_eq!(cluster.derive.complaints.due("exporter 10.0.0.1:9400", 1, clock::boottime()), None, "it was warned about just now");
}

#[tokio::test]
async fn a_standby_learns_the_inventory_and_reports_no_fault() {
    let mut cluster = TestCluster::new().await;
    cluster.node("n1", &json!({}));
    cluster.leadership.send_replace(Leadership::Standby);
    scraped(&cluster, 0, 0).await;
    scraped(&cluster, 79, 60).await;
    assert!(cluster.journaled().await.is_empty());
    let body = json!({"alerts": [{"status": "firing", "startsAt": "2026-11-29T19:00:00Z",
        "labels": {"alertname": "GPUXid", "node": "n1", "xid": "79", "UUID": "GPU-3"}}]});
    let taken = cluster.derive.alerts(body.to_string().as_bytes(), Timestamp::from_unix_ms(1_800_000_061_000)).await.unwrap();
    assert_eq!(taken.faults, 1, "{taken:?}");
    let faults = cluster.journaled().await;
    assert_eq!(faults[0].gpu.as_ref().unwrap().slot, "0000:53:00", "the alert named a UUID, the inventory told its slot");
}

#[tokio::test]
async fn what_is_held_outlives_a_restart_so_that_a_change_is_an_edge() {
    let mut cluster = TestCluster::new().await;
    cluster.node("n1", &json!({}));
    // By the machine's own clock: of what is dated later than it nobody knows how old it is.
    let began = clock::wall().before(Duration::from_secs(120));
    scraped_at(&cluster, 0, 0, began).await;
    scraped_at(&cluster, 31, 60, began.after(Duration::from_secs(60))).await;
    cluster.journal.close().await.unwrap();
    let TestCluster { dir, .. } = cluster;
    let mut cluster = loop {
        // The thread before lets go of the directory soon after the close.
        if std::fs::File::open(dir.path().join("lock")).unwrap().try_lock().is_ok() {
            break TestCluster::with_journal(dir, crate::journal::Limits::default()).await;
        }
        tokio::task::yield_now().await;
    };
    cluster.node("n1", &json!({}));
    scraped_at(&cluster, 79, 120, clock::wall()).await;
    let faults = cluster.journaled().await;
    let last = faults.last().unwrap();
    assert_eq!((last.code.as_str(), last.onset()), ("79", v1::Onset::Edge), "{faults:?}");
}

#[tokio::test]
async fn a_fault_that_the_journal_lost_is_told_again_as_standing_once_the_hub_knows_of_the_gap() {
    let mut cluster = TestCluster::new().await;
    cluster.node("n1", &json!({}));
    for (xid, at_s) in [(0, 0), (79, 60), (79, 240), (79, 600)] {
        scraped(&cluster, xid, at_s).await;
    }
    let lost = cluster.journal.head().borrow().clone();
    assert_eq!(lost.next_seq, 2);
    cluster.journal.close().await.unwrap();
    let TestCluster { dir, .. } = cluster;
    // The record of the fault is hurt: its code, as it is encoded. Later ones remember that it was told.
    let paths: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let path = paths.iter().find(|path| path.extension().is_some_and(|extension| extension == "seg")).unwrap();
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.windows(4).position(|four| four == [0x2a, 2, b'7', b'9']).unwrap();
    bytes[at + 2] ^= 1;
    std::fs::write(path, bytes).unwrap();
    let mut cluster = loop {
        // The thread before lets go of the directory soon after the close.
        if std::fs::File::open(dir.path().join("lock")).unwrap().try_lock().is_ok() {
            break TestCluster::with_journal(dir, crate::journal::Limits::default()).await;
        }
        tokio::task::yield_now().await;
    };
    cluster.node("n1", &json!({}));
    let chunk = cluster.journal.read(&lost.stream, 1).await.unwrap();
    assert!(matches!(chunk, crate::journal::Chunk::Gap { from_seq: 1, to_seq: 1, .. }), "{chunk:?}");
    let cancel = CancellationToken::new();
    tokio::spawn(run(Arc::clone(&cluster.derive), Arc::clone(&cluster.touched), mpsc::channel(1).1, cancel.clone()));
    let told = async |cluster: &TestCluster| cluster.journaled().await.into_iter().find(|fault| fault.code == "79");
    assert_eq!(told(&cluster).await, None, "it is remembered as told");
    cluster.journal.acked(lost.stream.clone(), 1).await;
    let fault = tokio::time::timeout(Duration::from_secs(120), async {
        loop {
            if let Some(fault) = told(&cluster).await {
                return fault;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let fault = fault.await.unwrap();
    assert_eq!((fault.onset(), fault.witness()), (v1::Onset::Standing, v1::Witness::ExporterGauge));
    assert_eq!(fault.gpu.as_ref().unwrap().slot, "0000:53:00");
    cancel.cancel();
}

#[tokio::test]
async fn what_stands_is_journaled_anew_for_a_hub_whose_database_has_lost_it() {
    let mut cluster = TestCluster::new().await;
    cluster.node("n1", &json!({}));
    for (xid, at_s) in [(0, 0), (79, 60)] {
        scraped(&cluster, xid, at_s).await;
    }
    assert_eq!(cluster.journal.head().borrow().next_seq, 2);
    let cancel = CancellationToken::new();
    tokio::spawn(run(Arc::clone(&cluster.derive), Arc::clone(&cluster.touched), mpsc::channel(1).1, cancel.clone()));
    // Perhaps before the loop has begun, perhaps later.
    cluster.attachment.send_modify(|attachment| attachment.asked_term = 2);
    let mut head = cluster.journal.head();
    let written = tokio::time::timeout(Duration::from_secs(120), head.wait_for(|head| head.next_seq == 3));
    drop(written.await.unwrap().unwrap());
    let again = cluster.journaled().await.pop().unwrap();
    assert_eq!((again.code.as_str(), again.onset()), ("79", v1::Onset::Standing));
    cancel.cancel();
}

/// Failure table, row 18: in a session that goes on nobody asks again.
#[tokio::test]
async fn whoever_was_asked_for_what_stands_while_he_stood_by_tells_it_when_he_leads() {
    let mut cluster = TestCluster::new().await;
    cluster.node("n1", &json!({}));
    for (xid, at_s) in [(0, 0), (79, 60)] {
        scraped(&cluster, xid, at_s).await;
    }
    cluster.leadership.send_replace(Leadership::Standby);
    let mut again = Again::new(&cluster.journal);
    again.owe_all(&cluster.derive);
    again.go_on(&cluster.derive).await;
    let next = |cluster: &TestCluster| cluster.journal.head().borrow().next_seq;
    assert_eq!((next(&cluster), again.owes_nothing()), (2, false), "what an exporter showed is the leader's to tell");
    cluster.leadership.send_replace(Leadership::Leading { lease_transitions: 4 });
    again.go_on(&cluster.derive).await;
    assert_eq!((next(&cluster), again.owes_nothing()), (3, true));
    let told = cluster.journaled().await.pop().unwrap();
    assert_eq!((told.code.as_str(), told.onset()), ("79", v1::Onset::Standing));
}

/// Another replica found it and is gone: who leads now has seen nothing of it, and would see nothing end.
#[tokio::test]
async fn a_leader_takes_up_the_faults_that_the_hub_asks_for_and_tells_their_end() {
    let (mut first, mut second) = (TestCluster::new().await, TestCluster::new().await);
    let now = clock::wall();
    let show = |failed: u8, energy: u32| remapping(failed, energy);
    first.node("n1", &json!({}));
    second.node("n1", &json!({}));
    for (at_s, failed) in [(0, 0), (60, 1)] {
        let page = show(failed, at_s + 1);
        first.derive.page(&target(), Ok(page.as_bytes()), now.after(Duration::from_secs(at_s.into()))).await;
    }
    let fault = first.journaled().await.pop().unwrap();
    let asked = |node_uid: &str| {
        let mut fault = fault.clone();
        fault.node.as_mut().unwrap().uid = node_uid.to_owned();
        let witnesses = vec![fault.witness];
        vec![v1::FaultAsked { fault: Some(fault), witnesses }]
    };
    let (send, receive) = mpsc::channel(1);
    let cancel = CancellationToken::new();
    tokio::spawn(run(Arc::clone(&second.derive), Arc::clone(&second.touched), receive, cancel.clone()));
    // Of another machine of that name, and of none.
    send.send(asked("uid-of-another")).await.unwrap();
    send.send(vec![v1::FaultAsked::default()]).await.unwrap();
    send.send(asked("uid-n1")).await.unwrap();
    let taken = tokio::time::timeout(Duration::from_secs(20), async {
        while second.derive.nodes_with_faults().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    taken.await.unwrap();
    assert!(second.journaled().await.is_empty(), "nothing was found by it");
    second.derive.page(&target(), Ok(show(0, 200).as_bytes()), clock::wall()).await;
    let clear = tokio::time::timeout(Duration::from_secs(20), async {
        loop {
            let batch = second.evidence.recv().await.unwrap();
            if batch.items.iter().any(|item| item.fault_key == fault.fault_key && item.state() == v1::EvidenceState::Clear) {
                return;
            }
        }
    });
    clear.await.expect("its end is told");
    cancel.cancel();
}

#[tokio::test]
async fn a_standby_leaves_what_the_hub_asks_for() {
    let mut cluster = TestCluster::new().await;
    cluster.node("n1", &json!({}));
    for (xid, at_s) in [(0, 0), (79, 60)] {
        scraped(&cluster, xid, at_s).await;
    }
    let fault = cluster.journaled().await.pop().unwrap();
    let mut other = TestCluster::new().await;
    other.node("n1", &json!({}));
    other.leadership.send_replace(Leadership::Standby);
    let asked = || vec![v1::FaultAsked { witnesses: vec![fault.witness], fault: Some(fault.clone()) }];
    other.derive.take_up(asked()).await;
    assert!(other.derive.nodes_with_faults().is_empty());
    other.leadership.send_replace(Leadership::Leading { lease_transitions: 4 });
    other.derive.take_up(asked()).await;
    assert_eq!(other.derive.nodes_with_faults().len(), 1);
}

#[tokio::test]
async fn a_node_that_is_deleted_is_forgotten_and_known_faults_are_told_when_asked() {
    let mut cluster = TestCluster::new().await;
    cluster.node("n1", &json!({}));
    let cancel = CancellationToken::new();
    tokio::spawn(run(Arc::clone(&cluster.derive), Arc::clone(&cluster.touched), mpsc::channel(1).1, cancel.clone()));
    scraped(&cluster, 0, 0).await;
    scraped(&cluster, 79, 60).await;
    cluster.attachment.send_modify(|attachment| attachment.asked_term = 2);
    let key = cluster.journaled().await[0].fault_key.clone();
    let told = tokio::time::timeout(Duration::from_secs(120), async {
        loop {
            let batch = cluster.evidence.recv().await.unwrap();
            if batch.items.iter().any(|item| item.fault_key == key) {
                return true;
            }
        }
    });
    assert!(told.await.unwrap());
    cluster.delete_node("n1");
    let uid = NodeUid::parse("uid-n1").unwrap();
    let forgotten = tokio::time::timeout(Duration::from_secs(120), async {
        while !cluster.derive.gpus(&uid).is_empty() {
            tokio::task::yield_now().await;
        }
    });
    forgotten.await.unwrap();
    cancel.cancel();
}

#[tokio::test]
async fn gpus_that_a_starting_plugin_does_not_offer_yet_are_no_fault_and_later_they_are() {
    let mut cluster = TestCluster::new().await;
    let settings = cluster.settings.detect();
    let at = |seconds| Timestamp::from_unix_ms(1_800_000_000_000).after(Duration::from_secs(seconds));
    cluster.node("n1", &json!({}));
    cluster.derive.node("n1", &settings, at(0)).await;
    cluster.node("n1", &json!({"status": {"allocatable": {"nvidia.com/gpu": "5"}}}));
    cluster.derive.node("n1", &settings, at(10)).await;
    // 1,800,000,200 as a date: the plugin starts when its devices have been missing for longer than the debounce.
    let pod = json!({
        "metadata": {"name": "plugin", "uid": "uid-plugin"}, "spec": {"nodeName": "n1", "containers": []},
        "status": {"startTime": "2027-01-15T08:03:20Z"},
    });
    crate::watch::Keep::put(&mut cluster.plugins.keeper(0), serde_json::from_value(pod).unwrap());
    assert_eq!(cluster.plugins.started_at("n1"), Some(at(200)));
    cluster.derive.node("n1", &settings, at(210)).await;
    assert!(cluster.journaled().await.is_empty(), "the plugin started ten seconds ago");
    cluster.derive.node("n1", &settings, at(200 + settings.allocatable_debounce.as_secs())).await;
    let faults = cluster.journaled().await;
    assert_eq!((faults.len(), faults[0].class()), (1, v1::FaultClass::Allocatable), "{faults:?}");
}

#[tokio::test]
async fn what_time_alone_found_and_the_journal_refused_is_found_again() {
    let limits = crate::journal::Limits { bytes_max: 64 << 10, ..crate::journal::Limits::default() };
    let mut cluster = TestCluster::with_journal(tempfile::tempdir().unwrap(), limits).await;
    cluster.node("n1", &json!({}));
    let now = Timestamp::from_unix_ms(1_800_000_000_000);
    cluster.derive.page(&target(), Err(&crate::scrape::Failure::Timeout), now).await;
    // Until the journal takes no more: what is left is less than the smallest record needs.
    for size in [16 << 10, 4 << 10, 1 << 10, 256, 64, 8] {
        for _ in 0..16 {
            let _ = cluster.journal.append(&[], vec![("filler".into(), vec![b'x'; size].into())]).await;
        }
    }
    let settings = cluster.settings.detect();
    let much_later = now.after(Duration::from_secs(86_400));
    for _ in 0..2 {
        let error = cluster.derive.take(&BTreeSet::new(), false, |held| held.tick(&settings, much_later)).await.unwrap_err();
        assert!(matches!(error, journal::Error::Full { .. }), "{error}: a silent exporter is a fault, and found each time");
    }
    assert!(cluster.journaled().await.is_empty());
}

/// A page of one GPU whose row remapping has failed, or has not.
fn remapping(failed: u8, energy: u32) -> String {
    let labels = "gpu=\"0\",UUID=\"GPU-0\",pci_bus_id=\"00000000:50:00.0\"";
    format!("DCGM_FI_DEV_ROW_REMAP_FAILURE{{{labels}}} {failed}\nDCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{labels}}} {energy}\n")
}

/// What the link was given: how each fault stands.
fn told(cluster: &mut TestCluster) -> Vec<v1::EvidenceState> {
    std::iter::from_fn(|| cluster.evidence.try_recv().ok()).flat_map(|batch| batch.items).map(|item| item.state()).collect()
}

#[tokio::test]
async fn what_cleared_in_a_session_that_died_is_told_again_in_the_next() {
    use v1::EvidenceState::{Clear, Seen};
    let mut cluster = TestCluster::new().await;
    cluster.node("n1", &json!({}));
    let derive = Arc::clone(&cluster.derive);
    let (mut telling, now) = (Telling::default(), clock::wall());
    for (at_s, failed) in [(0, 0), (60, 1)] {
        let page = remapping(failed, at_s + 1);
        derive.page(&target(), Ok(page.as_bytes()), now.after(Duration::from_secs(at_s.into()))).await;
    }
    derive.tell(&mut telling, true, Some(3), None);
    assert_eq!(told(&mut cluster), [Seen]);
    derive.page(&target(), Ok(remapping(0, 200).as_bytes()), now.after(Duration::from_secs(120))).await;
    derive.tell(&mut telling, true, Some(3), None);
    assert_eq!(told(&mut cluster), [Clear]);
    derive.tell(&mut telling, true, Some(3), None);
    assert_eq!(told(&mut cluster), [], "once in a session");
    // That one was dead already when it was told.
    cluster.attachment.send_replace(Attachment::default());
    derive.tell(&mut telling, true, Some(3), None);
    assert_eq!(told(&mut cluster), [], "to nobody");
    cluster.attachment.send_replace(Attachment { generation: Some(8), ..Attachment::default() });
    derive.tell(&mut telling, true, Some(3), None);
    assert_eq!(told(&mut cluster), [Clear]);
    // And the next process tells what its predecessor may not have got across.
    derive.tell(&mut Telling::default(), true, Some(3), None);
    assert_eq!(told(&mut cluster), [Clear]);
}

#[tokio::test]
async fn who_has_not_looked_at_all_nodes_since_it_leads_does_not_say_that_all_was_told() {
    let cluster = TestCluster::new().await;
    let to = Audience { reign: 3, session: 7, asked_term: 0 };
    cluster.attachment.send_replace(Attachment { generation: Some(7), ..Attachment::default() });
    for (looked, all) in [(None, false), (Some(2), false), (Some(3), true)] {
        cluster.derive.tell(&mut Telling::default(), true, looked, None);
        assert_eq!(cluster.derive.has_told(to), all, "{looked:?}");
    }
}

/// A standby takes no node object in: whoever comes to lead looks at them at once.
#[tokio::test]
async fn who_comes_to_lead_looks_at_every_node_before_it_says_that_all_was_told() {
    let mut cluster = TestCluster::new().await;
    cluster.leadership.send_replace(Leadership::Standby);
    cluster
        .node("n1", &json!({"status": {"conditions": [{"type": "GPUFellOff", "status": "True", "reason": "x", "message": "x"}]}}));
    let cancel = CancellationToken::new();
    tokio::spawn(run(Arc::clone(&cluster.derive), Arc::clone(&cluster.touched), mpsc::channel(1).1, cancel.clone()));
    cluster.attachment.send_replace(Attachment { generation: Some(7), ..Attachment::default() });
    // Its first look is over, and the next is half a minute away.
    tokio::time::sleep(Duration::from_millis(300)).await;
    cluster.leadership.send_replace(Leadership::Leading { lease_transitions: 4 });
    let to = Audience { reign: 4, session: 7, asked_term: 0 };
    let all = tokio::time::timeout(Duration::from_secs(20), async {
        while !cluster.derive.has_told(to) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    all.await.expect("at the second's end, not at that of half a minute");
    let uid = NodeUid::parse("uid-n1").unwrap();
    assert!(cluster.derive.held.lock().unwrap().checkpoint(&uid).is_some(), "its node was looked at");
    cancel.cancel();
}

#[tokio::test]
async fn a_new_session_is_told_how_everything_stands_and_loses_nothing_of_it_for_want_of_room() {
    use v1::EvidenceState::Seen;
    let mut cluster = TestCluster::new().await;
    let (derive, now) = (Arc::clone(&cluster.derive), clock::wall());
    // More than one message can carry.
    let nodes = 300;
    for n in 0..nodes {
        let name = format!("n{n}");
        cluster.node(&name, &json!({}));
        let target = Target { node: name, url: "http://10.0.0.1:9400/metrics".into(), start: "p/0".into() };
        for (at_s, failed) in [(0, 0), (60, 1)] {
            let page = remapping(failed, at_s + 1);
            derive.page(&target, Ok(page.as_bytes()), now.after(Duration::from_secs(at_s.into()))).await;
        }
    }
    let mut telling = Telling::default();
    for generation in [7, 8] {
        cluster.attachment.send_replace(Attachment { generation: Some(generation), ..Attachment::default() });
        derive.tell(&mut telling, true, Some(3), None);
        assert_eq!(told(&mut cluster), vec![Seen; nodes], "session {generation}");
    }
}

#[tokio::test]
async fn what_was_held_of_a_node_and_cannot_be_read_at_a_start_is_counted() {
    let cluster = TestCluster::new().await;
    cluster.journal.hold(vec![("uid-n1".to_owned(), Bytes::from_static(b"{\"format\":9}"))]).await;
    cluster.journal.close().await.unwrap();
    let again = TestCluster::with_journal(cluster.dir, crate::journal::Limits::default()).await;
    let told = again.metrics.render();
    assert!(told.contains("gpu_selfhealing_spoke_memories_lost_total 1"), "{told}");
}
