//! Measuring what attached spokes cost one hub when nothing happens, and how long until all of them are back after it was
//! killed. The spokes are simulated, in this process; memory and CPU time are the hub's alone, as the kernel counts them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use gpuheal_proto::{limits, link::v1::attach_response::Message as Down};
use tokio::{task::JoinSet, time::MissedTickBehavior};

use super::{
    alone::{Alone, allow_files},
    quantile,
    simulated::{End, Link, Replica, beat, wait_after},
};
use crate::{process::Process, seed::Seeded, wait};

/// Replicas of a cluster: one leads.
const REPLICAS: usize = 2;
/// Nodes of each cluster: it is not the nodes that are measured here.
const NODES: usize = 4;
/// How long all may take to attach before the run is called broken.
const WITHIN: Duration = Duration::from_secs(15 * 60);
/// A session that lived this long was healthy: the next wait starts small again, as the shipping spoke has it.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);
/// Between the last attach and the idle span: the hub writes down who is there, and judges what the snapshots brought.
const SETTLE: Duration = Duration::from_secs(20);
/// Ticks of a second in /proc/PID/stat. Linux shows it in hundredths whatever the kernel's own tick is.
const TICKS: f64 = 100.0;

/// What is to be measured.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Spokes on one hub.
    pub spokes: usize,
    /// For how long nothing happens.
    pub idle: Duration,
    /// Seed of the waits.
    pub seed: u64,
}

/// What one hub showed.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Figures {
    /// Spokes attached.
    pub spokes: usize,
    /// Resident KiB of the hub without any, when all were attached, and after the idle span.
    pub resident_kib: [u64; 3],
    /// The idle span in seconds.
    pub idle_seconds: f64,
    /// CPU seconds of the hub in it.
    pub idle_cpu_seconds: f64,
    /// Seconds until each was attached, from the moment at which all began, sorted.
    pub first_seconds: Vec<f64>,
    /// Seconds until each was back, from the kill, sorted.
    pub back_seconds: Vec<f64>,
    /// Seconds from the kill until the new process was ready.
    pub ready_seconds: f64,
    /// Attaches that the hub put off, and those that broke, over the whole run.
    pub put_off: (usize, usize),
}

impl Figures {
    /// Resident KiB for each spoke: what the hub grew by since nobody was there.
    #[must_use]
    pub fn kib_each(&self) -> f64 {
        let [before, at_first, after] = self.resident_kib;
        at_first.max(after).saturating_sub(before) as f64 / self.spokes.max(1) as f64
    }

    /// Share of one core that the hub took while nothing happened.
    #[must_use]
    pub fn idle_share(&self) -> f64 {
        self.idle_cpu_seconds / self.idle_seconds
    }

    /// Each figure in words: what, target, measured.
    #[must_use]
    pub fn rows(&self) -> Vec<[String; 3]> {
        let row = |what: &str, target: &str, measured: String| [what.to_owned(), target.to_owned(), measured];
        let [before, at_first, after] = self.resident_kib.map(|kib| kib as f64 / 1024.0);
        let of = |sorted: &[f64], share| format!("{:.1} s", quantile(sorted, share));
        vec![
            row("hub memory for each spoke", "100 KiB", format!("{:.1} KiB", self.kib_each())),
            row(
                "hub resident: nobody, all attached, after the idle span",
                "",
                format!("{before:.0} / {at_first:.0} / {after:.0} MiB"),
            ),
            row("hub CPU while idle, of one core", "10 %", format!("{:.1} %", self.idle_share() * 100.0)),
            row("hub killed and started again: all back", "60 s", of(&self.back_seconds, 1.0)),
            row("the same, P50 / P99", "", format!("{} / {}", of(&self.back_seconds, 0.5), of(&self.back_seconds, 0.99))),
            row("of which until the hub was ready", "", format!("{:.1} s", self.ready_seconds)),
            row("all attached to a hub that is new to them", "", of(&self.first_seconds, 1.0)),
            row("attaches put off / broken", "", format!("{} / {}", self.put_off.0, self.put_off.1)),
        ]
    }
}

/// Attaches so many spokes to one hub and measures.
pub async fn run(plan: Plan, policy: &str, say: impl Fn(&str)) -> Result<Figures> {
    allow_files(plan.spokes)?;
    let clusters: Vec<String> = (0..plan.spokes.div_ceil(REPLICAS)).map(|n| format!("c{n:05}")).collect();
    let mut alone = Alone::start(policy, &clusters, &say).await?;
    let outcome = measured(&mut alone, plan, &clusters, &say).await;
    alone.end(outcome)
}

async fn measured(alone: &mut Alone, plan: Plan, clusters: &[String], say: &impl Fn(&str)) -> Result<Figures> {
    let mut figures = Figures { spokes: plan.spokes, ..Figures::default() };
    figures.resident_kib[0] = resident(&alone.hub)?;
    let board = Arc::new(Board::new(plan.spokes));
    say(&format!("{} spokes attach", plan.spokes));
    let began = board.now();
    let mut spokes = JoinSet::new();
    for n in 0..plan.spokes {
        let cluster = &clusters[n / REPLICAS];
        let leads = n.is_multiple_of(REPLICAS);
        let replica = Replica::load(&alone.identity(cluster), cluster, &format!("spoke-{}", n % REPLICAS), leads, NODES)?;
        spokes.spawn(spoke(replica, alone.link().to_owned(), board.clone(), n, Seeded::new(plan.seed ^ ((n as u64) << 20))));
    }
    figures.first_seconds = all_since(&board, began, say).await?;
    tokio::time::sleep(SETTLE).await;
    figures.resident_kib[1] = resident(&alone.hub)?;
    say(&format!("nothing happens for {} s", plan.idle.as_secs()));
    let (cpu, since) = (cpu_seconds(&alone.hub)?, Instant::now());
    tokio::time::sleep(plan.idle).await;
    figures.idle_cpu_seconds = cpu_seconds(&alone.hub)? - cpu;
    figures.idle_seconds = since.elapsed().as_secs_f64();
    figures.resident_kib[2] = resident(&alone.hub)?;
    say("the hub is killed and started again");
    let killed = board.now();
    alone.hub.kill()?;
    alone.start_again().await?;
    figures.ready_seconds = board.now().saturating_sub(killed) as f64 / 1000.0;
    figures.back_seconds = all_since(&board, killed, say).await?;
    figures.put_off = (board.put_off.load(Ordering::Relaxed), board.broken.load(Ordering::Relaxed));
    spokes.shutdown().await;
    Ok(figures)
}

/// Seconds from `since` to each spoke's first Welcome after it, sorted, once every spoke has one.
async fn all_since(board: &Board, since: u64, say: &impl Fn(&str)) -> Result<Vec<f64>> {
    let told = AtomicU64::new(since);
    let mut seconds = wait::until("all spokes to be attached", WITHIN, || async {
        let at: Vec<u64> =
            board.welcomed.iter().map(|at| at.load(Ordering::Relaxed)).filter(|at| *at != NEVER && *at >= since).collect();
        let now = board.now();
        if now >= told.load(Ordering::Relaxed) + 5_000 {
            told.store(now, Ordering::Relaxed);
            say(&format!("{} of {} attached", at.len(), board.welcomed.len()));
        }
        Ok((at.len() == board.welcomed.len()).then_some(at))
    })
    .await?
    .into_iter()
    .map(|at| (at - since) as f64 / 1000.0)
    .collect::<Vec<f64>>();
    seconds.sort_by(f64::total_cmp);
    Ok(seconds)
}

/// Stands for a spoke that was never attached.
const NEVER: u64 = u64::MAX;

/// Where spokes write when they were attached last, in milliseconds since the board was made.
struct Board {
    made: Instant,
    welcomed: Vec<AtomicU64>,
    put_off: AtomicUsize,
    broken: AtomicUsize,
}

impl Board {
    fn new(spokes: usize) -> Self {
        let welcomed = (0..spokes).map(|_| AtomicU64::new(NEVER)).collect();
        Self { made: Instant::now(), welcomed, put_off: AtomicUsize::new(0), broken: AtomicUsize::new(0) }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.made.elapsed().as_millis()).unwrap_or(NEVER - 1)
    }
}

/// Attaches, and attaches again, until the run ends.
async fn spoke(replica: Replica, hub: String, board: Arc<Board>, number: usize, mut seeded: Seeded) {
    let mut failures = 0;
    loop {
        let started = Instant::now();
        let end = match replica.attach(&hub, &[]).await {
            Ok(link) => {
                board.welcomed[number].store(board.now(), Ordering::Relaxed);
                live(&replica, link).await
            }
            Err(end) => {
                match &end {
                    End::Rejected(_) | End::Goaway(_) => board.put_off.fetch_add(1, Ordering::Relaxed),
                    End::Failed(_) => board.broken.fetch_add(1, Ordering::Relaxed),
                };
                end
            }
        };
        if started.elapsed() >= HEALTHY_AFTER {
            failures = 0;
        }
        let wait = wait_after(&end, failures, seeded.next() as f64 / u64::MAX as f64);
        failures += 1;
        tokio::time::sleep(wait).await;
    }
}

/// A session in which nothing happens.
async fn live(replica: &Replica, mut link: Link) -> End {
    let every = link.heartbeat();
    let mut beats = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut n, mut heard) = (0, Instant::now());
    loop {
        tokio::select! {
            _ = beats.tick() => {
                if heard.elapsed() >= limits::DEAD_AFTER {
                    return End::Failed(anyhow::anyhow!("nothing heard"));
                }
                n += 1;
                let _ended = link.up.send(beat(n, replica.lease()));
            }
            message = link.down.message() => {
                heard = Instant::now();
                match message {
                    Ok(Some(message)) => match message.message {
                        Some(Down::Goaway(go)) => return End::Goaway(Duration::from_millis(go.reconnect_after_ms.into())),
                        Some(Down::Resync(asked)) if asked.all_under_term > 0 && replica.leads => {
                            let _ended = link.up.send(replica.snapshot(asked.all_under_term));
                        }
                        _ => {}
                    },
                    Ok(None) => return End::Failed(anyhow::anyhow!("the hub ended the stream")),
                    Err(status) => return End::Failed(status.into()),
                }
            }
        }
    }
}

fn resident(hub: &Process) -> Result<u64> {
    hub.resident_kib().context("the kernel tells the hub's resident memory (Linux)")
}

/// CPU time of the hub since it was started, its own and the kernel's for it.
fn cpu_seconds(hub: &Process) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", hub.id()))?;
    cpu_ticks(&stat).map(|ticks| ticks as f64 / TICKS).context("/proc/PID/stat tells the CPU time")
}

/// Pure: utime and stime together. The second field is a name that may hold anything; what follows its last bracket does not.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, after) = stat.rsplit_once(')')?;
    let mut fields = after.split_ascii_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_past_a_name_with_brackets_and_blanks() {
        let stat = "42 (a) b) (c) S 1 42 42 0 -1 4194560 9 0 0 0 250 50 0 0 20 0 4 0 100 1000 200";
        assert_eq!(cpu_ticks(stat), Some(300));
        assert_eq!(cpu_ticks("42 (cut short) S 1 2"), None);
    }

    #[test]
    fn memory_for_each_spoke_counts_what_the_hub_grew_by() {
        let figures = Figures { spokes: 10, resident_kib: [1000, 1500, 1400], ..Figures::default() };
        assert!((figures.kib_each() - 50.0).abs() < 1e-9);
    }
}
