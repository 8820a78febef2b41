//! The policy in force, read from the store and parsed once per revision.

use std::sync::{Arc, Mutex, PoisonError};

use gpuheal_hub_core::policy::Policy;
use sqlx::PgConnection;

use super::Error;
use crate::store::policy::{policy_head, policy_load};

/// The last one parsed. A digest names what a policy says, so that one may serve every pool of the process.
static LAST: Mutex<Option<Arc<Policy>>> = Mutex::new(None);

/// The policy of which the store says that it is in force; one that only observes when there is none.
///
/// # Errors
/// When the database fails, or the stored policy cannot be read: then nothing is decided.
pub(super) async fn of(conn: &mut PgConnection, head: Option<(u64, String)>) -> Result<Arc<Policy>, Error> {
    let Some((revision, digest)) = head else { return Ok(Arc::new(Policy::observing())) };
    let last = LAST.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(policy) = last.filter(|policy| policy.revision == revision && policy.digest == digest) {
        return Ok(policy);
    }
    let Some(stored) = policy_load(conn, Some(revision)).await? else { return Ok(Arc::new(Policy::observing())) };
    let policy = Policy::parse(&stored.yaml)
        .map_err(|problems| Error::Policy { revision, first: problems.first().map(ToString::to_string).unwrap_or_default() })?;
    let policy = Arc::new(policy.with_revision(revision));
    *LAST.lock().unwrap_or_else(PoisonError::into_inner) = Some(policy.clone());
    Ok(policy)
}

/// The policy in force, for whoever must tell it on.
///
/// # Errors
/// When the database fails, or the stored policy cannot be read.
pub async fn policy_in_force(pool: &sqlx::PgPool) -> Result<Arc<Policy>, Error> {
    let mut conn = pool.acquire().await.map_err(|source| crate::store::Error::Database { what: "pool.acquire", source })?;
    let head = policy_head(&mut conn).await?;
    of(&mut conn, head).await
}
