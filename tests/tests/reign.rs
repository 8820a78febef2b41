//! Whose reign ends does nothing more: the real programs, in the middle of a drain (`tests/src/reign.rs`).

use anyhow::Result;
use gpuheal_tests::{measure::takeover, reign};

/// Failure table, row 16.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_stood_still_longer_than_its_lease_ends_and_writes_nothing_once_it_goes_on() -> Result<()> {
    reign::stands_still(testpg::database().await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_is_given_back_only_once_every_eviction_that_was_under_way_is_answered() -> Result<()> {
    reign::told_to_end(testpg::database().await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_and_one_that_was_told_to_end_are_followed_and_what_broke_meanwhile_is_marked() -> Result<()> {
    let figures = takeover::run(1, 1, include_str!("../src/measure/policy.yaml"), |_| {}).await?;
    // Each of them is an error of the run when it does not come; here that none was left out.
    assert_eq!((figures.killed_s.len(), figures.marked_s.len(), figures.told_s.len()), (1, 1, 1));
    Ok(())
}
