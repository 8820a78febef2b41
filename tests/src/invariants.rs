//! The invariants of docs/architecture.md as named checks over what a finished run left in Postgres and in the clusters.
//! Each says what broke it. A run of any kind ends with all of them.

mod observed;

use anyhow::{Context as _, Result, bail, ensure};
use sqlx::PgPool;

use crate::{cluster::Cluster, facts, fleet::Fleet, record};

/// Runs gpuhealctl as an administrator; gives its exit code, output and errors.
pub type Ctl<'a> = &'a dyn Fn(&[&str]) -> Result<(i32, String, String)>;

/// What a run left, and a way to ask its hub as an administrator.
pub struct Left<'a> {
    /// Its database.
    pub pool: &'a PgPool,
    /// Its clusters.
    pub clusters: &'a [Cluster],
    /// Its hub's tool.
    pub ctl: Ctl<'a>,
}

/// One check: the invariant's number in docs/architecture.md, its name, and what broke it if anything did.
pub struct Check {
    /// Number of the invariant.
    pub number: u8,
    /// Its name.
    pub name: &'static str,
    /// Whether it held.
    pub held: Result<()>,
}

/// Name of the one check that a run which killed spokes cannot show.
pub const COUNTED: &str = "what was done is counted";

/// Checks every invariant that a finished run can show; the first one that is broken is the error.
pub async fn check(fleet: &Fleet) -> Result<()> {
    let ctl = |args: &[&str]| fleet.ctl(args);
    let left = Left { pool: &fleet.pool, clusters: &fleet.clusters, ctl: &ctl };
    for Check { number, name, held } in all(&left).await {
        held.with_context(|| format!("invariant {number}, {name}"))?;
    }
    nodes_seen_out_never_exceed_the_budget(&left).await.context("invariant 4")?;
    what_was_released_is_as_it_was(&left).await.context("invariant 6")
}

/// 4. The same at every moment, by the cluster's own story: how many nodes it showed with our marks at once.
async fn nodes_seen_out_never_exceed_the_budget(left: &Left<'_>) -> Result<()> {
    for cluster in left.clusters {
        let most = observed::most_marked(&cluster.observer.view().node_changes_from(0));
        let (_, allowed) = facts::budget(left.pool, &cluster.id).await?;
        ensure!(most <= usize::try_from(allowed)?, "{most} nodes of {} were marked at once, its budget is {allowed}", cluster.id);
    }
    Ok(())
}

/// 6. A released node is cordoned if it was before, and not if not. No person cordons or uncordons one that is out here.
async fn what_was_released_is_as_it_was(left: &Left<'_>) -> Result<()> {
    for cluster in left.clusters {
        for node in released(left.pool, cluster).await? {
            if let Some(what) = observed::unrestored(&cluster.observer.node_changes(&node)) {
                bail!("release restores exactly what we changed: {}/{node}: {what}", cluster.id);
            }
        }
    }
    Ok(())
}

/// Nodes whose last incident was released.
async fn released(pool: &PgPool, cluster: &Cluster) -> Result<Vec<String>> {
    let sql =
        "SELECT DISTINCT ON (node_name) node_name, state FROM incidents WHERE cluster_id = $1 ORDER BY node_name, opened_at DESC";
    let last: Vec<(String, String)> = sqlx::query_as(sql).bind(&cluster.id).fetch_all(pool).await?;
    Ok(last.into_iter().filter(|(_, state)| state == "released").map(|(node, _)| node).collect())
}

/// Checks every invariant that a finished run can show.
pub async fn all(left: &Left<'_>) -> Vec<Check> {
    let pool = left.pool;
    let check = |number, name, held| Check { number, name, held };
    vec![
        check(
            1,
            "every command has an incident, a reason and a policy",
            every_command_has_an_incident_a_reason_and_a_policy(pool).await,
        ),
        check(2, "at most one effect per command", at_most_one_effect_per_command(left).await),
        check(3, "no effect after its deadline", no_effect_after_its_deadline(pool).await),
        check(4, "nodes out never exceed the budget", nodes_out_never_exceed_the_budget(pool).await),
        check(5, "no acked fault is lost", no_acked_fault_is_lost(pool).await),
        check(5, "no mark without an open incident", no_mark_without_an_open_incident(left).await),
        check(6, "release leaves nothing of ours", release_leaves_nothing_of_ours(left).await),
        check(7, "silence closes nothing", silence_closes_nothing(pool).await),
        check(8, "the audit chain is whole", the_audit_chain_is_whole(left)),
        check(8, "what was done is in the audit", what_was_done_is_in_the_audit(pool).await),
        check(10, COUNTED, what_was_done_is_counted(left).await),
        check(10, "what is refused says so", what_is_refused_says_so(pool).await),
    ]
}

async fn none(pool: &PgPool, invariant: &str, sql: &'static str) -> Result<()> {
    let broken: Vec<String> = sqlx::query_scalar(sql).fetch_all(pool).await?;
    ensure!(broken.is_empty(), "{invariant}: broken by {broken:?}");
    Ok(())
}

/// 1. No command without an incident, a reason and the policy revision it came from.
async fn every_command_has_an_incident_a_reason_and_a_policy(pool: &PgPool) -> Result<()> {
    let sql = "SELECT c.command_id::text FROM commands c LEFT JOIN incidents i USING (cluster_id, incident_id)
               LEFT JOIN policies p ON p.revision = c.policy_revision
               WHERE i.incident_id IS NULL OR c.reason = '' OR p.revision IS NULL";
    none(pool, "every command has an incident, a reason and a policy", sql).await
}

/// 2. At most one effect per command: one granted eviction for each pod UID that was there.
async fn at_most_one_effect_per_command(left: &Left<'_>) -> Result<()> {
    for cluster in left.clusters {
        let requests = cluster.requests().await;
        for node in cluster.gpu_nodes() {
            for (uid, pod) in cluster.observer.pods_of(&node) {
                let granted = record::evictions(&requests, &pod.name).iter().filter(|r| r.code == 201).count();
                let namesakes = cluster
                    .gpu_nodes()
                    .iter()
                    .flat_map(|n| cluster.observer.pods_of(n))
                    .filter(|(_, p)| p.name == pod.name)
                    .count();
                ensure!(granted <= namesakes, "at most one effect per command: {} ({uid}) was evicted {granted} times", pod.name);
            }
        }
    }
    Ok(())
}

/// 3. No first effect after a command's `start_by`, no step after its `finish_by`.
async fn no_effect_after_its_deadline(pool: &PgPool) -> Result<()> {
    let sql = "SELECT command_id::text FROM commands WHERE started_at > start_by + interval '60 s' OR (state = 'SUCCEEDED' AND finished_at > finish_by + interval '60 s')";
    none(pool, "no effect after its deadline", sql).await
}

/// 4. Nodes that we have out at once never exceed any budget.
async fn nodes_out_never_exceed_the_budget(pool: &PgPool) -> Result<()> {
    let sql = "SELECT cluster_id || ' ' || scope || ': ' || out || ' of ' || allowed FROM budgets WHERE out > allowed";
    none(pool, "nodes out never exceed the budget", sql).await?;
    let sql = "SELECT b.cluster_id || ': counter ' || b.out || ', holds ' || count(h.node_uid) FROM budgets b
               LEFT JOIN holds h ON h.cluster_id = b.cluster_id AND b.scope = ANY (h.scopes)
               WHERE b.kind = 'cluster' GROUP BY b.cluster_id, b.scope, b.out HAVING b.out <> count(h.node_uid)";
    none(pool, "a budget's counter is the number of its holds", sql).await
}

/// 5. A fault that the hub acked is settled or open, never lost: each open one is in front of a judge or in an incident.
async fn no_acked_fault_is_lost(pool: &PgPool) -> Result<()> {
    let sql = "SELECT encode(f.fault_key, 'hex') FROM faults f WHERE f.settled_at IS NULL
               AND NOT EXISTS (SELECT 1 FROM incident_faults m WHERE m.cluster_id = f.cluster_id AND m.fault_key = f.fault_key AND m.episode = f.episode)
               AND NOT EXISTS (SELECT 1 FROM judgements j WHERE j.cluster_id = f.cluster_id AND j.node_uid = f.node_uid)";
    none(pool, "no acked fault is lost", sql).await
}

/// 5, 6. No node is marked without an open incident.
async fn no_mark_without_an_open_incident(left: &Left<'_>) -> Result<()> {
    for cluster in left.clusters {
        for node in cluster.observer.tainted_now() {
            let open: i64 =
                sqlx::query_scalar("SELECT count(*) FROM incidents WHERE cluster_id = $1 AND node_name = $2 AND closed_at IS NULL")
                    .bind(&cluster.id)
                    .bind(&node)
                    .fetch_one(left.pool)
                    .await?;
            ensure!(open == 1, "no mark without an open incident: {}/{node} is tainted and has {open}", cluster.id);
        }
    }
    Ok(())
}

/// 6. Release restores exactly what we changed: a node whose incident was released carries nothing of ours.
async fn release_leaves_nothing_of_ours(left: &Left<'_>) -> Result<()> {
    for cluster in left.clusters {
        for node in released(left.pool, cluster).await? {
            let marked = cluster.observer.marked_now(&node);
            ensure!(!marked, "release restores exactly what we changed: {}/{node} still carries our marks", cluster.id);
        }
    }
    Ok(())
}

/// 10. What was done is counted where people look: the spokes' /metrics carry the promised names with values.
async fn what_was_done_is_counted(left: &Left<'_>) -> Result<()> {
    for cluster in left.clusters {
        let acted: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM commands WHERE cluster_id = $1 AND state = 'SUCCEEDED' AND action IN ('mark', 'evict', 'release')",
        )
        .bind(&cluster.id)
        .fetch_one(left.pool)
        .await?;
        let mut pages = String::new();
        for address in cluster.webhooks() {
            pages.push_str(&reqwest::get(format!("http://{address}/metrics")).await?.text().await?);
        }
        for name in ["gpu_selfhealing_leader_active", "gpu_selfhealing_queue_depth", "gpu_selfhealing_evict_pods_total"] {
            ensure!(pages.contains(name), "what was done is counted: {} shows no {name}", cluster.id);
        }
        let counted = pages.contains("gpu_selfhealing_processed_total{");
        ensure!(acted == 0 || counted, "what was done is counted: {} acted {acted} times and counts none", cluster.id);
    }
    Ok(())
}

/// 7. Absence is not health: no incident was closed as released without a person's word or a fresh source that said clear.
async fn silence_closes_nothing(pool: &PgPool) -> Result<()> {
    let sql = "SELECT i.incident_id::text FROM incidents i JOIN incident_faults m USING (cluster_id, incident_id)
               JOIN faults f ON f.cluster_id = m.cluster_id AND f.fault_key = m.fault_key AND f.episode = m.episode
               WHERE i.state = 'released' AND f.evidence = 'stale'
               AND NOT EXISTS (SELECT 1 FROM process_requests r WHERE r.cluster_id = i.cluster_id AND r.action = 'release')";
    none(pool, "silence closes nothing", sql).await
}

/// 8. The audit chain verifies from its first entry: every hash is computed again, by the verb that auditors use.
fn the_audit_chain_is_whole(left: &Left<'_>) -> Result<()> {
    let (code, output, errors) = (left.ctl)(&["audit", "verify"])?;
    ensure!(code == 0, "the audit chain is whole: {output}{errors}");
    Ok(())
}

/// 8. No audit, no action: each command that was sent is in its cluster's chain as signed, or as taken over where a restored database
///    had lost it with that entry. What scene h writes into the table behind the hub's back is for the node `forged`, and its absence
///    from the chain is what gives it away.
async fn what_was_done_is_in_the_audit(pool: &PgPool) -> Result<()> {
    let sql = "SELECT c.command_id::text || ' was sent, its chain has no command_signed' FROM commands c WHERE c.sent_at IS NOT NULL AND c.node_uid <> 'forged'
               AND NOT EXISTS (SELECT 1 FROM audit_entries e WHERE e.chain = c.cluster_id AND e.kind IN ('command_signed', 'command_adopted') AND e.subject LIKE '%' || c.command_id::text)";
    none(pool, "what was done is in the audit", sql).await
}

/// 10. What is refused, skipped, blocked or dropped says so.
async fn what_is_refused_says_so(pool: &PgPool) -> Result<()> {
    let sql = "SELECT subject FROM reports WHERE refusal <> '' AND reason = ''";
    none(pool, "what is refused says so", sql).await?;
    let sql = "SELECT incident_id::text FROM incidents WHERE reason = ''";
    none(pool, "an incident says why", sql).await
}
