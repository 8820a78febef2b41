//! Puts the hub together: pools, wake-ups, stages, listeners; and takes it apart in order when told to stop: first nobody
//! new comes in and sessions are sent away, then what was taken is committed, then the stages end.

mod log;
mod operate;
mod ready;

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context as _;
use sqlx::PgPool;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    args::{Args, Command, Database, Serve},
    clock,
    database::DatabaseWatch,
    decide, deliver, fleet, http,
    ingest::Ingest,
    link::{self, Board, Link, Registry, Seen, Throttle, Unheard, Verdicts, gone, prune},
    policy_file::{PolicyCheck, PolicyFile},
    settle,
    sign::{self, Key, Signer},
    store::{
        self, moment,
        pool::{self, Way},
    },
    tls,
    wake::{POLL, Wake},
};

/// Connections for people and tools: they must not starve spokes.
const FLEET_CONNECTIONS: u32 = 4;
/// How long the database may take to let us in at the start: a failover takes less.
const DATABASE_WITHIN: Duration = Duration::from_secs(30);
/// How long everything may take to end; Kubernetes kills after 30 s.
const STOP_WITHIN: Duration = Duration::from_secs(20);
/// Clocks further apart than this make certificates and logs lie; decisions use the database's alone.
const CLOCK_APART_MS: u64 = 5_000;

/// The program: does what its command line says.
pub async fn main() -> ExitCode {
    let args = Args::read(std::env::args_os()).unwrap_or_else(|wrong| wrong.exit());
    if let Err(error) = log::start(&args.log, args.log_format) {
        eprintln!("gpuheal-hub: {error:#}");
        return ExitCode::from(2);
    }
    match run(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", crate::chain::chain(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Does what the command line says.
///
/// # Errors
/// When it cannot.
pub async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Migrate(database) => migrate(&database).await,
        Command::Serve(serve) => self::serve(*serve).await,
        Command::Revoke(revoke) => operate::revoke(&revoke).await,
        Command::ClearQuarantine(clear) => operate::clear_quarantine(&clear).await,
        Command::Decommission(decommission) => operate::decommission(&decommission).await,
    }
}

async fn migrate(database: &Database) -> anyhow::Result<()> {
    let migrations = pool::migrate(&database.url_past_poolers()?).await?;
    tracing::info!(migrations, "the schema is this version's");
    Ok(())
}

async fn serve(args: Serve) -> anyhow::Result<()> {
    // Another provider may be there already in a process that runs several hubs; it is the same one.
    let _already = rustls::crypto::ring::default_provider().install_default();
    let hub = Hub::start(&args).await?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut hub = hub;
    let ended = tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        ended = hub.ended() => ended,
    };
    tracing::info!("stopping");
    hub.stop().await;
    ended
}

/// Everything that runs.
struct Hub {
    listeners: JoinSet<anyhow::Result<()>>,
    stages: JoinSet<()>,
    front: CancellationToken,
    back: CancellationToken,
    _way: Way,
}

impl Hub {
    async fn start(args: &Serve) -> anyhow::Result<Self> {
        // What is wrong on this machine is told at once, whether the database answers or not.
        let key = Key::read(&args.signing_key).context("cannot use the signing key")?;
        let identity = tls::Identity::open(args.identity.clone()).context("cannot use the identity")?;
        let way =
            Way::open(&args.database.url()?, args.database.direct_url()?.as_deref()).await.context("cannot use the database")?;
        let pool = connect(&way, args.database_connections).await?;
        pool::schema_check(&pool).await?;
        clock_check(&pool).await?;
        let fleet_pool = way.pool(FLEET_CONNECTIONS).await?;
        let (front, back) = (CancellationToken::new(), CancellationToken::new());
        let hub_id = Uuid::new_v4().to_string();
        let (signer, wake, registry) = (Arc::new(Signer::new(key, args.key_epoch)), Wake::new(), Arc::new(Registry::default()));
        let board = Arc::new(Board::new(signer.clone(), registry.clone()));

        let mut stages = JoinSet::new();
        let mut database = DatabaseWatch::new(pool.clone(), wake.clone(), hub_id.clone());
        database.look().await.context("cannot tell which run of its server the database is in")?;
        let (ingest, committer) = Ingest::start_judging(pool.clone(), wake.clone(), Some(signer.clone()), back.clone());
        stages.spawn(async move { drop(committer.await) });
        for _ in 0..decide::WORKERS {
            stages.spawn(decide::run(pool.clone(), wake.clone(), Some(signer.clone()), back.clone()));
        }
        stages.spawn(settle::run(pool.clone(), wake.clone(), back.clone()));
        stages.spawn(sign::Stage { pool: pool.clone(), signer, wake: wake.clone() }.run(back.clone()));
        stages.spawn(deliver::Stage::new(pool.clone(), registry.clone(), wake.clone()).run(back.clone()));
        stages.spawn(Unheard::new(pool.clone(), registry.clone()).run(back.clone()));
        stages.spawn(Verdicts::new(pool.clone(), registry.clone()).run(back.clone()));
        stages.spawn(Throttle { ingest: ingest.clone(), registry: registry.clone() }.run(back.clone()));
        stages.spawn(Seen { pool: pool.clone(), registry: registry.clone() }.run(back.clone()));
        stages.spawn(database.run(back.clone()));
        stages.spawn(gone::run(pool.clone(), back.clone()));
        stages.spawn(prune::run(pool.clone(), back.clone()));
        stages.spawn(identity.clone().watch(back.clone()));
        stages.spawn(wake.clone().relay(way.direct().clone(), hub_id.clone(), back.clone()));
        stages.spawn(publish(pool.clone(), board.clone(), back.clone()));

        let mut checks: Vec<Box<dyn http::Check>> =
            vec![Box::new(ready::DatabaseCheck(pool.clone())), Box::new(ready::CertificateCheck(identity.clone()))];
        if let Some(path) = &args.policy {
            let file = PolicyFile::new(path.clone());
            file.look(&pool, &wake).await;
            checks.push(Box::new(PolicyCheck(file.clone())));
            stages.spawn(file.watch(pool.clone(), wake.clone(), back.clone()));
        }

        let (at_link, at_fleet, at_http) =
            (bind(args.listen_link).await?, bind(args.listen_fleet).await?, bind(args.listen_http).await?);
        let bound = ready::Bound { link: at_link.local_addr()?, fleet: at_fleet.local_addr()?, http: at_http.local_addr()? };
        let mut listeners = JoinSet::new();
        let service = Link::new(pool, ingest, wake.clone(), registry, board, hub_id);
        let (domain, stop, id) = (args.trust_domain.clone(), front.clone(), identity.clone());
        listeners.spawn(async move { link::serve(service, at_link, id, domain, stop).await.context("the link's listener failed") });
        let (domain, stop) = (args.trust_domain.clone(), front.clone());
        let service = fleet::Fleet::new(fleet_pool, wake);
        listeners.spawn(async move {
            fleet::serve(service, at_fleet, identity, domain, stop).await.context("the fleet API's listener failed")
        });
        let stop = front.clone();
        listeners.spawn(async move { http::serve(at_http, checks, stop).await.context("the HTTP listener failed") });
        bound.tell(args.ready_file.as_deref())?;
        Ok(Self { listeners, stages, front, back, _way: way })
    }

    /// Waits until something ends that must not.
    async fn ended(&mut self) -> anyhow::Result<()> {
        tokio::select! {
            Some(ended) = self.listeners.join_next() => ended.context("a listener panicked")?.and(Err(anyhow::anyhow!("a listener ended"))),
            Some(ended) = self.stages.join_next() => {
                ended.context("a stage panicked")?;
                Err(anyhow::anyhow!("a stage ended"))
            }
            else => Ok(()),
        }
    }

    async fn stop(mut self) {
        let ordered = async {
            self.front.cancel();
            while self.listeners.join_next().await.is_some() {}
            self.back.cancel();
            while self.stages.join_next().await.is_some() {}
        };
        if tokio::time::timeout(STOP_WITHIN, ordered).await.is_err() {
            tracing::warn!("not everything ended in time");
        }
    }
}

async fn connect(way: &Way, connections: u32) -> anyhow::Result<PgPool> {
    let until = tokio::time::Instant::now() + DATABASE_WITHIN;
    loop {
        match way.pool(connections).await {
            Err(error) if error.class() == store::Class::Transient && tokio::time::Instant::now() < until => {
                tracing::warn!(error = %crate::chain::chain(&error), "the database does not let us in yet");
                tokio::time::sleep(POLL).await;
            }
            outcome => return outcome.context("cannot use the database"),
        }
    }
}

async fn clock_check(pool: &PgPool) -> anyhow::Result<()> {
    let mut conn = pool.acquire().await?;
    let asked = clock::now();
    let database = moment::now(&mut conn).await?;
    let ahead_ms = clock::ahead_ms(asked, database, clock::now());
    if ahead_ms.unsigned_abs() > CLOCK_APART_MS {
        tracing::warn!(ahead_ms, "this machine's clock and the database's are far apart; decisions use the database's");
    }
    Ok(())
}

async fn bind(addr: std::net::SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(addr).await.with_context(|| format!("cannot listen on {addr}"))
}

/// Tells spokes the detection settings of the policy in force, whoever put it there.
async fn publish(pool: PgPool, board: Arc<Board>, stop: CancellationToken) {
    let mut published = None;
    loop {
        match pool::answered("policy.in_force", decide::policy_in_force(&pool)).await {
            Ok(policy) if published != Some(policy.revision) => match board.publish(&policy) {
                Ok(()) => published = Some(policy.revision),
                Err(error) => {
                    tracing::error!(error = %crate::chain::chain(&error), policy.revision = policy.revision, "detection settings could not be signed")
                }
            },
            Ok(_) => {}
            Err(error) => tracing::warn!(error = %crate::chain::chain(&error), "the policy in force could not be read"),
        }
        if stop.run_until_cancelled(tokio::time::sleep(POLL)).await.is_none() {
            return;
        }
    }
}
