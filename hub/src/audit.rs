//! Stage 11: the record of what every other stage did. An entry is appended in the transaction that does what it tells,
//! under its chain's locked head, as the transaction's last lock: no record, no act. What a hash covers is pure and in
//! `gpuheal_hub_core::audit`; the statements are in `store::audit`. Never decides, and never changes an entry.

use std::time::Instant;

use gpuheal_hub_core::audit::{self, Fact, Head, Walk};
pub use gpuheal_hub_core::audit::{Break, Verdict};
use gpuheal_proto::{
    ids::{ClusterId, IncidentId},
    time::Timestamp,
};
use serde_json::Value;
use sqlx::{PgConnection, PgPool};

use crate::{
    metrics,
    store::{self, Labelled as _, audit as rows},
};

/// The chain of what belongs to no one cluster: policies, stops, terms. Not a cluster id: those have no `_`.
pub const FLEET_CHAIN: &str = "_fleet";

/// Entries read at once when a chain is verified: at about 1 KiB each, 1 MiB.
const PAGE: i64 = 1000;

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $text:literal),+ $(,)?) => {
        /// What is written down, and what its entry's body holds.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind {
            $($(#[$doc])* $variant),+
        }

        impl Kind {
            /// Every kind, in the order of the stages.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word as stored and as auditors query it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }
    };
}

kinds!(
    /// Ingest: one per batch and cluster, counts of records, new episodes, repeats, poison and gaps.
    FaultsIngested = "faults_ingested",
    /// Ingest: a whole inventory came, with how many nodes and who is gone.
    InventorySnapshot = "inventory_snapshot",
    /// Ingest: nodes that could not be read were set aside, by their names as they came; nobody counts as gone by it.
    NodesUnreadable = "nodes_unreadable",
    /// Ingest: nodes were seen deleted.
    NodesGone = "nodes_gone",
    /// Ingest: the database had lost commits, its epoch was raised.
    TermRaised = "term_raised",
    /// Decide: what was decided about a node, with every reason, number, command and the policy's digest.
    Decision = "decision",
    /// Decide: a person's request that came to nothing, since there is no such node.
    RequestUnmet = "request_unmet",
    /// Sign: the hash of a command's envelope, its key and epochs.
    CommandSigned = "command_signed",
    /// Deliver: the envelope was put on a stream.
    CommandSent = "command_sent",
    /// Sign: the hash of a cancellation's envelope, and why the command is called off.
    CancelSigned = "cancel_signed",
    /// Deliver: the cancellation was put on a stream.
    CancelSent = "cancel_sent",
    /// Settle: what a spoke reported of a command, with its steps and undo record.
    CommandReported = "command_reported",
    /// Settle: pods were deleted although a budget kept them; who had asked for it, and why.
    BudgetPassed = "budget_passed",
    /// Settle: a report that came after a final state was assumed.
    CommandCorrected = "command_corrected",
    /// Settle: a command that this database had lost, and which its cluster showed as it was signed, was taken over.
    CommandAdopted = "command_adopted",
    /// Settle: an envelope that a spoke could not verify, by its hash.
    EnvelopeRefused = "envelope_refused",
    /// Settle: a command ran out of its time.
    CommandLapsed = "command_lapsed",
    /// Link: a replica is gone for good and its journal with it; what of it is not here.
    JournalVanished = "journal_vanished",
    /// Link: a journal that had vanished is there again, and goes on where it was.
    JournalReturned = "journal_returned",
    /// A policy was put in force: its revision, digest, and the digest before.
    PolicyApplied = "policy_applied",
    /// A person stopped the whole fleet.
    FleetStop = "fleet_stop",
    /// A person let a stopped fleet go on; what it was stopped for.
    FleetResume = "fleet_resume",
    /// Link: an identity was seen in two places, nobody attaches under it any more.
    CloneQuarantined = "clone_quarantined",
    /// A person let an identity in again.
    QuarantineCleared = "quarantine_cleared",
    /// A person had certificates of a cluster refused from then on.
    CertificatesRevoked = "certificates_revoked",
    /// A person took a cluster out of the fleet for ever: what ended with it.
    ClusterDecommissioned = "cluster_decommissioned",
);

/// Something that was done, before it has a place in its chain.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// What happened.
    pub kind: Kind,
    /// Who did it: a stage of the hub, a spoke, a person.
    pub actor: String,
    /// What it was done to.
    pub subject: String,
    /// Incident that it belongs to.
    pub incident: Option<IncidentId>,
    /// The facts.
    pub body: Value,
}

/// The chain of a cluster.
#[must_use]
pub fn chain_of(cluster: &ClusterId) -> &str {
    cluster.as_str()
}

/// Adds entries at the end of a chain, in order, and holds its head until commit. The last lock of any transaction; who
/// takes several chains takes them by [`append_all`].
///
/// # Errors
/// When the database fails; the caller's transaction must then fail too.
pub async fn append(conn: &mut PgConnection, chain: &str, entries: &[Entry], now: Timestamp) -> Result<(), store::Error> {
    append_all(conn, &[(chain, entries)], now).await
}

/// Adds entries at the ends of several chains, whose heads are locked in the order of their names. The caller passes no
/// chain twice.
///
/// # Errors
/// As [`append`].
pub async fn append_all(conn: &mut PgConnection, chains: &[(&str, &[Entry])], now: Timestamp) -> Result<(), store::Error> {
    let chains: Vec<(&str, &[Entry])> = chains.iter().filter(|(_, entries)| !entries.is_empty()).copied().collect();
    if chains.is_empty() {
        return Ok(());
    }
    let began = Instant::now();
    let outcome = extend(conn, &chains, now).await;
    metrics::AUDIT_SECONDS.observe(began.elapsed());
    metrics::AUDIT_APPENDS.inc([if outcome.is_ok() { "ok" } else { "failed" }]);
    outcome
}

async fn extend(conn: &mut PgConnection, chains: &[(&str, &[Entry])], now: Timestamp) -> Result<(), store::Error> {
    let names: Vec<&str> = chains.iter().map(|(chain, _)| *chain).collect();
    let heads = rows::heads_lock(conn, &names).await?;
    let (mut moved, mut linked) = (Vec::new(), Vec::new());
    for ((chain, entries), from) in chains.iter().zip(heads) {
        linked.extend(audit::link(chain, from, entries.iter().map(|entry| fact(entry, now)).collect()));
        let to = linked.last().map_or(from, |last| Head { seq: last.seq, hash: last.hash });
        moved.push(rows::Moved { chain, from, to });
    }
    rows::chains_extend(conn, &moved, &linked).await
}

fn fact(entry: &Entry, at: Timestamp) -> Fact {
    Fact {
        at,
        kind: entry.kind.as_str().to_owned(),
        actor: entry.actor.clone(),
        subject: entry.subject.clone(),
        incident: entry.incident,
        body: entry.body.to_string(),
    }
}

/// Reads a chain from its first entry and says where it breaks, if it does. The head must be its last entry.
///
/// # Errors
/// When the database fails.
pub async fn verify(pool: &PgPool, chain: &str) -> Result<Verdict, store::Error> {
    let verdict = walk(pool, chain).await;
    metrics::AUDIT_VERIFIED.inc([match &verdict {
        Ok(verdict) if verdict.broken.is_some() => "broken",
        Ok(_) => "intact",
        Err(_) => "failed",
    }]);
    verdict
}

async fn walk(pool: &PgPool, chain: &str) -> Result<Verdict, store::Error> {
    let mut conn = pool.acquire().await.label("pool.acquire")?;
    let head = rows::head(&mut conn, chain).await?;
    let mut walk = Walk::default();
    while walk.seq() < head.seq {
        let page = rows::audit_page(&mut conn, chain, walk.seq(), None, PAGE).await?;
        if page.is_empty() {
            break;
        }
        // Entries beyond the head came after it was read.
        for entry in page.iter().filter(|entry| entry.seq <= head.seq) {
            if let Err(broken) = walk.step(chain, entry) {
                return Ok(broken);
            }
        }
    }
    Ok(walk.end(&head))
}
