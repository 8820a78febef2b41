//! The lists, page by page until the limit is reached.

use gpuheal_proto::{
    fleet::v1::{
        ListClustersRequest, ListCommandsRequest, ListIncidentsRequest, ListNodesRequest,
        cluster_service_client::ClusterServiceClient, command_service_client::CommandServiceClient,
        incident_service_client::IncidentServiceClient,
    },
    ids::ClusterId,
};
use tonic::transport::Channel;

use super::Error;
use crate::{args::Filter, output::Printer};

/// The API's own limit.
pub(super) const PAGE_MAX: u32 = 1000;
/// More clusters than anybody has: the list ends there rather than never.
const CLUSTERS_MAX: u32 = 100_000;

/// Follows pages: `$ask` is a call that takes (page_size, page_token), `$field` its list.
macro_rules! pages {
    ($limit:expr, $field:ident, |$size:ident, $token:ident| $ask:expr) => {{
        let limit = usize::try_from($limit).unwrap_or(usize::MAX);
        let mut all = Vec::new();
        let mut $token = String::new();
        loop {
            let left = limit.saturating_sub(all.len());
            let $size = u32::try_from(left).unwrap_or($crate::call::lists::PAGE_MAX).min($crate::call::lists::PAGE_MAX);
            let page = $ask.await?.into_inner();
            all.extend(page.$field);
            all.truncate(limit);
            if page.next_page_token.is_empty() || all.len() >= limit {
                break (all, !page.next_page_token.is_empty());
            }
            $token = page.next_page_token;
        }
    }};
}
pub(super) use pages;

pub(super) async fn clusters(channel: Channel, printer: &mut Printer) -> Result<bool, Error> {
    let mut client = ClusterServiceClient::new(channel);
    let (all, more) = pages!(CLUSTERS_MAX, clusters, |page_size, page_token| {
        client.list_clusters(ListClustersRequest { page_size, page_token: page_token.clone() })
    });
    printer.list(&all, more)?;
    Ok(true)
}

pub(super) async fn nodes(
    channel: Channel,
    printer: &mut Printer,
    cluster: Option<&ClusterId>,
    out_only: bool,
    limit: u32,
) -> Result<bool, Error> {
    let cluster_id = cluster.map(ToString::to_string).unwrap_or_default();
    let mut client = ClusterServiceClient::new(channel);
    let (all, more) = pages!(limit, nodes, |page_size, page_token| {
        let cluster_id = cluster_id.clone();
        client.list_nodes(ListNodesRequest { cluster_id, out_only, page_size, page_token: page_token.clone() })
    });
    printer.list(&all, more)?;
    Ok(true)
}

pub(super) async fn incidents(channel: Channel, printer: &mut Printer, filter: &Filter) -> Result<bool, Error> {
    let mut client = IncidentServiceClient::new(channel);
    let (all, more) = pages!(filter.limit, incidents, |page_size, page_token| {
        client.list_incidents(ListIncidentsRequest {
            cluster_id: cluster_of(filter),
            node: filter.node.clone().unwrap_or_default(),
            open_only: filter.open,
            page_size,
            page_token: page_token.clone(),
        })
    });
    printer.list(&all, more)?;
    Ok(true)
}

pub(super) async fn commands(channel: Channel, printer: &mut Printer, filter: &Filter) -> Result<bool, Error> {
    let mut client = CommandServiceClient::new(channel);
    let (all, more) = pages!(filter.limit, commands, |page_size, page_token| {
        client.list_commands(ListCommandsRequest {
            cluster_id: cluster_of(filter),
            node: filter.node.clone().unwrap_or_default(),
            open_only: filter.open,
            page_size,
            page_token: page_token.clone(),
        })
    });
    printer.list(&all, more)?;
    Ok(true)
}

fn cluster_of(filter: &Filter) -> String {
    filter.cluster.as_ref().map(ToString::to_string).unwrap_or_default()
}
