//! What tools find on the fleet listener without having our .proto files.

use tokio_stream::StreamExt as _;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
use tonic_reflection::pb::{v1, v1alpha};

use crate::hub::Hub;

const SERVICES: [&str; 6] = [
    "gpuheal.fleet.v1.AuditService",
    "gpuheal.fleet.v1.ClusterService",
    "gpuheal.fleet.v1.CommandService",
    "gpuheal.fleet.v1.IncidentService",
    "gpuheal.fleet.v1.PolicyService",
    "grpc.health.v1.Health",
];

/// Each version of the protocol has its own types of the same names.
macro_rules! listed {
    ($version:ident, $hub:expr) => {{
        use $version::{
            ServerReflectionRequest, server_reflection_client::ServerReflectionClient, server_reflection_request::MessageRequest,
            server_reflection_response::MessageResponse,
        };
        let user = $hub.user();
        let request =
            ServerReflectionRequest { host: String::new(), message_request: Some(MessageRequest::ListServices(String::new())) };
        let mut client = ServerReflectionClient::new($hub.channel($hub.fleet, Some(&user)));
        let mut answers = client.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
        let Some(MessageResponse::ListServicesResponse(list)) = answers.next().await.unwrap().unwrap().message_response else {
            panic!("no list of services")
        };
        let mut names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
        names.sort();
        names
    }};
}

#[tokio::test]
async fn both_versions_of_reflection_list_what_is_served() {
    let hub = Hub::start().await;
    for names in [listed!(v1, hub), listed!(v1alpha, hub)] {
        for service in SERVICES {
            assert!(names.iter().any(|name| name == service), "{service} is not in {names:?}");
        }
        assert!(!names.iter().any(|name| name.contains("link")), "the link is not served here: {names:?}");
    }
}

#[tokio::test]
async fn each_service_says_that_it_is_served() {
    let hub = Hub::start().await;
    for (to, client, names) in
        [(hub.fleet, hub.user(), SERVICES[..5].to_vec()), (hub.link, hub.spoke("alpha"), vec!["gpuheal.link.v1.LinkService", ""])]
    {
        let mut health = HealthClient::new(hub.channel(to, Some(&client)));
        for name in names {
            let answer = health.check(HealthCheckRequest { service: name.into() }).await.unwrap().into_inner();
            assert_eq!(answer.status(), ServingStatus::Serving, "{name}");
        }
    }
}
