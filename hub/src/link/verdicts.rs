//! Tells each leader here what was decided about its faults, for its own metrics and Events. Reads what the decisions' own
//! transactions left, whichever hub they ran in; sends each at most once, and drops what does not fit: the truth is in
//! Postgres. Never wakes, judges or waits for anything.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use gpuheal_hub_core::incident::IncidentState;
use gpuheal_proto::{
    bytes_text::clip,
    ids::ClusterId,
    limits,
    link::v1::{self, attach_response::Message},
    time::Timestamp,
    words::Action,
};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use super::{
    lanes::Lane,
    registry::{Registry, Session},
};
use crate::{
    metrics,
    store::{
        self, Labelled as _,
        decision::{Told, decisions_told},
        moment,
        pool::answered,
    },
    wake::POLL,
};

/// Decisions are read only when they are older than this, so that a transaction which decided earlier and commits later is
/// not passed over: ten times as long as one takes.
const SETTLED: Duration = Duration::from_secs(2);
/// Faults told in one round, 0.5 MB of rows; what is more is not told.
const ROUND_MAX: i64 = 1024;
/// Of one cluster: half of its bulk lane, so that settings always find room in a lane that is read once a second.
const CLUSTER_MAX: usize = 128;

/// What the teller works with.
#[derive(Debug)]
pub struct Verdicts {
    pool: PgPool,
    registry: Arc<Registry>,
    /// Up to which moment each cluster that is led here has been told.
    told: BTreeMap<ClusterId, Timestamp>,
}

impl Verdicts {
    /// Nobody has been told anything.
    #[must_use]
    pub fn new(pool: PgPool, registry: Arc<Registry>) -> Self {
        Self { pool, registry, told: BTreeMap::new() }
    }

    /// Tells until told to stop.
    pub async fn run(mut self, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(POLL)).await.is_some() {
            if let Err(error) = answered("verdicts.round", self.round()).await {
                metrics::STAGE_FAILURES.inc(["verdicts"]);
                tracing::warn!(error = %crate::chain::chain(&error), "spokes were not told what was decided");
            }
        }
    }

    /// One round; returns how many verdicts went onto lanes. A cluster is told what was decided since its leader came here.
    ///
    /// # Errors
    /// When the database fails: the same moments are read again at the next round.
    pub async fn round(&mut self) -> Result<usize, store::Error> {
        let leaders: BTreeMap<ClusterId, Arc<Session>> =
            self.registry.leading().into_iter().map(|session| (session.cluster().clone(), session)).collect();
        self.told.retain(|cluster, _| leaders.contains_key(cluster));
        if leaders.is_empty() {
            return Ok(0);
        }
        let mut conn = self.pool.acquire().await.label("pool.acquire")?;
        let upto = moment::now(&mut conn).await?.before(SETTLED);
        let since: Vec<(&ClusterId, Timestamp)> =
            leaders.keys().map(|cluster| (cluster, self.told.get(cluster).copied().unwrap_or(upto))).collect();
        let rows = decisions_told(&mut conn, &since, upto, ROUND_MAX).await?;
        let (mut sent, mut of_cluster) = (0, BTreeMap::<&str, usize>::new());
        for row in &rows {
            let Some(session) = leaders.iter().find(|(cluster, _)| cluster.as_str() == row.cluster_id).map(|(_, s)| s) else {
                continue;
            };
            let Some(verdict) = verdict(row) else { continue };
            let told = of_cluster.entry(&row.cluster_id).or_default();
            *told += 1;
            if *told > CLUSTER_MAX {
                continue;
            }
            // A refusal is counted by the lane.
            if session.offer(Lane::Bulk, Message::Verdict(verdict)).is_ok() {
                sent += 1;
            }
        }
        self.told = leaders.into_keys().map(|cluster| (cluster, upto)).collect();
        Ok(sent)
    }
}

/// As it travels; nothing for what neither did nor left undone anything: the later steps of what was acted on.
fn verdict(row: &Told) -> Option<v1::Verdict> {
    Some(v1::Verdict {
        node: row.node_name.clone(),
        fault_key: hex::encode(&row.fault_key),
        outcome: word(&row.outcome, IncidentState::parse(&row.state_after)?)?.to_owned(),
        reason: clip(&row.reason, limits::REASON_BYTES_MAX).to_owned(),
    })
}

/// The word that the spoke counts by: a command is an act, whatever the incident waits for next.
fn word(outcome: &str, state: IncidentState) -> Option<&'static str> {
    match Action::parse(outcome) {
        Some(Action::Mark | Action::Evict | Action::Restart | Action::Notify) => return Some("acted"),
        Some(Action::Release) => return None,
        None => {}
    }
    match state {
        IncidentState::Recorded
        | IncidentState::Watching
        | IncidentState::Suppressed
        | IncidentState::Blocked
        | IncidentState::AwaitingApproval => Some(state.as_str()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_acted_and_what_waits_is_called_by_its_state() {
        for (outcome, state, want) in [
            ("evict", IncidentState::Quarantining, Some("acted")),
            ("notify", IncidentState::Recorded, Some("acted")),
            ("suppressed", IncidentState::Suppressed, Some("suppressed")),
            ("blocked", IncidentState::Blocked, Some("blocked")),
            ("watching", IncidentState::Watching, Some("watching")),
            ("validating", IncidentState::Validating, None),
            ("release", IncidentState::Releasing, None),
            ("released", IncidentState::Released, None),
        ] {
            assert_eq!(word(outcome, state), want, "{outcome}, {state}");
        }
    }
}
