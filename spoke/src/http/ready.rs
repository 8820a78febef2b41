//! Ready, or why not, in words: what is wrong, since when, and what it means for the cluster. The hub being away does not
//! keep webhooks out: the Service for them publishes addresses that are not ready too.

use std::{sync::Arc, time::Duration};

use gpuheal_proto::time::Timestamp;

use super::Deps;
use crate::{
    clock,
    identity::Standing,
    watch::{CONFIG, EXPORTERS},
};

/// Every reason against; none when all is well.
pub(super) async fn not_ready(deps: &Deps) -> Vec<String> {
    let mut why = Vec::new();
    if deps.journal.borrow().broken {
        why.push("journal is broken: it takes no faults until a restart".to_owned());
    }
    why.extend(deps.lacks.borrow().iter().cloned());
    match &*deps.config.borrow() {
        Some(config) => why.extend(config.lost.map(|lost| lost.to_string())),
        // That its watch was not heard is said below.
        None if deps.heard.age(CONFIG).is_some() => {
            why.push(
                "whether the owner has had a ConfigMap here is not known, since the fence cannot be read: nothing is done"
                    .to_owned(),
            );
        }
        None => {}
    }
    if *deps.listed.borrow() {
        // That exporters were never listed is said below, with what it means.
        let all = deps.heard.stale().into_iter().filter(|one| *one != (EXPORTERS, None));
        why.extend(all.map(|(kind, age)| stale(kind, age)));
    } else {
        why.push("cluster is not listed yet: nodes and pods are unknown".to_owned());
    }
    if !deps.rounds.known() {
        why.push("exporter pods are not listed yet: no node is released until each was asked".to_owned());
    }
    if deps.attachment.borrow().generation.is_none() {
        why.push("hub does not answer: faults are journaled, nothing new is done".to_owned());
    }
    if let Some(identity) = identity(deps).await {
        why.extend(expired(&identity, clock::wall()));
    }
    why
}

/// The identity in force. Nothing only while the process ends.
pub(super) async fn identity(deps: &Deps) -> Option<Standing> {
    let keeper = Arc::clone(&deps.identity);
    tokio::task::spawn_blocking(move || keeper.standing(clock::wall())).await.ok()
}

/// Files that cannot be used are no reason while the last good certificate is good: the log and a counter tell of them.
fn expired(identity: &Standing, now: Timestamp) -> Option<String> {
    let Standing { not_after, unusable } = identity;
    let over = format!("certificate expired at {not_after}: no hub lets this spoke attach, a new one must be issued");
    let over = match unusable {
        Some(why) => format!("{over}; the identity's files cannot be used: {why}"),
        None => over,
    };
    (*not_after <= now).then_some(over)
}

fn stale(kind: &str, age: Option<Duration>) -> String {
    // The cluster's own stop is in it.
    let means = if kind == CONFIG { ": whether it says stop is not known, and nothing that harms is done" } else { "" };
    match age {
        Some(age) => {
            format!(
                "watch of {kind}s is stale: neither an event nor a bookmark for {}s, so nothing proves how they are{means}",
                age.as_secs()
            )
        }
        None => format!("watch of {kind}s has not been heard yet{means}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Failure table, row 23.
    #[test]
    fn an_identity_that_ran_out_is_a_reason_and_files_that_cannot_be_used_alone_are_none() {
        let standing = |ends, unusable: Option<&str>| Standing {
            not_after: Timestamp::from_unix_ms(ends),
            unusable: unusable.map(Into::into),
        };
        let now = Timestamp::from_unix_ms(10);
        assert_eq!(expired(&standing(11, None), now), None);
        assert_eq!(expired(&standing(11, Some("no key")), now), None);
        assert!(expired(&standing(10, None), now).unwrap().contains("a new one must be issued"));
        let both = expired(&standing(10, Some("no key")), now).unwrap();
        assert!(both.contains("expired at 1970") && both.contains("no key"), "{both}");
    }
}
