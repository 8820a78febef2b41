//! What spokes watch, and the chain of an incident, as tools ask for them.

use gpuheal_proto::{
    fleet::v1::{
        ListClustersRequest, ListEntriesRequest, ListSourcesRequest, audit_service_client::AuditServiceClient,
        cluster_service_client::ClusterServiceClient,
    },
    link::v1::{self, attach_request::Message as Up, attach_response::Message, cluster_state::Body},
};
use tonic::Code;

use crate::{
    hub::Hub,
    replica::{PATIENCE, Replica, hello, inventory_kept, xid79},
};

fn state() -> Up {
    let source = |source: &str, node: &str, state: &str| v1::SourceState {
        source: source.into(),
        node: node.into(),
        last_seen_unix_ms: 7,
        state: state.into(),
        reason: if state == "fresh" { String::new() } else { "connection refused".into() },
    };
    let sources = vec![
        source("node watch", "", "fresh"),
        source("exporter 10.0.3.7:9400", "n1", "broken"),
        source("exporter 10.0.3.8:9400", "n2", "fresh"),
    ];
    let node = v1::NodeState { name: "n1".into(), uid: "uid-1".into(), ready: v1::Readiness::Ready.into(), ..Default::default() };
    let body = Some(Body::Snapshot(v1::SnapshotPart { part: 1, parts: 1, nodes: vec![node], config: None, sources }));
    Up::ClusterState(v1::ClusterState {
        lease_transitions: 2,
        seq: 1,
        as_of_unix_ms: gpuheal_hub::clock::now().unix_ms(),
        told_upto_unix_ms: 0,
        all_told_term: 0,
        body,
    })
}

#[tokio::test]
async fn each_source_is_shown_with_its_state_page_by_page() {
    let hub = Hub::start_with_database().await;
    let (leader, _) = Replica::attach(&hub, hello("alpha", "r0", Some(2))).await.unwrap_or_else(|r| panic!("{r:?}"));
    leader.send(state()).await;
    let mut client = ClusterServiceClient::new(hub.channel(hub.fleet, Some(&hub.user())));
    let shown = async {
        loop {
            let cluster = client.list_clusters(ListClustersRequest::default()).await.unwrap().into_inner().clusters.remove(0);
            if cluster.sources > 0 {
                break (cluster.sources_fresh, cluster.sources);
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    assert_eq!(tokio::time::timeout(PATIENCE, shown).await.unwrap(), (2, 3));
    let (mut seen, mut page_token) = (vec![], String::new());
    loop {
        let request = ListSourcesRequest { cluster_id: "alpha".into(), page_size: 2, page_token, ..Default::default() };
        let page = client.list_sources(request).await.unwrap().into_inner();
        seen.extend(page.sources.into_iter().map(|source| (source.source, source.node, source.state)));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    seen.sort();
    let want = [("exporter 10.0.3.7:9400", "n1", "broken"), ("exporter 10.0.3.8:9400", "n2", "fresh"), ("node watch", "", "fresh")];
    assert_eq!(seen, want.map(|(source, node, state)| (source.to_owned(), node.to_owned(), state.to_owned())));
    let stale = ListSourcesRequest { stale_only: true, ..Default::default() };
    let stale = client.list_sources(stale).await.unwrap().into_inner().sources;
    assert_eq!((stale.len(), stale[0].reason.as_str(), stale[0].last_seen_unix_ms), (1, "connection refused", 7));
}

#[tokio::test]
async fn an_incidents_entries_are_found_without_naming_its_cluster() {
    let hub = Hub::start_with_database().await;
    let (mut leader, _) = Replica::attach(&hub, hello("alpha", "r0", Some(2))).await.unwrap_or_else(|r| panic!("{r:?}"));
    leader.send(state()).await;
    inventory_kept(&hub).await;
    let fault = xid79(Some(v1::GpuRef { slot: "0000:5d:00".into(), ..Default::default() }));
    leader.send(Up::FaultBatch(v1::FaultBatch { stream_id: "stream-of-r0".into(), first_seq: 1, faults: vec![fault] })).await;
    leader.next_of(|message| matches!(message, Message::FaultAck(_)).then_some(())).await.unwrap();
    gpuheal_hub::decide::step(&hub.pool, &hub.wake).await.unwrap();
    let incident_id: String = sqlx::query_scalar("SELECT incident_id::text FROM incidents").fetch_one(&hub.pool).await.unwrap();
    let mut audit = AuditServiceClient::new(hub.channel(hub.fleet, Some(&hub.user())));
    let request = ListEntriesRequest { incident_id, ..Default::default() };
    let entries = audit.list_entries(request).await.unwrap().into_inner().entries;
    assert!(!entries.is_empty() && entries.iter().all(|entry| entry.cluster_id == "alpha"), "{entries:?}");
    let incident_id = "01890000-0000-7000-8000-000000000000".to_owned();
    let unknown = audit.list_entries(ListEntriesRequest { incident_id, ..Default::default() }).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound, "rather than nothing found");
}
