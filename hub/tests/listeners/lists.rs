//! What tools read through the fleet API, page by page.

use gpuheal_hub::link::Seen;
use gpuheal_proto::{
    fleet::v1::{
        ApplyPolicyRequest, GetPolicyRequest, ListClustersRequest, ListCommandsRequest, ListEntriesRequest, ListIncidentsRequest,
        ListNodesRequest, ProcessRequest, ResumeFleetRequest, StopFleetRequest, VerifyChainRequest,
        audit_service_client::AuditServiceClient, cluster_service_client::ClusterServiceClient,
        command_service_client::CommandServiceClient, incident_service_client::IncidentServiceClient,
        policy_service_client::PolicyServiceClient,
    },
    link::v1::Hello,
};
use tonic::Code;

use crate::{
    hub::{Hub, now},
    replica::{PATIENCE, Replica, hello},
};

#[tokio::test]
async fn pages_of_clusters_hold_each_once_and_say_who_leads() {
    let hub = Hub::start_with_database().await;
    let mut replicas = vec![];
    for id in ["alpha", "beta", "gamma"] {
        let attached = Replica::attach(&hub, hello(id, "r0", (id == "beta").then_some(4))).await;
        replicas.push(attached.unwrap_or_else(|r| panic!("{r:?}")));
    }
    let mut client = ClusterServiceClient::new(hub.channel(hub.fleet, Some(&hub.user())));
    let (mut ids, mut page_token) = (vec![], String::new());
    loop {
        let page = client.list_clusters(ListClustersRequest { page_size: 2, page_token }).await.unwrap().into_inner();
        for cluster in page.clusters {
            assert_eq!(cluster.connected, cluster.cluster_id == "beta");
            assert_eq!(cluster.leader_replica, if cluster.connected { "r0" } else { "" });
            assert_eq!(cluster.replicas_attached, 1);
            ids.push(cluster.cluster_id);
        }
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(ids, ["alpha", "beta", "gamma"]);
}

/// Failure table, row 22.
#[tokio::test]
async fn a_replica_whose_clock_is_far_off_is_let_in_and_told_as_a_problem_until_it_is_right() {
    let hub = Hub::start_with_database().await;
    let mut client = ClusterServiceClient::new(hub.channel(hub.fleet, Some(&hub.user())));
    let seen = Seen { pool: hub.pool.clone(), registry: hub.registry.clone() };
    let mut problems = async || {
        seen.round().await.unwrap();
        let mut problems =
            client.list_clusters(ListClustersRequest::default()).await.unwrap().into_inner().clusters[0].problems.clone();
        let first = problems.remove(0);
        assert!(first.starts_with("not taken over under epoch 1 yet"), "it has told nothing: {first}");
        problems
    };
    let showing = |replica, ahead_ms| Hello { wall_unix_ms: now().unix_ms() + ahead_ms, ..hello("alpha", replica, None) };
    let _right = Replica::attach(&hub, showing("r0", 0)).await.unwrap_or_else(|r| panic!("{r:?}"));
    let _untold = Replica::attach(&hub, hello("alpha", "r1", None)).await.unwrap_or_else(|r| panic!("{r:?}"));
    assert_eq!(problems().await, [""; 0]);
    let hour = 3_600_000;
    for (ahead_ms, way) in [(hour, "ahead of"), (-hour, "behind")] {
        let _off = Replica::attach(&hub, showing("r2", ahead_ms)).await.unwrap_or_else(|r| panic!("{r:?}"));
        let told = problems().await;
        assert!(told.len() == 1 && told[0].starts_with("clock of r2 is 3") && told[0].contains(way), "{told:?}");
        // Other hubs of this process count under the same name.
        let counted = async {
            while !gpuheal_hub::metrics::text().contains("\ngpu_selfhealing_hub_clocks_apart 1\n") {
                seen.round().await.unwrap();
            }
        };
        tokio::time::timeout(PATIENCE, counted).await.expect("it is counted");
    }
    let _mended = Replica::attach(&hub, showing("r2", 0)).await.unwrap_or_else(|r| panic!("{r:?}"));
    assert_eq!(problems().await, [""; 0]);
}

#[tokio::test]
async fn an_empty_fleet_has_empty_lists_and_a_whole_chain() {
    let hub = Hub::start_with_database().await;
    let channel = hub.channel(hub.fleet, Some(&hub.user()));
    let nodes = ClusterServiceClient::new(channel.clone()).list_nodes(ListNodesRequest::default()).await.unwrap().into_inner();
    assert!(nodes.nodes.is_empty() && nodes.next_page_token.is_empty());
    let incidents = IncidentServiceClient::new(channel.clone()).list_incidents(ListIncidentsRequest::default()).await.unwrap();
    assert!(incidents.into_inner().incidents.is_empty());
    let commands = CommandServiceClient::new(channel.clone()).list_commands(ListCommandsRequest::default()).await.unwrap();
    assert!(commands.into_inner().commands.is_empty());
    let mut audit = AuditServiceClient::new(channel);
    let chain = audit.verify_chain(VerifyChainRequest::default()).await.unwrap().into_inner();
    assert!(chain.intact, "{chain:?}");
    assert!(audit.list_entries(ListEntriesRequest::default()).await.unwrap().into_inner().entries.is_empty());
}

#[tokio::test]
async fn a_cluster_that_never_attached_is_not_found_rather_than_empty_or_intact() {
    let hub = Hub::start_with_database().await;
    let channel = hub.channel(hub.fleet, Some(&hub.user()));
    let mut audit = AuditServiceClient::new(channel.clone());
    let cluster_id = "zzz".to_owned();
    let refused = audit.verify_chain(VerifyChainRequest { cluster_id: cluster_id.clone() }).await.unwrap_err();
    assert_eq!((refused.code(), refused.message().contains("zzz")), (Code::NotFound, true));
    let nodes = ListNodesRequest { cluster_id, ..ListNodesRequest::default() };
    assert_eq!(ClusterServiceClient::new(channel).list_nodes(nodes).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_with_the_fields_name() {
    let hub = Hub::start_with_database().await;
    let mut client = ClusterServiceClient::new(hub.channel(hub.fleet, Some(&hub.user())));
    let bad = ListNodesRequest { cluster_id: "NOT AN ID".into(), ..ListNodesRequest::default() };
    let refused = client.list_nodes(bad).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().starts_with("cluster_id"), "{}", refused.message());
    let bad = ListNodesRequest { page_token: "x".into(), ..ListNodesRequest::default() };
    let refused = client.list_nodes(bad).await.unwrap_err();
    assert!(refused.message().starts_with("page_token"), "{}", refused.message());
}

#[tokio::test]
async fn a_policy_is_kept_as_it_was_written_and_a_broken_one_not_at_all() {
    let hub = Hub::start_with_database().await;
    let mut client = PolicyServiceClient::new(hub.channel(hub.fleet, Some(&hub.user())));
    assert_eq!(client.get_policy(GetPolicyRequest::default()).await.unwrap_err().code(), Code::NotFound);
    let broken = ApplyPolicyRequest { yaml: "cooldown: soon\nsurprise: 1\n".into(), ..ApplyPolicyRequest::default() };
    let answer = client.apply_policy(broken).await.unwrap().into_inner();
    assert_eq!(answer.revision, 0);
    assert!(answer.problems.len() >= 2 && answer.problems.iter().all(|problem| problem.line > 0), "{:?}", answer.problems);
    let yaml = "# ours\ncooldown: 20m\nalertLevel: P0\n";
    let dry = ApplyPolicyRequest { yaml: yaml.into(), dry_run: true, ..ApplyPolicyRequest::default() };
    let answer = client.apply_policy(dry.clone()).await.unwrap().into_inner();
    assert!(answer.problems.is_empty() && answer.revision == 0, "{answer:?}");
    let answer = client.apply_policy(ApplyPolicyRequest { dry_run: false, ..dry.clone() }).await.unwrap().into_inner();
    assert_eq!((answer.revision, answer.unchanged), (1, false));
    let again = client.apply_policy(ApplyPolicyRequest { dry_run: false, ..dry }).await.unwrap().into_inner();
    assert_eq!((again.revision, again.unchanged), (1, true));
    let kept = client.get_policy(GetPolicyRequest::default()).await.unwrap().into_inner();
    assert_eq!((kept.yaml.as_str(), kept.applied_by.as_str()), (yaml, "user/operator"));
}

#[tokio::test]
async fn an_empty_reason_is_refused_whatever_is_asked() {
    let hub = Hub::start_with_database().await;
    let mut client = CommandServiceClient::new(hub.channel(hub.fleet, Some(&hub.user())));
    for blank in ["", "  "] {
        let reason = blank.to_owned();
        let process = ProcessRequest {
            request_id: "r1".into(),
            cluster_id: "alpha".into(),
            node: "n1".into(),
            action: "release".into(),
            reason: reason.clone(),
            ..ProcessRequest::default()
        };
        let refused = [
            client.process(process).await.unwrap_err(),
            client.stop_fleet(StopFleetRequest { reason: reason.clone() }).await.unwrap_err(),
            client.resume_fleet(ResumeFleetRequest { reason }).await.unwrap_err(),
        ];
        for status in refused {
            assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
            assert_eq!(status.message(), "reason: it is empty");
        }
    }
}
