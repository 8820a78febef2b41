//! Ready, or why not, in words: what is wrong, since when, and what it means for the cluster. The hub being away does not
//! keep webhooks out: the Service for them publishes addresses that are not ready too.

use std::time::Duration;

use gpuheal_proto::time::Timestamp;

use super::Deps;
use crate::{
    clock,
    identity::{self, Identity},
};

/// Every reason against; none when all is well.
pub(super) async fn not_ready(deps: &Deps) -> Vec<String> {
    let mut why = Vec::new();
    if deps.journal.borrow().broken {
        why.push("journal is broken: it takes no faults until a restart".to_owned());
    }
    if *deps.listed.borrow() {
        why.extend(deps.heard.stale().into_iter().map(|(kind, age)| stale(kind, age)));
    } else {
        why.push("cluster is not listed yet: nodes and pods are unknown".to_owned());
    }
    if deps.attachment.borrow().generation.is_none() {
        why.push("hub does not answer: faults are journaled, nothing new is done".to_owned());
    }
    match expiry(deps).await {
        Ok(end) if end <= clock::wall() => {
            why.push(format!("certificate expired at {end}: no hub lets this spoke attach, a new one must be issued"));
        }
        Ok(_) => {}
        Err(error) => why.push(format!("certificate cannot be told: {}", gpuheal_proto::chain::chain(&error))),
    }
    why
}

/// Until when the certificate is good.
pub(super) async fn expiry(deps: &Deps) -> Result<Timestamp, identity::Error> {
    let dir = deps.identity.clone();
    let read = tokio::task::spawn_blocking(move || Identity::expiry(&dir)).await;
    read.unwrap_or(Err(identity::Error::Pem { name: "tls.crt" }))
}

fn stale(kind: &str, age: Option<Duration>) -> String {
    match age {
        Some(age) => {
            format!(
                "watch of {kind}s is stale: neither an event nor a bookmark for {}s, so nothing proves how they are",
                age.as_secs()
            )
        }
        None => format!("watch of {kind}s has not been heard yet"),
    }
}
