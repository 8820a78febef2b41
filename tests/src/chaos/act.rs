//! Doing what the schedule says: begins each trouble, ends it when its time is over, breaks GPUs, lends people their hands,
//! and says each of it in a line.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use kubesim::{Fault, Then, When};

use super::{
    field::{Field, GPUS},
    ledger::{Alert, Injected, Ledger, Touched},
    people::People,
    proxy::Weather,
    schedule::{Api, Break, Hand, Program, Step, Trouble, What, Wire},
    watcher::wall_ms,
};
use crate::{alert, cluster::Cluster, show::Screen};

/// How often the field is looked after.
const TICK: Duration = Duration::from_millis(50);
/// What a slow API server adds to each request of a spoke: far below the margin that a step asks of the Lease.
const API_DELAY_MS: u64 = 300;

/// The one who does it.
pub struct Actor<'a> {
    /// On this field.
    pub field: &'a mut Field,
    /// Keeping this record.
    pub ledger: Ledger,
    /// With these people.
    pub people: People,
    /// Which replicas were stopped, and when they went on by the wall clock.
    pub pauses: Vec<(String, u64)>,
    /// Postgres was put back as it was, the last time by then by the wall clock: what it had taken before may be lost.
    pub restored_ms: Option<u64>,
    /// Telling it here, if to anybody.
    pub screen: Option<Screen>,
    open: Vec<(Duration, Trouble)>,
}

impl<'a> Actor<'a> {
    /// Nothing was done yet.
    #[must_use]
    pub fn new(field: &'a mut Field, screen: Option<Screen>) -> Self {
        Self {
            field,
            ledger: Ledger::default(),
            people: People::default(),
            pauses: vec![],
            restored_ms: None,
            screen,
            open: vec![],
        }
    }

    /// A line of the timeline.
    pub fn say(&self, stage: &str, text: &str) {
        if let Some(screen) = self.screen {
            screen.line("", stage, text);
        }
    }

    /// Plays the steps to their end and for the whole span.
    pub async fn play(&mut self, steps: &[Step], span: Duration) -> Result<()> {
        let since = Instant::now();
        let mut steps = steps.iter();
        let mut next = steps.next();
        while since.elapsed() < span || next.is_some() {
            while let Some(step) = next.filter(|step| step.at <= since.elapsed()) {
                self.begin(step, since).await?;
                next = steps.next();
            }
            self.end_due(since.elapsed()).await?;
            self.look_after()?;
            tokio::time::sleep(TICK).await;
        }
        Ok(())
    }

    /// Ends every trouble that is left.
    pub async fn heal(&mut self) -> Result<()> {
        self.end_due(Duration::MAX).await?;
        self.field.database.serve().await?;
        self.field.heal()?;
        self.say("chaos", "everybody is back, every wire is clear: now it must come to rest");
        self.look_after()
    }

    /// Starts again whoever ended by itself.
    pub fn look_after(&mut self) -> Result<()> {
        for name in self.field.supervise()? {
            self.say("chaos", &format!("{name} ended by itself and is started again"));
        }
        Ok(())
    }

    async fn begin(&mut self, step: &Step, since: Instant) -> Result<()> {
        match step.what {
            What::Trouble(trouble, span) => {
                self.start(trouble, span).await?;
                if span > Duration::ZERO {
                    // From when it began in truth: a slow machine keeps its length, not its place.
                    self.open.push((since.elapsed() + span, trouble));
                }
                Ok(())
            }
            What::Break(cluster, node, how) => self.break_gpu(cluster, node, how).await,
            What::Person(cluster, hand, pick) => self.person(cluster, hand, pick).await,
        }
    }

    async fn end_due(&mut self, now: Duration) -> Result<()> {
        let due: Vec<Trouble> = self.open.iter().filter(|(at, _)| *at <= now).map(|(_, trouble)| *trouble).collect();
        self.open.retain(|(at, _)| *at > now);
        for trouble in due {
            self.end(trouble).await?;
        }
        Ok(())
    }

    async fn start(&mut self, trouble: Trouble, span: Duration) -> Result<()> {
        let (kind, told) = self.words(trouble, span);
        self.ledger.count(&kind);
        self.say("chaos", &told);
        match trouble {
            Trouble::Kill(program) => self.field.kill(program),
            Trouble::Pause(program) => self.field.pause(program),
            Trouble::Wire(wire, weather) => {
                self.field.set(wire, weather);
                Ok(())
            }
            Trouble::Reset(wire) => {
                self.field.reset(wire);
                Ok(())
            }
            Trouble::PostgresDown => self.field.database.stop().await,
            Trouble::BackUp => self.field.database.back_up().await,
            Trouble::Restore if self.field.database.backed_up() => {
                self.field.database.restore().await?;
                self.restored_ms = Some(wall_ms());
                Ok(())
            }
            Trouble::Restore => Ok(()),
            Trouble::Api(cluster, api) => self.api(cluster, api),
        }
    }

    fn api(&self, cluster: usize, api: Api) -> Result<()> {
        let faults = self.field.clusters[cluster].sim().context("clusters of a chaos run are simulated")?.faults();
        let spokes = When { user_agent: Some("gpuheal-spoke".into()), ..When::default() };
        let then = match api {
            Api::Throttled => Then::Throttle { retry_after: Some(1) },
            Api::Slow => Then::Delay { ms: API_DELAY_MS },
            Api::Unavailable => Then::Status {
                code: 503,
                reason: "ServiceUnavailable".into(),
                message: "apiserver is shutting down".into(),
                retry_after: None,
            },
            Api::WatchesCut => {
                faults.drop_watches("*");
                return Ok(());
            }
            Api::AnswersLost => {
                let evictions = When { user_agent: spokes.user_agent, ..When::verb("create", "pods/eviction") };
                faults.add(Fault::always(evictions, Then::CutAfter));
                return Ok(());
            }
        };
        faults.add(Fault::always(spokes, then));
        Ok(())
    }

    async fn end(&mut self, trouble: Trouble) -> Result<()> {
        match trouble {
            Trouble::Kill(program) => self.field.back(program)?,
            Trouble::Pause(program) => {
                if let Program::Spoke(cluster, replica) = program {
                    self.pauses.push((self.field.replica(cluster, replica), wall_ms()));
                }
                self.field.back(program)?;
            }
            Trouble::Wire(wire, _) => self.field.set(wire, Weather::Clear),
            Trouble::PostgresDown => self.field.database.serve().await?,
            // One trouble at a time and API server: what is there is this one's.
            Trouble::Api(cluster, _) => {
                self.field.clusters[cluster].sim().context("a simulated cluster")?.faults().clear();
            }
            Trouble::Reset(_) | Trouble::BackUp | Trouble::Restore => return Ok(()),
        }
        let (_, told) = self.words(trouble, Duration::ZERO);
        self.say("chaos", &format!("over: {told}"));
        Ok(())
    }

    /// The kind of a trouble, for the table; and what to say of it.
    fn words(&self, trouble: Trouble, span: Duration) -> (String, String) {
        let for_span = if span.is_zero() { String::new() } else { format!(" for {:.1} s", span.as_secs_f64()) };
        let program = |program| match program {
            Program::Hub(_) => "a hub",
            Program::Spoke(..) => "a spoke",
        };
        let wire = |wire| match wire {
            Wire::Link(..) => "between a spoke and the hubs",
            Wire::Database(_) => "between a hub and Postgres",
        };
        let weather = |weather| match weather {
            Weather::Clear => "clear",
            Weather::Stalled => "all packets dropped",
            Weather::HalfOpen => "half-open",
            Weather::Refused => "nobody reached",
            Weather::Slow(_) => "slow",
        };
        let (kind, of) = match trouble {
            Trouble::Kill(p) => (format!("kill -9 of {}", program(p)), format!("kill -9 of {}", self.field.name(p))),
            Trouble::Pause(p) => (format!("SIGSTOP of {}", program(p)), format!("SIGSTOP of {}", self.field.name(p))),
            Trouble::Wire(w, how) => {
                (format!("{} {}", weather(how), wire(w)), format!("{}: {}", self.field.wire_name(w), weather(how)))
            }
            Trouble::Reset(w) => {
                (format!("connections reset {}", wire(w)), format!("{}: connections reset", self.field.wire_name(w)))
            }
            Trouble::PostgresDown => ("Postgres stopped".into(), "Postgres stopped".into()),
            Trouble::BackUp => ("Postgres backed up".into(), "Postgres stopped, backed up, started".into()),
            Trouble::Restore => ("Postgres put back as backed up".into(), "Postgres put back as it was backed up".into()),
            Trouble::Api(cluster, api) => {
                let how = match api {
                    Api::Throttled => "429",
                    Api::Slow => "slow",
                    Api::Unavailable => "503",
                    Api::WatchesCut => "all watches cut",
                    Api::AnswersLost => "evictions' answers lost",
                };
                (format!("an API server: {how}"), format!("API server of {}: {how}", self.field.clusters[cluster].id))
            }
        };
        (kind, format!("{of}{for_span}"))
    }

    async fn break_gpu(&mut self, cluster: usize, node: usize, how: Break) -> Result<()> {
        let place = &self.field.clusters[cluster];
        let Some(node) = place.gpu_nodes().get(node).cloned() else { return Ok(()) };
        let earlier: Vec<Injected> =
            self.ledger.injected().into_iter().filter(|injected| injected.cluster == cluster && injected.node == node).collect();
        if earlier.iter().any(|injected| !injected.over()) {
            return Ok(());
        }
        // Each time another GPU, so that what Postgres holds of it is this one's.
        let slot = earlier.len() % GPUS as usize;
        let xid = match how {
            Break::Page | Break::PageAndAlert => 79,
            Break::AlertAlone => 48,
            Break::Recorded => 31,
        };
        let exporter = place.exporter(&node);
        let gpu = exporter.gpus().get(slot).cloned().context("a GPU node has four")?;
        if matches!(how, Break::Page | Break::PageAndAlert) {
            place.set_allocatable(&node, GPUS - 1).await?;
        }
        if how != Break::AlertAlone {
            exporter.change(|gpus| gpus[slot].xid = xid);
        }
        let told = matches!(how, Break::PageAndAlert | Break::AlertAlone);
        let by = match how {
            Break::Page | Break::Recorded => "on its page",
            Break::PageAndAlert => "on its page, and Alertmanager tells",
            Break::AlertAlone => "as Alertmanager alone tells",
        };
        self.say("break", &format!("{}/{node}: Xid {xid} {by}", place.id));
        let number = self.ledger.add(Injected {
            cluster,
            node: node.clone(),
            slot,
            gpu_uuid: gpu.uuid.clone(),
            xid,
            how,
            alert: if told { Alert::Told } else { Alert::None },
            touched: Touched::Not,
        });
        if told {
            let starts_at = chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
            let body = alert::group(&[alert::Alert::xid(&node, &gpu, xid, starts_at)]);
            self.people.tell(self.ledger.clone(), number, self.field.book.clone(), self.field.token.clone(), body);
        }
        Ok(())
    }

    async fn person(&mut self, cluster: usize, hand: Hand, pick: usize) -> Result<()> {
        let place = &self.field.clusters[cluster];
        let fit: Vec<(usize, Injected)> = (self.ledger.injected().into_iter().enumerate())
            .filter(|(_, injected)| injected.cluster == cluster && fits(hand, injected, place.observer.marked_now(&injected.node)))
            .collect();
        let Some((number, injected)) = fit.get(pick % fit.len().max(1)) else { return Ok(()) };
        let node = &injected.node;
        match hand {
            Hand::Release => {
                self.say("person", &format!("{}/{node}: repaired, and released", place.id));
                self.ledger.count("a node released by a person");
                repair(place, injected).await?;
                self.ledger.change(*number, |injected| injected.touched = Touched::Asked);
                self.people.release(self.ledger.clone(), *number, self.field.ctl(), place.id.clone(), node.clone());
            }
            Hand::Uncordon => {
                self.say("person", &format!("{}/{node}: uncordoned, an order to leave it alone", place.id));
                self.ledger.count("a node uncordoned by a person");
                place.set_cordon(node, false).await?;
                self.ledger.change(*number, |injected| injected.touched = Touched::Uncordoned);
            }
            Hand::Repair => {
                self.say("person", &format!("{}/{node}: repaired, and nobody told", place.id));
                self.ledger.count("a node repaired by a person who told nobody");
                repair(place, injected).await?;
                self.ledger.change(*number, |injected| injected.touched = Touched::Repaired);
            }
        }
        Ok(())
    }
}

/// Whether a person would do this to that node.
fn fits(hand: Hand, injected: &Injected, marked: bool) -> bool {
    match hand {
        Hand::Release | Hand::Uncordon => injected.stands() && marked,
        Hand::Repair => {
            let harmless = matches!(injected.how, Break::AlertAlone | Break::Recorded) && injected.touched == Touched::Not;
            !marked && (harmless || injected.touched == Touched::Uncordoned)
        }
    }
}

/// The GPU is well again, as its exporter and the device plugin show.
async fn repair(place: &Cluster, injected: &Injected) -> Result<()> {
    place.exporter(&injected.node).change(|gpus| gpus[injected.slot].xid = 0);
    place.set_allocatable(&injected.node, GPUS).await
}
