//! A short chaos run of the shipping programs, once with a fixed seed and once with a fresh one, which is printed when it
//! fails. Mild: whatever takes half a minute to be noticed is left to `make chaos`.

use std::time::Duration;

use anyhow::Result;
use gpuheal_tests::{
    chaos::{self, Options, schedule::Force},
    script::PATIENT_LEASE,
};

/// The seed that is always the same.
const SEED: u64 = 20_261_129;
/// How long things go wrong: some ten troubles.
const SPAN: Duration = Duration::from_secs(20);
/// Coming to rest takes some ten seconds on a free machine, a takeover of a patient Lease included; sixty times that.
const REST_WITHIN: Duration = Duration::from_secs(600);

async fn short(seed: u64) -> Result<()> {
    chaos::run(Options {
        seed,
        span: SPAN,
        rest_within: REST_WITHIN,
        clusters: 1,
        nodes: 8,
        force: Force::Mild,
        lease: PATIENT_LEASE,
        lease_lasts: Duration::from_secs(20),
        screen: None,
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_killed_or_cut_nothing_is_lost_doubled_or_late() -> Result<()> {
    short(SEED).await?;
    short(u64::from(std::process::id()) ^ u64::from(chrono::Utc::now().timestamp_subsec_micros())).await
}
