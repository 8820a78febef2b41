//! Who gets in, and who is told no.

use gpuheal_ctl::pki::{Authority, Issued, Leaf};
use gpuheal_proto::{
    fleet::v1::{ListClustersRequest, cluster_service_client::ClusterServiceClient},
    link::v1::{
        AttachRequest, Heartbeat, Hello, RejectCode, attach_request, attach_response::Message,
        link_service_client::LinkServiceClient,
    },
};
use tokio_stream::StreamExt as _;
use tonic::{Code, Status, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::hub::{DOMAIN, Hub, authority, channel, now};

async fn healthy(channel: Channel) -> Result<(), Status> {
    HealthClient::new(channel).check(HealthCheckRequest::default()).await.map(|_| ())
}

/// Attaches with one message and returns the first answer.
async fn first_answer(channel: Channel, first: attach_request::Message) -> Result<Message, Status> {
    let (up, messages) = tokio::sync::mpsc::channel(4);
    up.send(AttachRequest { message: Some(first) }).await.unwrap();
    let stream = tokio_stream::wrappers::ReceiverStream::new(messages);
    let mut down = LinkServiceClient::new(channel).attach(stream).await?.into_inner();
    let answer = down.next().await.expect("the hub says something before it hangs up")?;
    Ok(answer.message.unwrap())
}

fn hello(cluster: &str) -> attach_request::Message {
    attach_request::Message::Hello(Hello {
        cluster_id: cluster.into(),
        kube_system_uid: "uid".into(),
        replica_id: "spoke-0".into(),
        boot_id: "boot".into(),
        ..Hello::default()
    })
}

async fn refused_by_both(hub: &Hub, client: Option<&Issued>, who: &str) {
    for to in [hub.link, hub.fleet] {
        let answer = healthy(hub.channel(to, client)).await;
        assert!(answer.is_err(), "{who} got an answer from {to}");
    }
}

#[tokio::test]
async fn a_spoke_and_a_user_are_answered_each_on_their_own_listener() {
    let hub = Hub::start().await;
    healthy(hub.channel(hub.link, Some(&hub.spoke("alpha")))).await.unwrap();
    healthy(hub.channel(hub.fleet, Some(&hub.user()))).await.unwrap();
}

#[tokio::test]
async fn a_client_without_a_certificate_gets_no_answer_to_its_first_call() {
    let hub = Hub::start().await;
    refused_by_both(&hub, None, "nobody").await;
}

#[tokio::test]
async fn a_certificate_of_another_ca_is_refused() {
    let hub = Hub::start().await;
    let other = authority();
    let spoke = other.issue(&Leaf::spoke(DOMAIN, &crate::hub::cluster("alpha"))).unwrap();
    refused_by_both(&hub, Some(&spoke), "a stranger").await;
}

#[tokio::test]
async fn a_certificate_with_two_identities_is_refused() {
    let hub = Hub::start().await;
    let uris = ["spiffe://dev.gpuheal/cluster/alpha/spoke", "spiffe://dev.gpuheal/user/admin"];
    let both = hub.issue(&Leaf { common_name: "both".into(), uris: uris.map(str::to_owned).to_vec(), ..Leaf::default() });
    refused_by_both(&hub, Some(&both), "a two-faced client").await;
}

#[tokio::test]
async fn the_hubs_own_certificate_is_no_client() {
    let hub = Hub::start().await;
    let own = hub.issue(&Leaf::hub(DOMAIN));
    refused_by_both(&hub, Some(&own), "a hub").await;
}

#[tokio::test]
async fn a_certificate_of_another_trust_domain_is_refused_although_our_ca_signed_it() {
    let hub = Hub::start().await;
    let foreign = hub.issue(&Leaf::user("prod.gpuheal", "admin"));
    refused_by_both(&hub, Some(&foreign), "a foreign user").await;
}

#[tokio::test]
async fn an_expired_certificate_is_refused() {
    let fresh = authority();
    let old = Authority::new(DOMAIN, 1, now().before(std::time::Duration::from_secs(3 * 24 * 3600))).unwrap();
    let cas = [fresh.cert_pem().to_owned(), old.cert_pem().to_owned()];
    let hub = Hub::start_trusting(fresh, &[&cas[0], &cas[1]]).await;
    let expired = old.issue(&Leaf::user(DOMAIN, "operator")).unwrap();
    refused_by_both(&hub, Some(&expired), "a user of the day before yesterday").await;
}

#[tokio::test]
async fn a_spoke_on_the_fleet_listener_is_told_where_it_belongs_and_the_reverse() {
    let hub = Hub::start().await;
    let spoke = hub.spoke("alpha");
    let refused =
        ClusterServiceClient::new(hub.channel(hub.fleet, Some(&spoke))).list_clusters(ListClustersRequest::default()).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("link listener"), "{}", refused.message());
    let refused = first_answer(hub.channel(hub.link, Some(&hub.user())), hello("alpha")).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("fleet listener"), "{}", refused.message());
}

#[tokio::test]
async fn a_spoke_cannot_speak_for_another_cluster() {
    let hub = Hub::start().await;
    let answer = first_answer(hub.channel(hub.link, Some(&hub.spoke("alpha"))), hello("beta")).await.unwrap();
    let Message::Reject(reject) = answer else { panic!("{answer:?}") };
    assert_eq!(reject.code(), RejectCode::Foreign);
    assert!(reject.reason.contains("alpha") && reject.reason.contains("beta"), "{}", reject.reason);
}

#[tokio::test]
async fn nothing_is_taken_before_a_hello() {
    let hub = Hub::start().await;
    let beat = attach_request::Message::Heartbeat(Heartbeat::default());
    let answer = first_answer(hub.channel(hub.link, Some(&hub.spoke("alpha"))), beat).await.unwrap();
    assert!(matches!(answer, Message::Reject(_)), "{answer:?}");
}

#[tokio::test]
async fn a_hub_without_its_database_says_so_and_when_to_come_again() {
    let hub = Hub::start().await;
    let answer = first_answer(hub.channel(hub.link, Some(&hub.spoke("alpha"))), hello("alpha")).await.unwrap();
    let Message::Reject(reject) = answer else { panic!("{answer:?}") };
    assert_eq!(reject.code(), RejectCode::Busy);
    assert!(reject.retry_after_ms > 0);
    let user = ClusterServiceClient::new(hub.channel(hub.fleet, Some(&hub.user())));
    let refused = { user }.list_clusters(ListClustersRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
}

#[tokio::test]
async fn a_client_that_trusts_another_ca_does_not_talk_to_this_hub() {
    let hub = Hub::start().await;
    let other = authority();
    let answer = healthy(channel(hub.fleet, other.cert_pem(), Some(&hub.user()))).await;
    assert!(answer.is_err());
}
