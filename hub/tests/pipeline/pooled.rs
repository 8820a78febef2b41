//! Behind PgBouncer in transaction mode, as Debian ships it: two transactions of one client rarely meet the same connection to the
//! server, and nothing that a session keeps is there in the next.

use std::{collections::BTreeSet, path::Path, str::FromStr as _, sync::Arc, time::Duration};

use gpuheal_hub::{app, args::Args, ingest::Ingest, store::pool::Way, wake::Wake};
use gpuheal_proto::{envelope, link::v1};
use prost::Message as _;
use sqlx::{
    PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio_util::sync::CancellationToken;

use super::world::{HEAL, World, batch, cluster, node, signer, xid79};

const PATIENCE: Duration = Duration::from_secs(180);

/// A hub's own connections through the pooler: more than the pooler has to the server.
async fn pool(way: &Way) -> PgPool {
    way.pool(8).await.unwrap()
}

async fn way() -> Way {
    let (pooled, direct) = testpg::pooled_database().await;
    Way::open(&pooled, Some(&direct)).await.unwrap()
}

/// A hub that judges and signs what it takes, with a cluster of `nodes` nodes.
async fn healing(way: &Way, nodes: u32) -> World {
    let world = World::over(pool(way).await);
    world.policy(HEAL).await;
    world.snapshot(&cluster("c1"), (0..nodes).map(node).collect()).await;
    world
}

async fn judging(way: &Way) -> Ingest {
    Ingest::start_judging(pool(way).await, Wake::new(), Some(Arc::new(signer())), CancellationToken::new()).0
}

#[tokio::test]
async fn a_fault_becomes_one_signed_command_through_a_pooler_in_transaction_mode() {
    let way = way().await;
    let (world, c1) = (healing(&way, 10).await, cluster("c1"));
    let hub = judging(&way).await;
    for again in 0..3 {
        let ack = hub.submit(c1.clone(), batch(&format!("s{again}"), 1, &[xid79(&c1, 1)])).await.unwrap();
        assert_eq!(ack.persisted_upto, 1);
    }
    assert_eq!(world.lines("SELECT state || ' ' || cmd_seq || ' ' || key_epoch FROM commands").await, ["SIGNED 1 1"]);
    let bytes: Vec<u8> = sqlx::query_scalar("SELECT envelope FROM commands").fetch_one(&world.pool).await.unwrap();
    assert_eq!(v1::Envelope::decode(bytes.as_slice()).unwrap().payload_type, envelope::COMMAND_TYPE);
    let intact = gpuheal_hub::audit::verify(&world.pool, "c1").await.unwrap();
    assert!(intact.broken.is_none(), "{intact:?}");
}

/// Eight connections at once, each of which gives its statements the names that the others use too, in another order, and uses each
/// outside of transactions. How many connections to the server each met.
async fn ask(pool: &PgPool) -> Vec<Result<usize, sqlx::Error>> {
    let asks = (0..8_i64).map(|who| async move {
        let mut conn = pool.acquire().await?;
        let mut servers = BTreeSet::new();
        for turn in 0..50_i64 {
            let order = if (who + turn) % 2 == 0 { [7, 9] } else { [9, 7] };
            for which in order {
                let sum = if which == 7 { "SELECT $1 + 7, pg_backend_pid()" } else { "SELECT $1 + 9, pg_backend_pid()" };
                let (got, server): (i64, i32) = sqlx::query_as(sum).bind(turn).fetch_one(&mut *conn).await?;
                if got != turn + which {
                    return Err(sqlx::Error::Protocol("another connection's statement was run".to_owned()));
                }
                servers.insert(server);
            }
        }
        Ok(servers.len())
    });
    futures::future::join_all(asks).await
}

#[tokio::test]
async fn what_two_connections_prepared_under_one_name_is_never_mixed_up() {
    let way = way().await;
    let met: Vec<usize> = ask(&pool(&way).await).await.into_iter().map(Result::unwrap).collect();
    assert!(met.iter().any(|servers| *servers > 1), "the pooler did change servers: {met:?}");
}

/// What the test before would look like: fewer connections to the server than there are statements of one name.
#[tokio::test]
async fn without_the_relay_the_same_fails() {
    let (pooled, _) = testpg::pooled_database().await;
    let options = PgConnectOptions::from_str(&pooled).unwrap().extra_float_digits(None);
    let pool = PgPoolOptions::new().max_connections(8).connect_with(options).await.unwrap();
    let met = ask(&pool).await;
    assert!(met.iter().any(Result::is_err), "{met:?}");
}

#[tokio::test]
async fn a_transaction_has_the_settings_of_a_session_and_leaves_none_behind() {
    let way = way().await;
    let pool = pool(&way).await;
    let settings = "SELECT current_setting('statement_timeout') || ' ' || current_setting('lock_timeout') || ' ' || \
                    current_setting('idle_in_transaction_session_timeout') || ' ' || current_setting('jit') || ' ' || current_setting('timezone')";
    let mut tx = pool.begin().await.unwrap();
    let within: String = sqlx::query_scalar(settings).fetch_one(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(within, "10s 5s 10s off UTC");
    let outside: String = sqlx::query_scalar(settings).fetch_one(&pool).await.unwrap();
    assert!(outside.starts_with("0 0 0 on"), "another client of the pooler would have had our settings: {outside}");
}

#[tokio::test]
async fn what_one_hub_rings_is_heard_by_another_past_the_pooler() {
    let way = way().await;
    let (one, other, stop) = (Wake::new(), Wake::new(), CancellationToken::new());
    for (wake, id) in [(&one, "hub-1"), (&other, "hub-2")] {
        tokio::spawn(wake.clone().relay(way.direct().clone(), id.to_owned(), stop.clone()));
    }
    let heard = async {
        loop {
            one.signed.notify_one();
            if tokio::time::timeout(Duration::from_millis(500), other.signed.notified()).await.is_ok() {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, heard).await.expect("the ring crosses");
    stop.cancel();
}

#[tokio::test]
async fn eight_hubs_behind_one_pooler_that_judge_at_once_never_overspend_a_budget() {
    let way = way().await;
    let (world, c1) = (healing(&way, 20).await, cluster("c1"));
    // Of 20 nodes 3 may be out.
    world.policy(&HEAL.replace("cluster: {percent: 100}", "cluster: {percent: 15}")).await;
    let mut hubs = Vec::new();
    for _ in 0..8 {
        hubs.push(judging(&way).await);
    }
    // A lock that a slow machine waits for too long fails a batch, which then comes again, as from a spoke.
    let take = |n: u32| {
        let (hub, c1) = (&hubs[n as usize % 8], c1.clone());
        async move {
            loop {
                if let Ok(ack) = hub.submit(c1.clone(), batch(&format!("s{n}"), 1, &[xid79(&c1, n / 2)])).await {
                    return ack.persisted_upto;
                }
            }
        }
    };
    let acks = tokio::time::timeout(PATIENCE, futures::future::join_all((0..40).map(take))).await.unwrap();
    assert_eq!(acks, [1; 40]);
    world.run("UPDATE judgements SET due_at = clock_timestamp()").await;
    world.decide().await;
    assert_eq!(world.count("holds").await, 3, "all of the budget, and no more");
    assert_eq!(world.text("SELECT out FROM budgets WHERE kind = 'cluster'").await, "3");
    assert_eq!(world.text("SELECT count(DISTINCT node_uid) FROM commands WHERE action <> 'notify'").await, "3");
}

/// The program's arguments, with a PKI of its own in `dir`.
fn serve(dir: &Path, urls: &[&str]) -> Args {
    let now = gpuheal_hub::clock::now();
    gpuheal_ctl::pki::init(&gpuheal_ctl::pki::Request::new(&dir.join("pki"), vec![cluster("c1")], now)).unwrap();
    let path = |name: &str| dir.join(name).display().to_string();
    let any = "127.0.0.1:0";
    let (identity, key, ready) = (path("pki/hub"), path("pki/signing/command.key"), path("ready.json"));
    let own = ["--identity", &identity, "--signing-key", &key, "--ready-file", &ready, "--database-connections", "4"];
    let listen = ["--listen-link", any, "--listen-fleet", any, "--listen-http", any];
    Args::read([&["gpuheal-hub", "serve"], urls, &own, &listen].concat()).unwrap()
}

#[tokio::test]
async fn the_hub_itself_serves_by_a_pooler_when_it_is_told_where_the_database_is() {
    let (pooled, direct) = testpg::pooled_database().await;
    let dir = tempfile::tempdir().unwrap();
    let args = serve(dir.path(), &["--database-url", &pooled, "--database-direct-url", &direct]);
    let ready = async {
        while !dir.path().join("ready.json").exists() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        ended = app::run(args) => panic!("the hub ended: {ended:?}"),
        ready = tokio::time::timeout(PATIENCE, ready) => ready.expect("it becomes ready"),
    }
}

#[tokio::test]
async fn a_pooler_that_is_taken_for_the_database_is_told_with_what_to_do() {
    let (pooled, _) = testpg::pooled_database().await;
    let error = Way::open(&pooled, None).await.unwrap().pool(1).await.unwrap_err();
    let said = gpuheal_proto::chain::chain(&error).to_string();
    assert!(said.contains("--database-direct-url-file") && said.contains("unsupported startup parameter"), "{said}");
}

#[tokio::test]
async fn a_pooler_that_is_away_is_named() {
    let (_, direct) = testpg::pooled_database().await;
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("postgres://ops:s3cret@127.0.0.1:{port}/fleet?sslmode=disable");
    let error = Way::open(&url, Some(&direct)).await.unwrap().pool(1).await.unwrap_err();
    let said = gpuheal_proto::chain::chain(&error).to_string();
    assert!(said.contains(&format!("cannot reach the pooler at 127.0.0.1:{port}")) && !said.contains("s3cret"), "{said}");
    assert_eq!(error.class(), gpuheal_hub::store::Class::Transient, "it is tried again while the hub starts");
}
