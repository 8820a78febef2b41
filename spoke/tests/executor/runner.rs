//! Runs every claim on kubesim and on Kubernetes itself and sums up, as the contract suite does (`tests/kube/tests/contract`).
//! On Kubernetes all claims share one control plane; on kubesim each has its own cluster. Without the control plane the
//! run fails: only KUBE=off leaves it out.

use std::{cell::RefCell, panic::AssertUnwindSafe, pin::Pin, process::ExitCode, time::Instant};

use futures::{FutureExt as _, StreamExt as _};
use testkube::TestCluster;

use crate::world::World;

/// Claims under way at once. They mostly wait; on two cores eight keep an API server busy.
const AT_ONCE: usize = 8;

thread_local! {
    /// What the last panic on this thread said, and where: kept for the summary instead of printed at once.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

type Run = fn(World) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// A named claim about the executor.
#[derive(Clone, Copy)]
pub(crate) struct Claim {
    pub(crate) name: &'static str,
    pub(crate) run: Run,
}

/// `fn claims()` of a module: all async functions that are named.
macro_rules! claims {
    ($($name:ident),* $(,)?) => {
        pub(crate) fn claims() -> Vec<crate::runner::Claim> {
            vec![$(crate::runner::Claim {
                name: concat!(module_path!(), "::", stringify!($name)),
                run: |world| Box::pin($name(world)),
            }),*]
        }
    };
}
pub(crate) use claims;

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

    async fn cluster(self) -> TestCluster {
        match self {
            Self::Kubesim => TestCluster::kubesim().await,
            Self::Kubernetes => TestCluster::real().await,
        }
    }
}

/// How a claim fared.
struct Outcome {
    on: On,
    name: &'static str,
    failure: Option<String>,
}

pub(crate) fn run(claims: &[Claim]) -> ExitCode {
    let (flags, words): (Vec<String>, Vec<String>) = std::env::args().skip(1).partition(|arg| arg.starts_with('-'));
    let wanted = |claim: &&Claim| words.is_empty() || words.iter().any(|word| claim.name.contains(word.as_str()));
    let claims: Vec<Claim> = claims.iter().filter(wanted).copied().collect();
    if flags.iter().any(|flag| flag == "--list") {
        claims.iter().for_each(|claim| println!("{}: test", short(claim.name)));
        return ExitCode::SUCCESS;
    }
    let real = testkube::cluster::real_is_wanted();
    let began = Instant::now();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime needs a few file descriptors");
    let (mut outcomes, mut unproved) = (Vec::new(), false);
    for on in [On::Kubesim, On::Kubernetes] {
        if on == On::Kubesim || real {
            let (ran, proved) = runtime.block_on(run_on(on, &claims));
            outcomes.extend(ran);
            unproved |= !proved;
        }
    }
    let failed = summary(&outcomes, began) || unproved;
    if !real {
        println!("\nKUBE=off: not proved on Kubernetes itself:");
        claims.iter().for_each(|claim| println!("  {}", short(claim.name)));
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The outcomes, and whether the API server was asked at all where there was something to ask.
async fn run_on(on: On, claims: &[Claim]) -> (Vec<Outcome>, bool) {
    // The first look starts the control plane that all share: what goes wrong there is said as it is.
    let cluster = on.cluster().await;
    let mark = cluster.mark().await;
    std::panic::set_hook(Box::new(|panic| SAID.set(panic.to_string())));
    let runs = claims.iter().enumerate().map(|(number, claim)| one(on, number, *claim));
    let outcomes: Vec<Outcome> = futures::stream::iter(runs).buffer_unordered(AT_ONCE).collect().await;
    drop(std::panic::take_hook());
    if on == On::Kubesim {
        return (outcomes, true);
    }
    let requests = cluster.requests_since(mark).await;
    let spokes = requests.iter().filter(|entry| entry.user_agent.starts_with("executor-")).count();
    println!("{}: {spokes} requests by the claims' spokes answered, {} in all", on.name(), requests.len());
    (outcomes, spokes > 0 || claims.is_empty())
}

async fn one(on: On, number: usize, claim: Claim) -> Outcome {
    let began = Instant::now();
    // Caught within the poll that panicked, so on the thread that keeps what was said.
    let run = AssertUnwindSafe(async move { (claim.run)(World::new(on.cluster().await, number).await).await });
    let run = run.catch_unwind().map(|outcome| outcome.err().map(|_| SAID.take()));
    let failure = tokio::spawn(run).await.unwrap_or_else(|error| Some(error.to_string()));
    let word = if failure.is_none() { "ok" } else { "FAILED" };
    println!("test {}::{} ... {word} ({} ms)", on.name(), short(claim.name), began.elapsed().as_millis());
    Outcome { on, name: claim.name, failure }
}

fn summary(outcomes: &[Outcome], began: Instant) -> bool {
    let failed: Vec<_> = outcomes.iter().filter_map(|outcome| Some((outcome, outcome.failure.as_deref()?))).collect();
    for (outcome, said) in &failed {
        println!("\n---- {}::{} ----\n{said}", outcome.on.name(), short(outcome.name));
    }
    println!();
    for on in [On::Kubesim, On::Kubernetes] {
        let all = outcomes.iter().filter(|outcome| outcome.on == on).count();
        let bad = failed.iter().filter(|(outcome, _)| outcome.on == on).count();
        if all > 0 {
            println!("executor on {}: {} of {all} claims hold", on.name(), all - bad);
        }
    }
    let verdict = if failed.is_empty() { "ok" } else { "FAILED" };
    println!("test result: {verdict}. finished in {:.2}s", began.elapsed().as_secs_f32());
    !failed.is_empty()
}

fn short(name: &'static str) -> &'static str {
    name.strip_prefix("executor::").unwrap_or(name)
}
