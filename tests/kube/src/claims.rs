//! A suite of claims: each is an async function over a world of its own, proved on kubesim and on Kubernetes itself. Runs
//! all of them and sums up; understands the few arguments that `cargo test` passes on. Without the control plane the run
//! fails: only `KUBE=off` leaves it out, and the end then says what was not proved.

use std::{cell::RefCell, panic::AssertUnwindSafe, pin::Pin, process::ExitCode, sync::Arc, time::Instant};

use futures::{FutureExt as _, StreamExt as _};

use crate::{TestCluster, cluster::real_is_wanted};

/// Claims under way at once. They mostly wait; on two cores eight keep an API server busy.
const AT_ONCE: usize = 8;

thread_local! {
    /// What the last panic on this thread said, and where: kept for the summary instead of printed at once.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// What one claim works with.
pub trait World: Sized + Send + 'static {
    /// The test's name, with which the user agents of its clients begin.
    const SUITE: &'static str;
    /// Whether all claims on kubesim share one cluster, as they do on Kubernetes, or each has its own.
    const SHARES_KUBESIM: bool;

    /// A world for the claim of this number, whose names bear it.
    fn on(cluster: Arc<TestCluster>, number: usize) -> impl Future<Output = Self> + Send;
}

type Run<W> = fn(W) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// A named claim.
pub struct Claim<W> {
    /// Its path, the test's name first.
    pub name: &'static str,
    /// Panics where it does not hold.
    pub run: Run<W>,
}

impl<W> Clone for Claim<W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Claim<W> {}

/// `fn claims()` of a module that has a type `World` in scope: all async functions that are named.
#[macro_export]
macro_rules! claims {
    ($($name:ident),* $(,)?) => {
        pub(crate) fn claims() -> Vec<$crate::claims::Claim<World>> {
            vec![$($crate::claims::Claim {
                name: concat!(module_path!(), "::", stringify!($name)),
                run: |world| Box::pin($name(world)),
            }),*]
        }
    };
}

/// What a claim is proved on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum On {
    Kubesim,
    Kubernetes,
}

impl On {
    const fn name(self) -> &'static str {
        match self {
            Self::Kubesim => "kubesim",
            Self::Kubernetes => "kubernetes",
        }
    }

    async fn cluster(self) -> Arc<TestCluster> {
        Arc::new(match self {
            Self::Kubesim => TestCluster::kubesim().await,
            Self::Kubernetes => TestCluster::real().await,
        })
    }
}

/// How a claim fared.
struct Outcome {
    on: On,
    name: &'static str,
    failure: Option<String>,
}

/// Runs the claims that the arguments ask for.
///
/// # Panics
/// When the control plane cannot be started, or there is no room for a runtime.
#[must_use]
pub fn run<W: World>(mut claims: Vec<Claim<W>>) -> ExitCode {
    let (flags, words): (Vec<String>, Vec<String>) = std::env::args().skip(1).partition(|arg| arg.starts_with('-'));
    claims.retain(|claim| words.is_empty() || words.iter().any(|word| claim.name.contains(word.as_str())));
    if flags.iter().any(|flag| flag == "--list") {
        claims.iter().for_each(|claim| println!("{}: test", short::<W>(claim.name)));
        return ExitCode::SUCCESS;
    }
    let (real, began) = (real_is_wanted(), Instant::now());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime needs a few file descriptors");
    let (mut outcomes, mut unproved) = (Vec::new(), false);
    for on in [On::Kubesim, On::Kubernetes] {
        if on == On::Kubesim || real {
            let (ran, proved) = runtime.block_on(run_on(on, &claims));
            outcomes.extend(ran);
            unproved |= !proved;
        }
    }
    let failed = summary::<W>(&outcomes, began) || unproved;
    if !real {
        println!("\nKUBE=off: not proved on Kubernetes itself:");
        claims.iter().for_each(|claim| println!("  {}", short::<W>(claim.name)));
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The outcomes, and whether Kubernetes itself was asked at all where there was something to ask.
async fn run_on<W: World>(on: On, claims: &[Claim<W>]) -> (Vec<Outcome>, bool) {
    // The first look starts the control plane that all share: what goes wrong there is said as it is.
    let cluster = on.cluster().await;
    let mark = cluster.mark().await;
    let shared = (on == On::Kubernetes || W::SHARES_KUBESIM).then_some(&cluster);
    std::panic::set_hook(Box::new(|panic| SAID.set(panic.to_string())));
    let runs = claims.iter().enumerate().map(|(number, claim)| one(on, shared.cloned(), number, *claim));
    let outcomes: Vec<Outcome> = futures::stream::iter(runs).buffer_unordered(AT_ONCE).collect().await;
    drop(std::panic::take_hook());
    let Some(shared) = shared else { return (outcomes, true) };
    let requests = shared.requests_since(mark).await;
    let ours = requests.iter().filter(|entry| entry.user_agent.starts_with(W::SUITE)).count();
    println!("{}: {ours} requests by the claims answered, {} in all", on.name(), requests.len());
    (outcomes, on == On::Kubesim || ours > 0 || claims.is_empty())
}

async fn one<W: World>(on: On, shared: Option<Arc<TestCluster>>, number: usize, claim: Claim<W>) -> Outcome {
    let began = Instant::now();
    // Caught within the poll that panicked, so on the thread that keeps what was said.
    let run = AssertUnwindSafe(async move {
        let cluster = match shared {
            Some(cluster) => cluster,
            None => on.cluster().await,
        };
        (claim.run)(W::on(cluster, number).await).await;
    });
    let run = run.catch_unwind().map(|outcome| outcome.err().map(|_| SAID.take()));
    let failure = tokio::spawn(run).await.unwrap_or_else(|error| Some(error.to_string()));
    let word = if failure.is_none() { "ok" } else { "FAILED" };
    println!("test {}::{} ... {word} ({} ms)", on.name(), short::<W>(claim.name), began.elapsed().as_millis());
    Outcome { on, name: claim.name, failure }
}

fn summary<W: World>(outcomes: &[Outcome], began: Instant) -> bool {
    let failed: Vec<_> = outcomes.iter().filter_map(|outcome| Some((outcome, outcome.failure.as_deref()?))).collect();
    for (outcome, said) in &failed {
        println!("\n---- {}::{} ----\n{said}", outcome.on.name(), short::<W>(outcome.name));
    }
    println!();
    for on in [On::Kubesim, On::Kubernetes] {
        let all = outcomes.iter().filter(|outcome| outcome.on == on).count();
        let bad = failed.iter().filter(|(outcome, _)| outcome.on == on).count();
        if all > 0 {
            println!("{} on {}: {} of {all} claims hold", W::SUITE, on.name(), all - bad);
        }
    }
    let verdict = if failed.is_empty() { "ok" } else { "FAILED" };
    println!("test result: {verdict}. finished in {:.2}s", began.elapsed().as_secs_f32());
    !failed.is_empty()
}

fn short<W: World>(name: &'static str) -> &'static str {
    name.strip_prefix(W::SUITE).and_then(|rest| rest.strip_prefix("::")).unwrap_or(name)
}
