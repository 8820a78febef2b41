//! Measuring how many new faults a second one hub takes into Postgres, and how long an ack takes, beside a bare INSERT of
//! the same rows in the same run. Every fault is new and of a node that the hub knows; the policy's mode is observe, so that
//! the hub judges all of them, as in a storm anywhere, and sends nobody a command.

mod bare;
mod source;

use std::{collections::VecDeque, time::Duration};

use anyhow::{Result, ensure};
use chrono::{DateTime, Utc};
use gpuheal_proto::limits;
use sqlx::PgPool;
use tokio::{task::JoinSet, time::Instant};

use super::{alone::Alone, quantile, simulated::Replica};
use crate::wait;
use bare::Bare;
use source::{Acked, Due, Source};

/// Between two batches of a paced session.
const TICK: Duration = Duration::from_millis(100);
/// Between the moment at which all sessions are attached and their first batch.
const LEAD: Duration = Duration::from_millis(500);
/// How long the hub may take to know all nodes.
const WITHIN: Duration = Duration::from_secs(300);
/// How long the hub may judge what it has before more comes. If it is not done by then the run goes on, and says so.
const JUDGED_WITHIN: Duration = Duration::from_secs(120);
/// The mode in which the hub acts on nothing.
const OBSERVE: (&str, &str) = ("mode: heal", "mode: observe");

/// What is to be measured.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Sessions, each its cluster's leader.
    pub sessions: usize,
    /// Nodes of each cluster.
    pub nodes: usize,
    /// Faults a second, over all sessions.
    pub rate: u64,
    /// For how long.
    pub span: Duration,
    /// Faults that are then sent as fast as credit allows, over all sessions.
    pub flood: u64,
    /// Seed of the waits between attaches.
    pub seed: u64,
}

/// What one hub showed.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Figures {
    /// Sessions and the rate that was asked for.
    pub asked: (usize, u64),
    /// Faults a second that were acked while paced.
    pub paced_rate: f64,
    /// Milliseconds from the moment at which a batch was due to its ack, sorted, one for each batch.
    pub paced_ack_ms: Vec<f64>,
    /// Nodes that waited for a judgement when the last ack had come.
    pub paced_backlog: i64,
    /// Faults a second that were acked unpaced.
    pub flood_rate: f64,
    /// Milliseconds from sending to ack then.
    pub flood_ack_ms: Vec<f64>,
    /// The bare INSERT.
    pub bare: Bare,
}

impl Figures {
    /// What the hub reached of what the bare INSERT did.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.flood_rate / self.bare.best()
    }

    /// Each figure in words: what, target, measured.
    #[must_use]
    pub fn rows(&self) -> Vec<[String; 3]> {
        let row = |what: &str, target: String, measured: String| [what.to_owned(), target, measured];
        let of = |sorted: &[f64]| {
            format!("{:.0} / {:.0} / {:.0} ms", quantile(sorted, 0.5), quantile(sorted, 0.99), quantile(sorted, 1.0))
        };
        let rates: Vec<String> = self.bare.rates.iter().map(|(writers, rate)| format!("{rate:.0} by {writers}")).collect();
        let (bytes, indexes) = self.bare.width;
        let (fsync, commit) = &self.bare.synced;
        vec![
            row("new faults sustained", format!("{}/s", self.asked.1), format!("{:.0}/s", self.paced_rate)),
            row("ack P50 / P99 / worst", "P99 250 ms".into(), of(&self.paced_ack_ms)),
            row("nodes not yet judged at the end of it", String::new(), self.paced_backlog.to_string()),
            row("new faults unpaced", String::new(), format!("{:.0}/s", self.flood_rate)),
            row("ack P50 / P99 / worst, unpaced", String::new(), of(&self.flood_ack_ms)),
            row("bare INSERT of the same rows, rows/s by writers", String::new(), rates.join(", ")),
            row("unpaced, of the best bare INSERT", "60 %".into(), format!("{:.0} %", self.ratio() * 100.0)),
            row("the rows", String::new(), format!("{} of {bytes:.0} bytes, {indexes} indexes", self.bare.rows)),
            row("fsync / synchronous_commit", "on / on".into(), format!("{fsync} / {commit}")),
        ]
    }
}

/// Sends faults from many sessions to one hub and measures.
pub async fn run(plan: Plan, policy: &str, say: impl Fn(&str)) -> Result<Figures> {
    ensure!(
        plan.sessions > 0 && plan.nodes > 0 && plan.rate > 0 && plan.flood > 0,
        "sessions, nodes, rate and flood are above zero"
    );
    let tick = plan.rate as f64 * TICK.as_secs_f64() / plan.sessions as f64;
    ensure!(
        tick < limits::BATCH_FAULTS_MAX as f64,
        "{} faults/s from {} sessions are too many for a batch each {TICK:?}",
        plan.rate,
        plan.sessions
    );
    ensure!(policy.contains(OBSERVE.0), "the policy of the measurement says {:?}", OBSERVE.0);
    super::alone::allow_files(plan.sessions)?;
    let clusters: Vec<String> = (0..plan.sessions).map(|n| format!("s{n:03}")).collect();
    let mut alone = Alone::start(&policy.replace(OBSERVE.0, OBSERVE.1), &clusters, &say).await?;
    let outcome = measured(&mut alone, plan, &clusters, &say).await;
    alone.end(outcome)
}

async fn measured(alone: &mut Alone, plan: Plan, clusters: &[String], say: &impl Fn(&str)) -> Result<Figures> {
    let mut figures = Figures { asked: (plan.sessions, plan.rate), ..Figures::default() };
    let mut sources = vec![];
    for (n, cluster) in clusters.iter().enumerate() {
        let replica = Replica::load(&alone.identity(cluster), cluster, "spoke-0", true, plan.nodes)?;
        sources.push(Source::new(replica, plan.seed ^ ((n as u64) << 20))?);
    }
    say(&format!("{} faults/s from {} sessions for {} s", plan.rate, plan.sessions, plan.span.as_secs()));
    let (sources, took, acked) = phase(alone, plan, sources, "paced").await?;
    figures.paced_rate = faults(&acked) / took.as_secs_f64();
    figures.paced_ack_ms = sorted_ms(&acked);
    figures.paced_backlog = backlog(&alone.pool).await?;
    judged(&alone.pool, say).await;
    sqlx::query("CHECKPOINT").execute(&alone.pool).await?;
    let since: DateTime<Utc> = sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(&alone.pool).await?;
    say(&format!("{} faults as fast as the hub gives credit", plan.flood));
    let (_, took, acked) = phase(alone, plan, sources, "flood").await?;
    figures.flood_rate = faults(&acked) / took.as_secs_f64();
    figures.flood_ack_ms = sorted_ms(&acked);
    say("the hub is stopped, and the same rows are inserted without it");
    alone.hub.stop()?;
    figures.bare = bare::run(&alone.pool, since, say).await?;
    Ok(figures)
}

/// Attaches all sessions and plays one phase; gives the sessions' sources back, how long it took and every ack.
async fn phase(alone: &Alone, plan: Plan, sources: Vec<Source>, name: &'static str) -> Result<(Vec<Source>, Duration, Vec<Acked>)> {
    let mut attached = vec![];
    for (n, mut source) in sources.into_iter().enumerate() {
        let stream = format!("{name}-{n:03}");
        let link = source.attach(alone.link(), &stream).await?;
        attached.push((source, stream, link));
    }
    let nodes = i64::try_from(plan.sessions * plan.nodes)?;
    wait::until("the hub to know the nodes", WITHIN, || async {
        let known: i64 = sqlx::query_scalar("SELECT count(*) FROM nodes WHERE gone_at IS NULL").fetch_one(&alone.pool).await?;
        Ok((known >= nodes).then_some(()))
    })
    .await?;
    let paced = name == "paced";
    let begin = Instant::now() + LEAD;
    let mut tasks = JoinSet::new();
    for (n, (mut source, stream, link)) in attached.into_iter().enumerate() {
        let due = if paced { paced_plan(plan, n, begin) } else { flood_plan(plan, n, begin) };
        tasks.spawn(async move {
            let acked = source.play(link, &stream, due, paced).await?;
            Ok::<_, anyhow::Error>((n, source, acked))
        });
    }
    let (mut back, mut acked) = (vec![], vec![]);
    while let Some(done) = tasks.join_next().await {
        let (n, source, mut of_one) = done??;
        back.push((n, source));
        acked.append(&mut of_one);
    }
    back.sort_by_key(|(n, _)| *n);
    let last = acked.iter().map(|batch| batch.at).max().unwrap_or(begin);
    // What was paced took as long as it was to take, unless the hub took longer.
    let took = last.saturating_duration_since(begin).max(if paced { plan.span } else { Duration::from_millis(1) });
    Ok((back.into_iter().map(|(_, source)| source).collect(), took, acked))
}

/// Pure: one session's part of the rate, batch by batch, the sessions spread over a tick.
fn paced_plan(plan: Plan, session: usize, begin: Instant) -> VecDeque<Due> {
    let ticks = u32::try_from(plan.span.as_millis() / TICK.as_millis()).unwrap_or(u32::MAX);
    let each = plan.rate as f64 * TICK.as_secs_f64() / plan.sessions as f64;
    let apart = TICK.mul_f64(session as f64 / plan.sessions as f64);
    // Each session's fraction is carried on, and begins elsewhere, so that all together keep the rate in each tick.
    let carried = session as f64 / plan.sessions as f64;
    let upto = |tick: u32| each.mul_add(f64::from(tick), carried).floor() as u64;
    let batch = |tick: u32| Due { at: begin + apart + TICK * tick, faults: upto(tick + 1) - upto(tick) };
    (0..ticks).map(batch).filter(|due| due.faults > 0).collect()
}

/// Pure: one session's part of the flood in full batches, all due at once.
fn flood_plan(plan: Plan, session: usize, begin: Instant) -> VecDeque<Due> {
    let (sessions, session, full) = (plan.sessions as u64, session as u64, limits::BATCH_FAULTS_MAX as u64);
    let mine = plan.flood / sessions + u64::from(session < plan.flood % sessions);
    let batch = |n: u64| Due { at: begin, faults: full.min(mine - n * full) };
    (0..mine.div_ceil(full)).map(batch).collect()
}

fn faults(acked: &[Acked]) -> f64 {
    acked.iter().map(|batch| batch.faults).sum::<u64>() as f64
}

fn sorted_ms(acked: &[Acked]) -> Vec<f64> {
    let mut ms: Vec<f64> = acked.iter().map(|batch| batch.took.as_secs_f64() * 1000.0).collect();
    ms.sort_by(f64::total_cmp);
    ms
}

/// Nodes that are due to be judged.
async fn backlog(pool: &PgPool) -> Result<i64> {
    Ok(sqlx::query_scalar("SELECT count(*) FROM judgements WHERE due_at <= clock_timestamp()").fetch_one(pool).await?)
}

/// Waits until the hub has judged what it has, so that the next phase begins from rest.
async fn judged(pool: &PgPool, say: &impl Fn(&str)) {
    let done =
        wait::until("the hub to judge what it has", JUDGED_WITHIN, || async { Ok((backlog(pool).await? == 0).then_some(())) });
    if let Err(error) = done.await {
        say(&format!("{error:#}: going on"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan = Plan { sessions: 7, nodes: 10, rate: 1000, span: Duration::from_secs(3), flood: 10_000, seed: 1 };

    #[test]
    fn paced_sessions_together_keep_the_rate() {
        let begin = Instant::now();
        let due: Vec<Due> = (0..PLAN.sessions).flat_map(|session| paced_plan(PLAN, session, begin)).collect();
        let all: u64 = due.iter().map(|due| due.faults).sum();
        assert!((2990..=3010).contains(&all), "{all}");
        let first: u64 = due.iter().filter(|due| due.at < begin + TICK).map(|due| due.faults).sum();
        assert!((93..=107).contains(&first), "{first}");
    }

    #[test]
    fn a_flood_is_all_of_it_in_batches_that_the_protocol_allows() {
        let due: Vec<Due> = (0..PLAN.sessions).flat_map(|session| flood_plan(PLAN, session, Instant::now())).collect();
        assert_eq!(due.iter().map(|due| due.faults).sum::<u64>(), PLAN.flood);
        assert!(due.iter().all(|due| (1..=limits::BATCH_FAULTS_MAX as u64).contains(&due.faults)));
    }
}
