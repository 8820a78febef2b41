//! Clusters, their nodes, and what their spokes watch.

use std::collections::BTreeSet;

use gpuheal_hub_core::policy::Narrowing;
use gpuheal_proto::{
    fleet::v1::{
        Cluster, ListClustersRequest, ListClustersResponse, ListNodesRequest, ListNodesResponse, ListSourcesRequest,
        ListSourcesResponse, Node, Source, cluster_service_server::ClusterService,
    },
    kubernetes::CONFIG_MAP,
};
use tonic::{Request, Response, Status};

use super::{
    Fleet,
    call::{cluster, connection, count, counted, failed, known, unix_ms},
    page,
};
use crate::{
    link::skew,
    store::{fleet, natural},
};

#[tonic::async_trait]
impl ClusterService for Fleet {
    async fn list_clusters(&self, request: Request<ListClustersRequest>) -> Result<Response<ListClustersResponse>, Status> {
        counted("list_clusters", self.clusters(request.into_inner()).await)
    }

    async fn list_nodes(&self, request: Request<ListNodesRequest>) -> Result<Response<ListNodesResponse>, Status> {
        counted("list_nodes", self.nodes(request.into_inner()).await)
    }

    async fn list_sources(&self, request: Request<ListSourcesRequest>) -> Result<Response<ListSourcesResponse>, Status> {
        counted("list_sources", self.sources(request.into_inner()).await)
    }
}

impl Fleet {
    async fn clusters(&self, request: ListClustersRequest) -> Result<ListClustersResponse, Status> {
        let size = page::size(request.page_size);
        let after = page::key::<1>("clusters", &request.page_token)?.map_or(String::new(), |[id]| id);
        let mut conn = connection(&self.pool).await?;
        let mut rows = fleet::clusters(&mut conn, &after, i64::from(size) + 1).await.map_err(|error| failed(&error))?;
        let more = page::cut(&mut rows, size);
        let next = rows.last().filter(|_| more).map(|last| page::token("clusters", &[&last.cluster_id]));
        let stopped = fleet::stopped_for(&mut conn).await.map_err(|error| failed(&error))?;
        Ok(ListClustersResponse {
            clusters: rows.into_iter().map(|row| wire_cluster(row, stopped.as_deref())).collect(),
            next_page_token: next.unwrap_or_default(),
            fleet_stopped_for: stopped.unwrap_or_default(),
        })
    }

    async fn nodes(&self, request: ListNodesRequest) -> Result<ListNodesResponse, Status> {
        let only = cluster(&request.cluster_id)?;
        let size = page::size(request.page_size);
        let after = page::key::<2>("nodes", &request.page_token)?.unwrap_or_default();
        let mut conn = connection(&self.pool).await?;
        known(&mut conn, only.as_ref()).await?;
        let mut rows = fleet::nodes(&mut conn, only.as_ref(), request.out_only, (&after[0], &after[1]), i64::from(size) + 1)
            .await
            .map_err(|error| failed(&error))?;
        let more = page::cut(&mut rows, size);
        let next = rows.last().filter(|_| more).map(|last| page::token("nodes", &[&last.cluster_id, &last.node_name]));
        let stopped = fleet::stopped_for(&mut conn).await.map_err(|error| failed(&error))?;
        let shown: BTreeSet<&str> = rows.iter().map(|row| row.cluster_id.as_str()).collect();
        let shown: Vec<&str> = shown.into_iter().collect();
        let own = fleet::own_settings(&mut conn, &shown).await.map_err(|error| failed(&error))?;
        let clusters_stopped = own.into_iter().filter(|(_, text)| Narrowing::stops(text)).map(|(cluster, _)| cluster).collect();
        Ok(ListNodesResponse {
            nodes: rows.into_iter().map(wire_node).collect(),
            next_page_token: next.unwrap_or_default(),
            fleet_stopped_for: stopped.unwrap_or_default(),
            clusters_stopped,
        })
    }

    async fn sources(&self, request: ListSourcesRequest) -> Result<ListSourcesResponse, Status> {
        let only = cluster(&request.cluster_id)?;
        let size = page::size(request.page_size);
        let after = page::key::<2>("sources", &request.page_token)?.unwrap_or_default();
        let mut conn = connection(&self.pool).await?;
        known(&mut conn, only.as_ref()).await?;
        let mut rows = fleet::sources(&mut conn, only.as_ref(), request.stale_only, (&after[0], &after[1]), i64::from(size) + 1)
            .await
            .map_err(|error| failed(&error))?;
        let more = page::cut(&mut rows, size);
        let next = rows.last().filter(|_| more).map(|last| page::token("sources", &[&last.cluster_id, &last.key]));
        Ok(ListSourcesResponse { sources: rows.into_iter().map(wire_source).collect(), next_page_token: next.unwrap_or_default() })
    }
}

/// Whether anything is done in a cluster at all, and why not.
fn state(row: &fleet::Cluster, fleet_stopped_for: Option<&str>) -> (&'static str, String) {
    match (row.quarantine.as_deref(), fleet_stopped_for) {
        (Some("decommissioned"), _) => ("decommissioned", "taken out of the fleet: its id is never let in again".to_owned()),
        (Some(cause), _) => ("quarantined", format!("its identity was seen in two places ({cause}): nobody attaches under it")),
        (None, Some(why)) => ("stopped", format!("the fleet is stopped: {why}")),
        (None, None) if Narrowing::stops(&row.config_yaml) => {
            ("stopped", format!("its own ConfigMap {CONFIG_MAP} says ceiling.stop"))
        }
        (None, None) => ("active", String::new()),
    }
}

fn wire_cluster(row: fleet::Cluster, fleet_stopped_for: Option<&str>) -> Cluster {
    let errors: Vec<String> = serde_json::from_value(row.config_errors.clone()).unwrap_or_default();
    let (state, state_reason) = state(&row, fleet_stopped_for);
    let to_take_over = row.to_take_over.map(|term| {
        format!("not taken over under epoch {term} yet: nothing new begins there until its leader has told all that it has")
    });
    let apart = row.apart.iter().zip(&row.apart_ms).map(|(replica, skew_ms)| skew::words(replica, *skew_ms));
    let problems = to_take_over.into_iter().chain(apart).collect();
    Cluster {
        cluster_id: row.cluster_id,
        name: row.name,
        connected: row.connected,
        replicas_attached: count(row.replicas),
        leader_replica: row.leader,
        gpu_nodes: count(row.gpu_nodes),
        nodes_out: count(row.nodes_out),
        budget_allowed: count(row.allowed),
        open_incidents: count(row.open_incidents),
        state_as_of_unix_ms: unix_ms(row.state_as_of),
        spoke_version: row.spoke_version,
        settings_version: natural(row.settings_version),
        config_errors: errors.join("; "),
        sources: count(row.sources),
        sources_fresh: count(row.sources_fresh),
        state: state.to_owned(),
        state_reason,
        problems,
    }
}

/// Stored under `source|node`: a node's name has no bar.
fn wire_source(row: fleet::Source) -> Source {
    let (source, node) = row.key.rsplit_once('|').unwrap_or((&row.key, ""));
    Source {
        source: source.to_owned(),
        node: node.to_owned(),
        cluster_id: row.cluster_id,
        state: row.state,
        last_seen_unix_ms: row.last_seen_unix_ms,
        reason: row.reason,
    }
}

fn wire_node(row: fleet::Node) -> Node {
    Node {
        cluster_id: row.cluster_id,
        name: row.node_name,
        uid: row.node_uid,
        gpus: count(row.gpus_capacity.into()),
        allocatable_gpus: count(row.gpus_allocatable.into()),
        model: row.model.unwrap_or_default(),
        ready: row.ready,
        marked: row.marked,
        unschedulable: row.unschedulable,
        opted_out: row.opted_out,
        incident_id: row.incident_id.map(|id| id.to_string()).unwrap_or_default(),
        incident_state: row.incident_state.unwrap_or_default(),
        cooldown_until_unix_ms: unix_ms(row.cooldown_until),
        plan_revision: natural(row.plan_revision),
    }
}
