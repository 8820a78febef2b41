//! `audit list` and `audit verify`.

use gpuheal_proto::fleet::v1::{
    ListClustersRequest, ListEntriesRequest, VerifyChainRequest, audit_service_client::AuditServiceClient,
    cluster_service_client::ClusterServiceClient,
};
use tonic::transport::Channel;

use super::{Error, lists::pages};
use crate::{
    args::Audit,
    output::{Checked, Printer},
};

pub(super) async fn call(verb: &Audit, channel: Channel, printer: &mut Printer) -> Result<bool, Error> {
    match verb {
        Audit::List { cluster, incident, limit } => {
            let mut client = AuditServiceClient::new(channel);
            let (all, more) = pages!(*limit, entries, |page_size, page_token| {
                client.list_entries(ListEntriesRequest {
                    cluster_id: cluster.as_ref().map(ToString::to_string).unwrap_or_default(),
                    incident_id: incident.clone().unwrap_or_default(),
                    page_size,
                    page_token: page_token.clone(),
                })
            });
            printer.list(&all, more)?;
            Ok(true)
        }
        Audit::Verify { cluster } => {
            let clusters = match cluster {
                Some(cluster) => vec![cluster.to_string()],
                None => all_chains(channel.clone()).await?,
            };
            let checked = verify(channel, clusters).await?;
            printer.list(&checked, false)?;
            Ok(checked.iter().all(|chain| chain.intact))
        }
    }
}

/// The chain of what belongs to no one cluster: policies, above all.
const FLEET_CHAIN: &str = "_fleet";

async fn all_chains(channel: Channel) -> Result<Vec<String>, Error> {
    let mut client = ClusterServiceClient::new(channel);
    let (all, _) = pages!(u32::MAX, clusters, |page_size, page_token| {
        client.list_clusters(ListClustersRequest { page_size, page_token: page_token.clone() })
    });
    Ok(std::iter::once(FLEET_CHAIN.to_owned()).chain(all.into_iter().map(|cluster| cluster.cluster_id)).collect())
}

async fn verify(channel: Channel, clusters: Vec<String>) -> Result<Vec<Checked>, Error> {
    let mut client = AuditServiceClient::new(channel);
    let mut checked = Vec::new();
    for cluster_id in clusters {
        let chain = client.verify_chain(VerifyChainRequest { cluster_id: cluster_id.clone() }).await?.into_inner();
        checked.push(Checked {
            cluster_id,
            intact: chain.intact,
            entries: chain.entries,
            broken_at_seq: chain.broken_at_seq,
            reason: chain.reason,
        });
    }
    Ok(checked)
}
