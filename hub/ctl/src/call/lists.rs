//! The lists, page by page until the limit is reached.

use std::cell::RefCell;

use gpuheal_proto::{
    fleet::v1::{
        Cluster, ListClustersRequest, ListCommandsRequest, ListIncidentsRequest, ListNodesRequest, ListSourcesRequest,
        cluster_service_client::ClusterServiceClient, command_service_client::CommandServiceClient,
        incident_service_client::IncidentServiceClient,
    },
    ids::ClusterId,
};
use serde::Serialize;
use tonic::{Status, transport::Channel};

use super::Error;
use crate::{
    args::Filter,
    output::{Printer, Row},
};

/// The API's own limit.
const PAGE_MAX: u32 = 1000;
/// More clusters than anybody has: the list ends there rather than never.
const CLUSTERS_MAX: u32 = 100_000;

/// What stands still, as a list tells it beside its rows.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Stopped {
    /// Why the whole fleet is stopped.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) fleet_stopped_for: String,
    /// Clusters whose owner stopped them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) clusters_stopped: Vec<String>,
}

/// A page of a list, and the token of the next one.
pub(super) type Page<T> = Result<(Vec<T>, String), Status>;

/// Follows pages: `ask` takes a page's size and token. True when there is more than the limit.
pub(super) async fn pages<T>(limit: u32, ask: impl AsyncFn(u32, String) -> Page<T>) -> Result<(Vec<T>, bool), Status> {
    let most = usize::try_from(limit).unwrap_or(usize::MAX);
    let (mut all, mut token) = (Vec::new(), String::new());
    loop {
        let left = u32::try_from(most.saturating_sub(all.len())).unwrap_or(PAGE_MAX);
        let (page, next) = ask(left.min(PAGE_MAX), token).await?;
        all.extend(page);
        all.truncate(most);
        if next.is_empty() || all.len() >= most {
            return Ok((all, !next.is_empty()));
        }
        token = next;
    }
}

/// Prints what pages hold.
pub(super) async fn listed<T: Row + Serialize>(
    printer: &mut Printer,
    limit: u32,
    ask: impl AsyncFn(u32, String) -> Page<T>,
) -> Result<bool, Error> {
    let (all, more) = pages(limit, ask).await?;
    printer.list(&all, more)?;
    Ok(true)
}

/// Every cluster, and why the fleet is stopped if it is.
pub(super) async fn all_clusters(channel: Channel) -> Result<(Vec<Cluster>, bool, String), Status> {
    let client = ClusterServiceClient::new(channel);
    let stopped = RefCell::new(String::new());
    let (all, more) = pages(CLUSTERS_MAX, async |page_size, page_token| {
        let page = client.clone().list_clusters(ListClustersRequest { page_size, page_token }).await?.into_inner();
        stopped.replace(page.fleet_stopped_for);
        Ok((page.clusters, page.next_page_token))
    })
    .await?;
    Ok((all, more, stopped.into_inner()))
}

pub(super) async fn clusters(channel: Channel, printer: &mut Printer) -> Result<bool, Error> {
    let (all, more, fleet_stopped_for) = all_clusters(channel).await?;
    let own = |cluster: &&Cluster| fleet_stopped_for.is_empty() && cluster.state == "stopped";
    let clusters_stopped = all.iter().filter(own).map(|cluster| cluster.cluster_id.clone()).collect();
    printer.list_beside(&all, more, &Stopped { fleet_stopped_for, clusters_stopped })?;
    Ok(true)
}

pub(super) async fn sources(
    channel: Channel,
    printer: &mut Printer,
    cluster: Option<&ClusterId>,
    stale_only: bool,
    limit: u32,
) -> Result<bool, Error> {
    let client = ClusterServiceClient::new(channel);
    listed(printer, limit, async |page_size, page_token| {
        let request = ListSourcesRequest { cluster_id: text(cluster), stale_only, page_size, page_token };
        let page = client.clone().list_sources(request).await?.into_inner();
        Ok((page.sources, page.next_page_token))
    })
    .await
}

pub(super) async fn nodes(
    channel: Channel,
    printer: &mut Printer,
    cluster: Option<&ClusterId>,
    out_only: bool,
    limit: u32,
) -> Result<bool, Error> {
    let client = ClusterServiceClient::new(channel);
    let stopped = RefCell::new(Stopped::default());
    let (all, more) = pages(limit, async |page_size, page_token| {
        let request = ListNodesRequest { cluster_id: text(cluster), out_only, page_size, page_token };
        let page = client.clone().list_nodes(request).await?.into_inner();
        stopped.borrow_mut().add(page.fleet_stopped_for, page.clusters_stopped);
        Ok((page.nodes, page.next_page_token))
    })
    .await?;
    printer.list_beside(&all, more, &stopped.into_inner())?;
    Ok(true)
}

impl Stopped {
    /// A page's own account; a cluster may be on two.
    fn add(&mut self, fleet: String, clusters: Vec<String>) {
        self.fleet_stopped_for = fleet;
        self.clusters_stopped.extend(clusters);
        self.clusters_stopped.dedup();
    }
}

/// Incidents and commands are asked for alike, each in a message of its own.
macro_rules! filtered {
    ($name:ident, $Client:ident, $method:ident, $Request:ident, $items:ident) => {
        pub(super) async fn $name(channel: Channel, printer: &mut Printer, filter: &Filter) -> Result<bool, Error> {
            let client = $Client::new(channel);
            listed(printer, filter.limit, async |page_size, page_token| {
                let (cluster_id, node) = (text(filter.cluster.as_ref()), filter.node.clone().unwrap_or_default());
                let request = $Request { cluster_id, node, open_only: filter.open, page_size, page_token };
                let page = client.clone().$method(request).await?.into_inner();
                Ok((page.$items, page.next_page_token))
            })
            .await
        }
    };
}
filtered!(incidents, IncidentServiceClient, list_incidents, ListIncidentsRequest, incidents);
filtered!(commands, CommandServiceClient, list_commands, ListCommandsRequest, commands);

/// An optional cluster as it travels: empty means any.
pub(super) fn text(cluster: Option<&ClusterId>) -> String {
    cluster.map(ToString::to_string).unwrap_or_default()
}
