//! The policy file, its revisions, and the schema that a hub refuses.

use gpuheal_hub::{
    policy_file::{self, PolicyFile},
    store::{self, pool},
};
use sqlx::Connection as _;

use super::world::{HEAL, World};

#[tokio::test]
async fn a_changed_file_is_a_new_revision_and_a_bad_one_changes_nothing() {
    let world = World::new().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.yaml");
    let file = PolicyFile::new(path.clone());
    file.look(&world.pool, &world.wake).await;
    assert!(file.problem().unwrap().contains("cannot read"));
    std::fs::write(&path, HEAL).unwrap();
    file.look(&world.pool, &world.wake).await;
    assert_eq!((file.problem(), world.count("policies").await), (None, 1));
    std::fs::write(&path, format!("# said otherwise, meaning the same\n{HEAL}")).unwrap();
    file.look(&world.pool, &world.wake).await;
    assert_eq!(world.count("policies").await, 1, "what it says is what counts");
    std::fs::write(&path, HEAL.replace("mode: heal", "mode: hael\n  budgetz: {}")).unwrap();
    file.look(&world.pool, &world.wake).await;
    let problem = file.problem().unwrap();
    assert!(problem.contains("6:") && problem.contains("budgetz"), "every error with its place: {problem}");
    assert_eq!(world.count("policies").await, 1);
    std::fs::write(&path, HEAL.replace("mode: heal", "mode: notify")).unwrap();
    file.look(&world.pool, &world.wake).await;
    assert_eq!((file.problem(), world.count("policies").await), (None, 2));
}

#[tokio::test]
async fn a_hub_that_starts_again_does_not_undo_what_a_person_applied_since() {
    let world = World::new().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.yaml");
    let mode = "SELECT substring(yaml FROM 'mode: (\\w+)') || ' ' || applied_by FROM policies ORDER BY revision DESC LIMIT 1";
    std::fs::write(&path, HEAL).unwrap();
    PolicyFile::new(path.clone()).look(&world.pool, &world.wake).await;
    assert_eq!(world.text(mode).await, "heal policy file");
    world.policy(&HEAL.replace("mode: heal", "mode: notify")).await;
    let restarted = PolicyFile::new(path.clone());
    restarted.look(&world.pool, &world.wake).await;
    assert_eq!((restarted.problem(), world.text(mode).await), (None, "notify test".to_owned()));
    // Said in the file first, by a person then, and by the file again: only news from the file counts.
    std::fs::write(&path, HEAL.replace("mode: heal", "mode: mark")).unwrap();
    restarted.look(&world.pool, &world.wake).await;
    assert_eq!(world.text(mode).await, "mark policy file");
    world.policy(HEAL).await;
    std::fs::write(&path, HEAL).unwrap();
    restarted.look(&world.pool, &world.wake).await;
    world.policy(&HEAL.replace("mode: heal", "mode: notify")).await;
    PolicyFile::new(path).look(&world.pool, &world.wake).await;
    assert_eq!(world.text(mode).await, "notify test");
}

#[tokio::test]
async fn of_two_hubs_with_different_files_the_last_to_start_is_heard_and_the_record_names_both() {
    let world = World::new().await;
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, yaml: &str| {
        std::fs::write(dir.path().join(name), yaml).unwrap();
        PolicyFile::new(dir.path().join(name))
    };
    let (heal, mark) = (HEAL.to_owned(), HEAL.replace("mode: heal", "mode: mark"));
    let (one, other) = (file("one.yaml", &heal), file("other.yaml", &mark));
    one.look(&world.pool, &world.wake).await;
    other.look(&world.pool, &world.wake).await;
    for _ in 0..3 {
        one.look(&world.pool, &world.wake).await;
        other.look(&world.pool, &world.wake).await;
    }
    assert_eq!(world.count("policies").await, 2, "hubs that run do not take turns");
    let told = "SELECT body::jsonb->>'digest' || ' ' || (body::jsonb->>'file_before') FROM audit_entries WHERE kind = 'policy_applied' ORDER BY seq DESC LIMIT 1";
    let digest = |yaml: &str| policy_file::check(yaml).unwrap().digest;
    assert_eq!(world.text(told).await, format!("{} {}", digest(&mark), digest(&heal)));
    assert_eq!((one.problem(), other.problem()), (None, None));
    file("one.yaml", &heal).look(&world.pool, &world.wake).await;
    assert_eq!(world.text(told).await, format!("{} {}", digest(&heal), digest(&mark)));
}

#[tokio::test]
async fn revisions_are_never_changed() {
    let world = World::new().await;
    world.policy(HEAL).await;
    assert!(sqlx::query("UPDATE policies SET yaml = ''").execute(&world.pool).await.is_err());
}

#[tokio::test]
async fn a_schema_that_is_empty_or_of_another_version_is_refused() {
    let url = testpg::empty_database().await;
    let pool = pool::connect(&url, 2).await.unwrap();
    assert!(matches!(pool::schema_check(&pool).await, Err(store::Error::Schema { .. })));
    pool::migrate(&url).await.unwrap();
    pool::migrate(&url).await.unwrap();
    pool::schema_check(&pool).await.unwrap();
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (999, 'later', true, '', 0)",
    )
    .execute(&pool)
    .await
    .unwrap();
    assert!(pool::schema_check(&pool).await.unwrap_err().to_string().contains("999 is not known here"));
}

#[tokio::test]
async fn auditors_see_the_views_and_nothing_else() {
    let world = World::healing(2).await;
    let mut conn = sqlx::PgConnection::connect_with(&world.pool.connect_options()).await.unwrap();
    sqlx::query("SET ROLE gpuheal_auditor").execute(&mut conn).await.unwrap();
    for view in ["incidents", "faults", "decisions", "commands", "actions", "policies"] {
        sqlx::query(sqlx::AssertSqlSafe(format!("SELECT * FROM audit.{view}"))).execute(&mut conn).await.unwrap();
    }
    assert!(sqlx::query("SELECT * FROM commands").execute(&mut conn).await.is_err());
    conn.close().await.unwrap();
}
