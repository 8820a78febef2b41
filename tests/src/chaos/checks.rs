//! What must be so once the troubles have ended. Each check compares what was injected, what Postgres holds and what the
//! clusters hold. *For ever* ones can be broken at any moment and never mended; *at rest* ones are waited for.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Result, bail, ensure};

use super::{
    act::Actor,
    effects::{self, Deadlines, Pause},
    field::CEILING,
    ledger::{Alert, Touched},
    schedule::REPLICAS,
    signed,
    watcher::Watcher,
};
use crate::invariants::{self, Left};

/// One check.
pub struct Finding {
    /// Number of the invariant that it is about, in docs/architecture.md.
    pub number: u8,
    /// Its name.
    pub name: &'static str,
    /// Once broken, broken for ever: no waiting mends it.
    pub for_ever: bool,
    /// Whether it held.
    pub held: Result<()>,
}

/// Looks at everything once.
pub async fn all(actor: &Actor<'_>, watcher: &Watcher) -> Vec<Finding> {
    let mut found = vec![];
    let at_rest = |number, name, held| Finding { number, name, for_ever: false, held };
    let for_ever = |number, name, held| Finding { number, name, for_ever: true, held };
    found.push(for_ever(0, "no program panicked", nobody_panicked(actor)));
    found.push(for_ever(2, "no pod was evicted twice", evicted_once(actor, watcher)));
    found.push(for_ever(3, "nothing was done without the Lease", with_the_lease(actor, watcher)));
    found.push(for_ever(
        4,
        "no more nodes marked at any moment than budget and ceiling allow",
        within_budget(actor, watcher).await,
    ));
    found.push(at_rest(3, "no node was written past its command's deadlines", in_time(actor, watcher).await));
    found.push(at_rest(5, "every webhook that was answered 200 is in Postgres", alerts_are_kept(actor).await));
    found.push(at_rest(5, "every fault that still shows is in Postgres", faults_are_kept(actor).await));
    found.push(at_rest(
        5,
        "every node with a standing P0 is out, or waits and says for what and until when",
        broken_are_out(actor).await,
    ));
    found.push(at_rest(6, "every node that was repaired and released is free", released_are_free(actor)));
    found.push(at_rest(2, "every command has ended, and says so in both places", commands_agree(actor).await));
    found.push(at_rest(2, "no node was marked more often than it was commanded", marks_are_commanded(actor, watcher).await));
    let (program, args) = actor.field.ctl();
    let ctl = move |more: &[&str]| {
        let output = std::process::Command::new(&program)
            .args(["--timeout-s", "120"])
            .args(&args)
            .args(more)
            .stdin(std::process::Stdio::null())
            .output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr)))
    };
    let left = Left { pool: &actor.field.pool, clusters: &actor.field.clusters, ctl: &ctl };
    // A process that was killed took its counters with it.
    for check in invariants::all(&left).await.into_iter().filter(|check| check.name != invariants::COUNTED) {
        found.push(at_rest(check.number, check.name, check.held));
    }
    found
}

fn none(found: Vec<String>) -> Result<()> {
    ensure!(found.is_empty(), "{}", found.join("; "));
    Ok(())
}

fn nobody_panicked(actor: &Actor<'_>) -> Result<()> {
    let mut found = vec![];
    for log in actor.field.logs() {
        let text = std::fs::read(&log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        found.extend(text.lines().filter(|line| line.contains("panicked at")).map(|line| format!("{}: {line}", log.display())));
    }
    none(found)
}

fn evicted_once(actor: &Actor<'_>, watcher: &Watcher) -> Result<()> {
    let clusters = actor.field.clusters.iter();
    none(clusters.flat_map(|cluster| effects::evicted_twice(&watcher.seen(&cluster.id).writes)).collect())
}

fn with_the_lease(actor: &Actor<'_>, watcher: &Watcher) -> Result<()> {
    let mut found = vec![];
    for (number, cluster) in actor.field.clusters.iter().enumerate() {
        let seen = watcher.seen(&cluster.id);
        let replicas: Vec<String> = (0..REPLICAS).map(|replica| actor.field.replica(number, replica)).collect();
        let pauses: Vec<Pause> = (actor.pauses.iter())
            .map(|(replica, wall_ms)| Pause { replica: replica.clone(), until_ms: wall_ms.saturating_sub(seen.started_ms) })
            .collect();
        found.extend(effects::without_the_lease(&seen.writes, &pauses, &replicas));
    }
    none(found)
}

/// By what the clusters showed, whatever became of Postgres: nothing new is begun in a cluster before all its marks are taken over. In
/// Postgres what is taken over may pass a budget for as long as a hold of before the restore stands beside it.
async fn within_budget(actor: &Actor<'_>, watcher: &Watcher) -> Result<()> {
    let mut found = if actor.restored_ms.is_some() { vec![] } else { watcher.overspent() };
    for (number, cluster) in actor.field.clusters.iter().enumerate() {
        let most = effects::most_marked(&watcher.seen(&cluster.id).writes);
        let (_, allowed) = crate::facts::budget(&actor.field.pool, &cluster.id).await?;
        let allowed = usize::try_from(allowed)?;
        if most > allowed && allowed > 0 {
            found.push(format!("{most} nodes of {} were marked at once, its budget allows {allowed}", cluster.id));
        }
        if number == CEILING.0 && most > CEILING.1 {
            found.push(format!("{most} nodes of {} were marked at once, its owner's ceiling is {}", cluster.id, CEILING.1));
        }
    }
    none(found)
}

/// By the commands as they were signed, in Postgres and in the clusters' own records, which no restore of Postgres loses.
async fn in_time(actor: &Actor<'_>, watcher: &Watcher) -> Result<()> {
    let sql =
        "SELECT node_uid, plan_rev, (extract(epoch FROM start_by) * 1000)::bigint, (extract(epoch FROM finish_by) * 1000)::bigint
               FROM commands WHERE cluster_id = $1";
    let mut found = vec![];
    for cluster in &actor.field.clusters {
        let rows: Vec<(String, i64, i64, i64)> = sqlx::query_as(sql).bind(&cluster.id).fetch_all(&actor.field.pool).await?;
        let (mut deadlines, mut finish_by_ms) = (BTreeMap::new(), BTreeMap::new());
        for (uid, plan, start, finish) in rows {
            let by = Deadlines { start_by_ms: u64::try_from(start)?, finish_by_ms: u64::try_from(finish)? };
            deadlines.insert((uid, u64::try_from(plan)?), by);
        }
        for signed in signed::all(cluster).await?.into_values() {
            // A database that lost a plan revision may give it out again: whichever of the two wrote was in time.
            let by = deadlines.entry((signed.node_uid, signed.plan_rev)).or_insert(signed.deadlines);
            by.start_by_ms = by.start_by_ms.max(signed.deadlines.start_by_ms);
            by.finish_by_ms = by.finish_by_ms.max(signed.deadlines.finish_by_ms);
            finish_by_ms.extend(signed.pods.into_iter().map(|uid| (uid, signed.deadlines.finish_by_ms)));
        }
        let seen = watcher.seen(&cluster.id);
        found.extend(effects::out_of_time(&seen.writes, seen.started_ms, &deadlines));
        found.extend(effects::evicted_late(&seen.writes, seen.started_ms, &finish_by_ms));
    }
    none(found)
}

/// Episodes of a fault of one GPU that Postgres holds.
async fn kept(actor: &Actor<'_>, cluster: &str, node: &str, xid: u32, gpu_uuid: &str) -> Result<i64> {
    let sql =
        "SELECT count(*) FROM faults WHERE cluster_id = $1 AND node_name = $2 AND class = 'xid' AND code = $3 AND gpu_uuid = $4";
    let query = sqlx::query_scalar(sql).bind(cluster).bind(node).bind(xid.to_string()).bind(gpu_uuid);
    Ok(query.fetch_one(&actor.field.pool).await?)
}

async fn alerts_are_kept(actor: &Actor<'_>) -> Result<()> {
    let mut found = vec![];
    for injected in actor.ledger.injected().iter().filter(|injected| injected.alert != Alert::None) {
        let cluster = &actor.field.clusters[injected.cluster].id;
        match injected.alert {
            Alert::Acked if kept(actor, cluster, &injected.node, injected.xid, &injected.gpu_uuid).await? == 0 => {
                found.push(format!("{cluster}/{}: Xid {} was acknowledged and is not there", injected.node, injected.xid));
            }
            Alert::Told if matches!(injected.touched, Touched::Not | Touched::Uncordoned) => {
                found.push(format!("{cluster}/{}: no spoke has acknowledged Xid {} yet", injected.node, injected.xid));
            }
            Alert::None | Alert::Told | Alert::Acked => {}
        }
    }
    none(found)
}

async fn faults_are_kept(actor: &Actor<'_>) -> Result<()> {
    let mut found = vec![];
    for injected in actor.ledger.injected().iter().filter(|injected| injected.shows()) {
        let cluster = &actor.field.clusters[injected.cluster].id;
        if kept(actor, cluster, &injected.node, injected.xid, &injected.gpu_uuid).await? == 0 {
            found.push(format!("{cluster}/{}: Xid {} shows and is not there", injected.node, injected.xid));
        }
    }
    none(found)
}

/// A node with a standing P0 is out, or is held back with an open incident that says by what, and until when: a budget or a
/// ceiling that is spent, or a refusal whose time is not over.
async fn broken_are_out(actor: &Actor<'_>) -> Result<()> {
    let sql = "SELECT state, reason, state = 'blocked' AND recheck_at > clock_timestamp() - interval '30 s' FROM incidents
               WHERE cluster_id = $1 AND node_name = $2 AND closed_at IS NULL";
    let mut found = vec![];
    for injected in actor.ledger.injected().iter().filter(|injected| injected.stands()) {
        let cluster = &actor.field.clusters[injected.cluster];
        let query = sqlx::query_as(sql).bind(&cluster.id).bind(&injected.node);
        let open: Option<(String, String, Option<bool>)> = query.fetch_optional(&actor.field.pool).await?;
        let marked = cluster.observer.marked_now(&injected.node);
        match open {
            None => found.push(format!("{}/{} has no open incident", cluster.id, injected.node)),
            Some((_, _, waits)) if marked || waits == Some(true) => {}
            Some((state, reason, _)) => found.push(format!("{}/{} is not out, it is {state}: {reason}", cluster.id, injected.node)),
        }
    }
    none(found)
}

fn released_are_free(actor: &Actor<'_>) -> Result<()> {
    let mut found = vec![];
    for injected in actor.ledger.injected() {
        let cluster = &actor.field.clusters[injected.cluster];
        match injected.touched {
            Touched::Asked => found.push(format!("{}/{}: the hub has not taken its release yet", cluster.id, injected.node)),
            // A database that was put back may have forgotten a release of before, and the repair with it: then its mark has an open
            // incident, as every mark, and a person is to ask again.
            Touched::Released { asked_ms }
                if actor.restored_ms.is_none_or(|restored_ms| restored_ms < asked_ms)
                    && cluster.observer.marked_now(&injected.node) =>
            {
                found.push(format!("{}/{} was released and still carries our mark", cluster.id, injected.node));
            }
            Touched::Not | Touched::Released { .. } | Touched::Uncordoned | Touched::Repaired => {}
        }
    }
    none(found)
}

/// Every HealAction's state is the one in Postgres; no command waits for its end past `finish_by` + 60 s, and none at all
/// once the run is at rest.
async fn commands_agree(actor: &Actor<'_>) -> Result<()> {
    let mut found = vec![];
    let sql =
        "SELECT command_id::text, state, action, node_name, sent_at IS NOT NULL, finish_by + interval '60 s' < clock_timestamp()
               FROM commands WHERE cluster_id = $1";
    type Row = (String, String, String, String, bool, bool);
    for cluster in &actor.field.clusters {
        let rows: Vec<Row> = sqlx::query_as(sql).bind(&cluster.id).fetch_all(&actor.field.pool).await?;
        let held = signed::all(cluster).await?;
        for (id, state, action, node, _, overdue) in &rows {
            let ended = ["SUCCEEDED", "FAILED", "UNKNOWN", "REFUSED", "CANCELLED", "EXPIRED"].contains(&state.as_str());
            let there = held.get(id).map(|signed| &signed.state);
            let what = format!("{}/{node} {action} {id}", cluster.id);
            if !ended {
                found.push(format!("{what} is {state}{}", if *overdue { ", past finish_by + 60 s" } else { "" }));
            } else if ["SUCCEEDED", "FAILED"].contains(&state.as_str()) && there != Some(state) {
                found.push(format!("{what} is {state} in Postgres and {} in the cluster", there.map_or("unknown", String::as_str)));
            } else if let Some(there) = there.filter(|there| ["SUCCEEDED", "FAILED"].contains(&there.as_str()) && *there != state) {
                found.push(format!("{what} is {state} in Postgres and {there} in the cluster"));
            }
        }
        let known: Vec<&String> = rows.iter().map(|row| &row.0).collect();
        // What is over and let go is history: a database that lost it has no use for it.
        let strange =
            held.values().filter(|signed| actor.restored_ms.is_none() || signed.held).filter(|signed| !known.contains(&&signed.id));
        found.extend(
            strange.map(|signed| format!("{} holds the HealAction {}, which Postgres does not know", cluster.id, signed.id)),
        );
    }
    none(found)
}

async fn marks_are_commanded(actor: &Actor<'_>, watcher: &Watcher) -> Result<()> {
    let mut found = vec![];
    for cluster in &actor.field.clusters {
        let signed = signed::all(cluster).await?;
        for (node, times) in effects::times_marked(&watcher.seen(&cluster.id).writes) {
            let commands = crate::facts::commands(&actor.field.pool, &cluster.id, node).await?;
            let commanded = commands.iter().filter(|command| ["mark", "evict"].contains(&command.action.as_str()));
            let mut commanded: BTreeSet<String> = commanded.map(|command| command.command_id.to_string()).collect();
            commanded.extend(signed.values().filter(|signed| signed.marks && signed.node == node).map(|signed| signed.id.clone()));
            if times > commanded.len() {
                found.push(format!("{}/{node} was marked {times} times by {} commands", cluster.id, commanded.len()));
            }
        }
    }
    none(found)
}

/// Looks again and again until everything holds, at most `within`; gives the last look. What is broken for ever ends it.
pub async fn at_rest(actor: &mut Actor<'_>, watcher: &Watcher, within: Duration) -> Result<Vec<Finding>> {
    let since = std::time::Instant::now();
    let mut said = vec![];
    loop {
        actor.look_after()?;
        let found = all(actor, watcher).await;
        let told = actor.people.done();
        let not_yet: Vec<&str> = found.iter().filter(|finding| finding.held.is_err()).map(|finding| finding.name).collect();
        if said != not_yet {
            let text = if not_yet.is_empty() { "everything holds".to_owned() } else { format!("not yet: {}", not_yet.join("; ")) };
            actor.say("rest", &text);
            said = not_yet;
        }
        let all_held = found.iter().all(|finding| finding.held.is_ok());
        let lost = found.iter().any(|finding| finding.for_ever && finding.held.is_err());
        if all_held && told || lost || since.elapsed() >= within {
            return Ok(found);
        }
        for _ in 0..LOOKS_AFTER {
            actor.look_after()?;
            tokio::time::sleep(LOOK_AFTER).await;
        }
    }
}

/// Between two looks at everything, which ask a lot of Postgres: two seconds, in which the field is looked after.
const LOOKS_AFTER: u32 = 20;
const LOOK_AFTER: Duration = Duration::from_millis(100);

/// What did not hold, as an error that names all of it.
pub fn verdict(found: &[Finding]) -> Result<()> {
    let broken: Vec<String> = (found.iter())
        .filter_map(|finding| Some(format!("{} ({}): {:#}", finding.name, finding.number, finding.held.as_ref().err()?)))
        .collect();
    if broken.is_empty() {
        return Ok(());
    }
    bail!("{} of {} checks do not hold:\n  {}", broken.len(), found.len(), broken.join("\n  "))
}
