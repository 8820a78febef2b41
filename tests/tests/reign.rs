//! Whose reign ends does nothing more: the real programs, in the middle of a drain (`tests/src/reign.rs`).

use anyhow::Result;
use gpuheal_tests::reign;

/// Failure table, row 16.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_stood_still_longer_than_its_lease_ends_and_writes_nothing_once_it_goes_on() -> Result<()> {
    reign::stands_still(testpg::database().await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_is_given_back_only_once_every_eviction_that_was_under_way_is_answered() -> Result<()> {
    reign::told_to_end(testpg::database().await).await
}
