//! `audit list` and `audit verify`.

use std::io::Write;

use gpuheal_proto::fleet::v1::{ListEntriesRequest, VerifyChainRequest, audit_service_client::AuditServiceClient};
use tonic::transport::Channel;

use super::{
    Error,
    lists::{all_clusters, listed, text},
};
use crate::{
    args::Audit,
    output::{Checked, Printer, Progress},
};

pub(super) async fn call(verb: &Audit, channel: Channel, printer: &mut Printer) -> Result<bool, Error> {
    match verb {
        Audit::List { cluster, incident, limit } => {
            let client = AuditServiceClient::new(channel);
            listed(printer, *limit, async |page_size, page_token| {
                let (cluster_id, incident_id) = (text(cluster.as_ref()), incident.clone().unwrap_or_default());
                let request = ListEntriesRequest { cluster_id, incident_id, page_size, page_token };
                let page = client.clone().list_entries(request).await?.into_inner();
                Ok((page.entries, page.next_page_token))
            })
            .await
        }
        Audit::Verify { cluster } => {
            let clusters = match cluster {
                Some(cluster) => vec![cluster.to_string()],
                None => all_chains(channel.clone()).await?,
            };
            let checked = verify(channel, clusters, Progress::stderr()).await?;
            printer.list(&checked, false)?;
            Ok(checked.iter().all(|chain| chain.intact))
        }
    }
}

/// The chain of what belongs to no one cluster: policies, above all.
const FLEET_CHAIN: &str = "_fleet";

async fn all_chains(channel: Channel) -> Result<Vec<String>, Error> {
    let (all, ..) = all_clusters(channel).await?;
    Ok(std::iter::once(FLEET_CHAIN.to_owned()).chain(all.into_iter().map(|cluster| cluster.cluster_id)).collect())
}

async fn verify(channel: Channel, clusters: Vec<String>, mut progress: Progress<impl Write>) -> Result<Vec<Checked>, Error> {
    let mut client = AuditServiceClient::new(channel);
    let mut checked = Vec::new();
    let of = clusters.len();
    for (done, cluster_id) in clusters.into_iter().enumerate() {
        progress.at(&format!("{done} of {of} chains checked, at {cluster_id}"));
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
