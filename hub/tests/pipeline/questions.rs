//! The questions of docs/postgres.md, asked by an auditor of a database in which something happened.

use gpuheal_hub::{decide::process, settle::settle, store::stop::fleet_stop};
use gpuheal_proto::{link::v1, words::Action};
use sqlx::{AssertSqlSafe, Connection as _};

use super::world::{HEAL, World, cluster, request, xid79};

const PAGE: &str = include_str!("../../../docs/postgres.md");

fn queries() -> Vec<&'static str> {
    PAGE.split("```sql\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// One node healed, one blocked by a stop, one asked for by hand, and a second policy.
async fn lived_in() -> World {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    world.decide().await;
    world.dispatch().await;
    let command_id = world.text("SELECT command_id FROM commands").await;
    for (status_seq, state) in [(1, v1::CommandState::Started), (2, v1::CommandState::Succeeded)] {
        let status = v1::CommandStatus {
            command_id: command_id.clone(),
            status_seq,
            state: state.into(),
            lease_transitions: 1,
            ..Default::default()
        };
        settle(&world.pool, &c1, status, None).await.unwrap();
    }
    process(&world.pool, &request("r1", 3, Action::Mark)).await.unwrap();
    fleet_stop(&world.pool, Some("drill"), "drill", "user/operator").await.unwrap();
    world.faults(&c1, &[xid79(&c1, 2)]).await;
    world.decide().await;
    world.policy(&HEAL.replace("mode: heal", "mode: notify")).await;
    world.decide().await;
    world
}

#[tokio::test]
async fn each_question_of_the_docs_is_answered_to_an_auditor() {
    let world = lived_in().await;
    let queries = queries();
    assert!(queries.len() >= 6, "{} questions", queries.len());
    let mut conn = sqlx::PgConnection::connect_with(&world.pool.connect_options()).await.unwrap();
    sqlx::query("SET ROLE gpuheal_auditor").execute(&mut conn).await.unwrap();
    for query in queries {
        let rows = sqlx::query(AssertSqlSafe(query)).fetch_all(&mut conn).await.unwrap_or_else(|error| panic!("{error}: {query}"));
        assert!(!rows.is_empty(), "nothing to answer: {query}");
    }
    conn.close().await.unwrap();
}

#[tokio::test]
async fn whoever_did_something_by_hand_is_listed_with_what_and_why() {
    let world = lived_in().await;
    fleet_stop(&world.pool, None, "drill is over", "user/operator").await.unwrap();
    process(&world.pool, &request("r2", 99, Action::Mark)).await.unwrap();
    let asked = queries().into_iter().find(|query| query.contains("fleet_resume")).unwrap();
    let told = format!("SELECT what || ': ' || coalesce(reason, '') FROM ({}) q", asked.trim().trim_end_matches(';'));
    let told = world.lines(&told).await;
    for what in ["fleet_stop: drill", "fleet_resume: drill is over"] {
        assert!(told.iter().any(|line| line == what), "{what} in {told:?}");
    }
    assert_eq!(told.iter().filter(|line| line.starts_with("mark: ")).count(), 2, "one that was met and one that was not: {told:?}");
    assert!(told.iter().all(|line| !line.ends_with(": ")), "a reason each: {told:?}");
}

#[tokio::test]
async fn each_table_is_on_the_page() {
    let world = World::new().await;
    let tables = "SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname <> '_sqlx_migrations'";
    for table in world.lines(tables).await {
        assert!(PAGE.contains(&format!("`{table}`")), "docs/postgres.md does not speak of {table}");
    }
    for view in world.lines("SELECT relname::text FROM pg_class WHERE relnamespace = 'audit'::regnamespace AND relkind = 'v'").await
    {
        assert!(PAGE.contains(&format!("`audit.{view}`")), "docs/postgres.md does not speak of audit.{view}");
    }
}
