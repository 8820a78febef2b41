//! Commands whose end nobody has told: those that were under way when their leader's session began, and those whose end the hub
//! assumed. A cluster may have told it and a database that was restored since have lost that, where neither an epoch nor a
//! number shows that anything is missing.

use sqlx::PgConnection;
use uuid::Uuid;

use super::leading::{self, Leading, of_mine};

/// Commands of these sessions' clusters that are to be asked for now, oldest first, each noted as asked for: once in each
/// session, and once more when its end was assumed since. Only what a spoke may still have on record, which is a day after
/// the command has run out.
///
/// # Errors
/// When the database fails.
pub async fn unheard_ask(conn: &mut PgConnection, leading: &[Leading], most: i64) -> Result<Vec<(String, Uuid)>, sqlx::Error> {
    let statement = sqlx::query_as(of_mine!(
        ", unheard AS (
             SELECT c.cluster_id, c.command_id FROM commands c JOIN mine m ON m.cluster_id = c.cluster_id
             WHERE c.state IN ('SIGNED', 'DISPATCHED', 'RECEIVED', 'STARTED') AND c.created_at < m.attached_at
                 AND (c.outcome_asked_at IS NULL OR c.outcome_asked_at < m.attached_at)
             UNION ALL
             SELECT c.cluster_id, c.command_id FROM commands c JOIN mine m ON m.cluster_id = c.cluster_id
             WHERE (c.state IN ('EXPIRED', 'UNKNOWN') OR (c.state = 'CANCELLED' AND c.status_seq = 0))
                 AND c.expires_at > clock_timestamp() - interval '1 day'
                 AND (c.outcome_asked_at IS NULL OR c.outcome_asked_at < GREATEST(m.attached_at, c.state_at))),
         now AS (
             SELECT c.cluster_id, c.command_id FROM commands c JOIN unheard USING (cluster_id, command_id)
             ORDER BY c.cluster_id, c.cmd_seq LIMIT $6 FOR UPDATE OF c SKIP LOCKED)
         UPDATE commands c SET outcome_asked_at = clock_timestamp() FROM now
         WHERE c.cluster_id = now.cluster_id AND c.command_id = now.command_id
         RETURNING c.cluster_id, c.command_id"
    ));
    leading::bound(statement, leading).bind(most).fetch_all(conn).await
}
