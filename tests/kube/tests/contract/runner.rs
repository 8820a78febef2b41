//! Runs every claim on every cluster and sums up: which held, which did not, and how many requests the
//! real API server answered. Understands the few arguments that `cargo test` passes on.

use std::cell::RefCell;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use futures::{FutureExt, StreamExt};
use testkube::TestCluster;

use crate::world::World;

/// Claims under way at once. They mostly wait; on two cores eight keep an API server busy.
const AT_ONCE: usize = 8;

thread_local! {
    /// What the last panic on this thread said, and where: kept for the summary instead of printed at once.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

type Run = fn(World) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// A named claim about a cluster.
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

/// What `cargo test` was asked for.
struct Wanted {
    list: bool,
    words: Vec<String>,
}

impl Wanted {
    fn from_args() -> Self {
        let args: Vec<String> = std::env::args().skip(1).collect();
        let list = args.iter().any(|arg| arg == "--list");
        Self { list, words: args.into_iter().filter(|arg| !arg.starts_with('-')).collect() }
    }

    fn includes(&self, name: &str) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| name.contains(word.as_str()))
    }
}

/// One claim's fate on one cluster.
struct Outcome {
    cluster: &'static str,
    name: &'static str,
    failure: Option<String>,
}

pub(crate) fn run(mut claims: Vec<Claim>) -> ExitCode {
    let wanted = Wanted::from_args();
    let real = testkube::cluster::real_is_wanted();
    claims.retain(|claim| wanted.includes(claim.name));
    if wanted.list {
        for claim in &claims {
            println!("{}: test", short(claim.name));
        }
        return ExitCode::SUCCESS;
    }
    std::panic::set_hook(Box::new(|panic| SAID.set(panic.to_string())));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime needs a few file descriptors");
    let failed = runtime.block_on(async { run_all(&clusters(real).await, &claims).await });
    if !real {
        println!("\nKUBE=off: not proved on Kubernetes itself:");
        claims.iter().for_each(|claim| println!("  {}", short(claim.name)));
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

async fn clusters(real: bool) -> Vec<Arc<TestCluster>> {
    let mut clusters = vec![TestCluster::kubesim().await];
    if real {
        clusters.push(TestCluster::real().await);
    }
    clusters.into_iter().map(Arc::new).collect()
}

async fn run_all(clusters: &[Arc<TestCluster>], claims: &[Claim]) -> bool {
    let began = Instant::now();
    let mut outcomes = Vec::new();
    for cluster in clusters {
        let mark = cluster.mark().await;
        let runs = claims.iter().enumerate().map(|(number, claim)| one(Arc::clone(cluster), number, *claim));
        outcomes.extend(futures::stream::iter(runs).buffer_unordered(AT_ONCE).collect::<Vec<_>>().await);
        let requests = cluster.requests_since(mark).await;
        let ours = requests.iter().filter(|entry| entry.user_agent.starts_with("contract")).count();
        println!("{}: {ours} requests by the claims answered, {} in all", cluster.name(), requests.len());
    }
    summary(clusters, &outcomes, began)
}

async fn one(cluster: Arc<TestCluster>, number: usize, claim: Claim) -> Outcome {
    let began = Instant::now();
    let name = cluster.name();
    // Caught within the poll that panicked, so on the thread that keeps what was said.
    let run = AssertUnwindSafe(async move { (claim.run)(World::new(cluster, number).await).await });
    let run = run.catch_unwind().map(|outcome| outcome.err().map(|_| SAID.take()));
    let failure = tokio::spawn(run).await.unwrap_or_else(|error| Some(error.to_string()));
    let word = if failure.is_none() { "ok" } else { "FAILED" };
    println!("test {name}::{} ... {word} ({} ms)", short(claim.name), began.elapsed().as_millis());
    Outcome { cluster: name, name: claim.name, failure }
}

fn summary(clusters: &[Arc<TestCluster>], outcomes: &[Outcome], began: Instant) -> bool {
    let failed: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.failure.is_some()).collect();
    for outcome in &failed {
        let said = outcome.failure.as_deref().unwrap_or_default();
        println!("\n---- {}::{} ----\n{said}", outcome.cluster, short(outcome.name));
    }
    println!();
    for cluster in clusters {
        let of = |outcome: &&Outcome| outcome.cluster == cluster.name();
        let all = outcomes.iter().filter(of).count();
        let bad = outcomes.iter().filter(of).filter(|outcome| outcome.failure.is_some()).count();
        println!("contract on {}: {} of {all} claims hold", cluster.name(), all - bad);
    }
    let verdict = if failed.is_empty() { "ok" } else { "FAILED" };
    println!("test result: {verdict}. finished in {:.2}s", began.elapsed().as_secs_f32());
    !failed.is_empty()
}

fn short(name: &'static str) -> &'static str {
    name.strip_prefix("contract::").unwrap_or(name)
}
