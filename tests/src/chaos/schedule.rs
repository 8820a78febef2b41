//! Pure: what a run does and when, all of it from one seed. Kinds come from a shuffled deck, so that a long run meets each of
//! them and none twice before the others; a target is not ill twice at once.

use std::{collections::BTreeMap, time::Duration};

use super::proxy::Weather;
use crate::seed::Seeded;

/// A program of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// A hub, by its number.
    Hub(usize),
    /// A spoke: cluster and replica.
    Spoke(usize, usize),
}

/// A wire of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wire {
    /// From a spoke, by cluster and replica, to the hubs.
    Link(usize, usize),
    /// From a hub to Postgres.
    Database(usize),
}

/// What an API server does to spokes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Api {
    /// 429 with Retry-After.
    Throttled,
    /// Each request waits.
    Slow,
    /// 503.
    Unavailable,
    /// All open watches are cut.
    WatchesCut,
    /// Evictions are done, their answers lost.
    AnswersLost,
}

/// Something that goes wrong for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// kill -9, and started again.
    Kill(Program),
    /// SIGSTOP, then SIGCONT.
    Pause(Program),
    /// A wire in some weather.
    Wire(Wire, Weather),
    /// A wire's connections are reset.
    Reset(Wire),
    /// Postgres is stopped, and started again.
    PostgresDown,
    /// Postgres is copied while it is stopped.
    BackUp,
    /// Postgres is put back as it was copied.
    Restore,
    /// An API server misbehaves towards spokes.
    Api(usize, Api),
}

/// How a GPU fault comes to be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// Xid 79 on the exporter's page, and the GPU is no longer allocatable: P0.
    Page,
    /// The same, and Alertmanager tells of it: P0.
    PageAndAlert,
    /// Alertmanager alone tells of Xid 48: one witness, kept and never acted on.
    AlertAlone,
    /// Xid 31 on the page, an application's own: recorded.
    Recorded,
}

/// What a person does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hand {
    /// Repairs a marked node's GPU and releases it with gpuhealctl.
    Release,
    /// Uncordons a marked node: an order to leave it alone.
    Uncordon,
    /// Repairs a node that is broken and not out, and tells nobody.
    Repair,
}

/// One thing that the run does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    /// Begins; ends after this long.
    Trouble(Trouble, Duration),
    /// Breaks a GPU of this cluster and node, unless the node is broken already.
    Break(usize, usize, Break),
    /// Somebody acts in this cluster, on one of the nodes that fit: which one is this number modulo how many there are.
    Person(usize, Hand, usize),
}

/// When, and what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// After the start.
    pub at: Duration,
    /// What.
    pub what: What,
}

/// How hard a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Nothing that takes half a minute to be noticed: kills, resets, a slow network, a restarted Postgres, 429s, cut watches.
    Mild,
    /// Everything but a restored backup.
    Full,
    /// That too.
    WithRestore,
}

/// What a schedule is drawn for.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// How long troubles begin.
    pub span: Duration,
    /// Clusters.
    pub clusters: usize,
    /// Nodes of each.
    pub nodes: usize,
    /// How hard.
    pub force: Force,
    /// A pause that outlasts the Lease.
    pub lease: Duration,
}

/// Hubs of each run.
pub const HUBS: usize = 2;
/// Replicas of each spoke.
pub const REPLICAS: usize = 2;
/// Between two troubles. They last some seconds each, so that two or three are there at a time.
const TROUBLE_EVERY_MS: (u64, u64) = (1_500, 3_500);
/// Between two broken GPUs: a cluster of twelve lasts three minutes.
const BREAK_EVERY_MS: (u64, u64) = (2_500, 6_000);
/// Between two people.
const PERSON_EVERY_MS: (u64, u64) = (5_000, 12_000);
/// The backup that is put back later is taken at this share of the run, the older half being lost, and put back at that one.
const BACK_UP_AT: f64 = 0.35;
const RESTORE_AT: f64 = 0.7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    KillHub,
    KillSpoke,
    PauseHub,
    PauseSpoke,
    LinkReset,
    LinkStalled,
    LinkHalfOpen,
    LinkRefused,
    LinkSlow,
    DatabaseReset,
    DatabaseStalled,
    DatabaseHalfOpen,
    Postgres,
    Throttled,
    SlowApi,
    Unavailable,
    WatchesCut,
    AnswersLost,
}

/// What [`Force::Mild`] draws from.
const MILD: [Kind; 9] = [
    Kind::KillHub,
    Kind::KillSpoke,
    Kind::LinkReset,
    Kind::LinkSlow,
    Kind::DatabaseReset,
    Kind::Postgres,
    Kind::Throttled,
    Kind::WatchesCut,
    Kind::AnswersLost,
];
/// What the others draw from; twice what happens most in real fleets.
const FULL: [Kind; 20] = [
    Kind::KillHub,
    Kind::KillHub,
    Kind::KillSpoke,
    Kind::KillSpoke,
    Kind::PauseHub,
    Kind::PauseSpoke,
    Kind::LinkReset,
    Kind::LinkStalled,
    Kind::LinkHalfOpen,
    Kind::LinkRefused,
    Kind::LinkSlow,
    Kind::DatabaseReset,
    Kind::DatabaseStalled,
    Kind::DatabaseHalfOpen,
    Kind::Postgres,
    Kind::Throttled,
    Kind::SlowApi,
    Kind::Unavailable,
    Kind::WatchesCut,
    Kind::AnswersLost,
];

/// The run of a seed, in the order of time.
#[must_use]
pub fn schedule(seed: u64, size: Size) -> Vec<Step> {
    let mut draw = Draw { seeded: Seeded::new(seed), size, ill: BTreeMap::new() };
    let mut steps = draw.troubles();
    steps.extend(draw.breaks());
    steps.extend(draw.people());
    if size.force == Force::WithRestore {
        let at = |share: f64, trouble| Step { at: size.span.mul_f64(share), what: What::Trouble(trouble, Duration::ZERO) };
        steps.extend([at(BACK_UP_AT, Trouble::BackUp), at(RESTORE_AT, Trouble::Restore)]);
    }
    steps.sort_by_key(|step| step.at);
    steps
}

/// What two troubles must not have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Program(Program),
    Wire(Wire),
    Postgres,
    Api(usize),
}

struct Draw {
    seeded: Seeded,
    size: Size,
    ill: BTreeMap<Target, Duration>,
}

impl Draw {
    fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.seeded.between(0, count as u64 - 1)).expect("an index fits")
    }

    fn ms(&mut self, (least, most): (u64, u64)) -> Duration {
        Duration::from_millis(self.seeded.between(least, most))
    }

    /// Moments from `every` to `every` apart, inside the span.
    fn moments(&mut self, every: (u64, u64)) -> Vec<Duration> {
        let mut moments = vec![];
        let mut at = self.ms(every);
        while at < self.size.span {
            moments.push(at);
            at += self.ms(every);
        }
        moments
    }

    fn troubles(&mut self) -> Vec<Step> {
        let kinds: &[Kind] = if self.size.force == Force::Mild { &MILD } else { &FULL };
        let mut deck: Vec<Kind> = vec![];
        let mut steps = vec![];
        for at in self.moments(TROUBLE_EVERY_MS) {
            if deck.is_empty() {
                deck = kinds.to_vec();
                for last in (1..deck.len()).rev() {
                    let other = self.below(last + 1);
                    deck.swap(last, other);
                }
            }
            let (trouble, target, span) = self.trouble(deck[deck.len() - 1]);
            // Ill already: the card stays on top for the next moment.
            if self.ill.get(&target).is_none_or(|until| *until < at) {
                deck.pop();
                self.ill.insert(target, at + span + SETTLE);
                steps.push(Step { at, what: What::Trouble(trouble, span) });
            }
        }
        steps
    }

    fn trouble(&mut self, kind: Kind) -> (Trouble, Target, Duration) {
        let hub = Program::Hub(self.below(HUBS));
        let (cluster, replica) = (self.below(self.size.clusters), self.below(REPLICAS));
        let (spoke, link, database) =
            (Program::Spoke(cluster, replica), Wire::Link(cluster, replica), Wire::Database(self.below(HUBS)));
        let lease_ms = u64::try_from(self.size.lease.as_millis()).expect("a Lease is short");
        let program = |trouble: fn(Program) -> Trouble, program, span| (trouble(program), Target::Program(program), span);
        let wire = |wire, weather, span| (Trouble::Wire(wire, weather), Target::Wire(wire), span);
        let api = |api, span| (Trouble::Api(cluster, api), Target::Api(cluster), span);
        match kind {
            Kind::KillHub => program(Trouble::Kill, hub, self.ms((300, 5_000))),
            Kind::KillSpoke => program(Trouble::Kill, spoke, self.ms((300, 5_000))),
            Kind::PauseHub => program(Trouble::Pause, hub, self.ms((2_000, 12_000))),
            Kind::PauseSpoke => program(Trouble::Pause, spoke, self.ms((lease_ms + 1_000, lease_ms + 6_000))),
            Kind::LinkReset => (Trouble::Reset(link), Target::Wire(link), Duration::ZERO),
            Kind::LinkStalled => wire(link, Weather::Stalled, self.ms((2_000, 20_000))),
            Kind::LinkHalfOpen => wire(link, Weather::HalfOpen, self.ms((1_000, 8_000))),
            Kind::LinkRefused => wire(link, Weather::Refused, self.ms((2_000, 10_000))),
            Kind::LinkSlow => {
                let wait = self.ms((50, 400));
                wire(link, Weather::Slow(wait), self.ms((4_000, 15_000)))
            }
            Kind::DatabaseReset => (Trouble::Reset(database), Target::Wire(database), Duration::ZERO),
            Kind::DatabaseStalled => wire(database, Weather::Stalled, self.ms((1_000, 8_000))),
            Kind::DatabaseHalfOpen => wire(database, Weather::HalfOpen, self.ms((500, 4_000))),
            Kind::Postgres => (Trouble::PostgresDown, Target::Postgres, self.ms((300, 5_000))),
            Kind::Throttled => api(Api::Throttled, self.ms((1_000, 4_000))),
            Kind::SlowApi => api(Api::Slow, self.ms((3_000, 8_000))),
            Kind::Unavailable => api(Api::Unavailable, self.ms((1_000, 4_000))),
            Kind::WatchesCut => api(Api::WatchesCut, Duration::ZERO),
            Kind::AnswersLost => api(Api::AnswersLost, self.ms((3_000, 8_000))),
        }
    }

    fn breaks(&mut self) -> Vec<Step> {
        let all: Vec<(usize, usize)> =
            (0..self.size.clusters).flat_map(|cluster| (0..self.size.nodes).map(move |node| (cluster, node))).collect();
        let mut whole = vec![];
        let mut steps = vec![];
        for at in self.moments(BREAK_EVERY_MS) {
            if whole.is_empty() {
                whole = all.clone();
            }
            let pick = self.below(whole.len());
            let (cluster, node) = whole.swap_remove(pick);
            let how = *self.seeded.one_of(&[
                Break::Page,
                Break::Page,
                Break::Page,
                Break::PageAndAlert,
                Break::PageAndAlert,
                Break::AlertAlone,
                Break::Recorded,
            ]);
            steps.push(Step { at, what: What::Break(cluster, node, how) });
        }
        steps
    }

    fn people(&mut self) -> Vec<Step> {
        let moments = self.moments(PERSON_EVERY_MS);
        moments
            .into_iter()
            .map(|at| {
                let hand = *self.seeded.one_of(&[Hand::Release, Hand::Release, Hand::Uncordon, Hand::Repair]);
                Step { at, what: What::Person(self.below(self.size.clusters), hand, self.below(64)) }
            })
            .collect()
    }
}

/// What was ill is left alone for a moment, so that a run also meets what comes after.
const SETTLE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    fn size(force: Force) -> Size {
        Size { span: Duration::from_secs(120), clusters: 3, nodes: 12, force, lease: Duration::from_secs(8) }
    }

    #[test]
    fn one_seed_is_one_run() {
        let run = |seed| schedule(seed, size(Force::Full));
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }

    #[test]
    fn no_target_is_ill_twice_at_once() {
        for seed in 0..50 {
            let steps = schedule(seed, size(Force::WithRestore));
            assert!(steps.is_sorted_by_key(|step| step.at));
            let mut ill: Vec<(String, Duration)> = vec![];
            for Step { at, what } in steps {
                match what {
                    What::Trouble(trouble, span) => {
                        let target = match trouble {
                            Trouble::Kill(program) | Trouble::Pause(program) => format!("{program:?}"),
                            Trouble::Wire(wire, _) | Trouble::Reset(wire) => format!("{wire:?}"),
                            Trouble::PostgresDown => "postgres".into(),
                            Trouble::BackUp | Trouble::Restore => continue,
                            Trouble::Api(cluster, _) => format!("api {cluster}"),
                        };
                        assert!(ill.iter().all(|(other, until)| *other != target || *until < at), "{target} at {at:?}");
                        ill.push((target, at + span));
                    }
                    What::Break(..) | What::Person(..) => {}
                }
            }
        }
    }

    #[test]
    fn two_minutes_meet_every_kind_of_trouble() {
        for seed in 0..50 {
            let kinds: std::collections::BTreeSet<String> = schedule(seed, size(Force::WithRestore))
                .into_iter()
                .filter_map(|step| match step.what {
                    What::Trouble(Trouble::Wire(wire, weather), _) => Some(format!("{wire:?} {weather:?}")),
                    What::Trouble(Trouble::Api(_, api), _) => Some(format!("{api:?}")),
                    What::Trouble(trouble, _) => Some(format!("{trouble:?}").chars().take(8).collect()),
                    What::Break(..) | What::Person(..) => None,
                })
                .collect();
            for api in ["Throttled", "Slow", "Unavailable", "WatchesCut", "AnswersLost"] {
                assert!(kinds.contains(api), "seed {seed}: no {api}");
            }
            for kind in ["Kill(Hub", "Kill(Spo", "Pause(Hu", "Pause(Sp", "Reset(Li", "Reset(Da", "Postgres", "BackUp", "Restore"] {
                assert!(kinds.contains(kind), "seed {seed}: no {kind} in {kinds:?}");
            }
        }
    }

    #[test]
    fn a_mild_run_has_nothing_that_takes_half_a_minute_to_be_noticed() {
        for seed in 0..50 {
            for step in schedule(seed, size(Force::Mild)) {
                let odd = matches!(
                    step.what,
                    What::Trouble(
                        Trouble::Pause(_)
                            | Trouble::BackUp
                            | Trouble::Restore
                            | Trouble::Wire(_, Weather::Stalled | Weather::HalfOpen | Weather::Refused),
                        _
                    )
                );
                assert!(!odd, "seed {seed}: {step:?}");
            }
        }
    }
}
