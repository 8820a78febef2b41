//! Whoever dies at a crash point of the failure table, what broke is healed once. `POINT=journal.synced` plays that one alone.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use anyhow::{Result, ensure};
use futures::StreamExt as _;
use gpuheal_tests::{
    crash::{CRASHES, Crash, Dying, play},
    process::Programs,
};

/// Crashes that are played at once: each waits most of the time, for a Lease to run out or for a session.
const AT_ONCE: usize = 6;

/// Failure table, row 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 14 and 15.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_dies_at_a_point_of_the_failure_table_what_broke_is_healed_once() -> Result<()> {
    let dying = Dying::built()?;
    let point = std::env::var("POINT").ok();
    let chosen: Vec<Crash> =
        CRASHES.into_iter().filter(|crash| point.as_deref().is_none_or(|point| point == crash.point)).collect();
    ensure!(!chosen.is_empty(), "there is no fail point {point:?}");
    let played = futures::stream::iter(chosen)
        .map(async |crash| (crash, play(&crash, &dying, testpg::database().await).await))
        .buffer_unordered(AT_ONCE);
    let mut played = std::pin::pin!(played);
    let mut failed = vec![];
    while let Some((crash, outcome)) = played.next().await {
        match outcome {
            Ok(took) => println!("row {:>2}  {:<24} {:>5.1} s  {:?}", crash.row, crash.point, took.as_secs_f64(), crash.who),
            Err(error) => {
                println!("row {:>2}  {:<24} FAILED   {:?}", crash.row, crash.point, crash.who);
                failed.push(format!("{error:#}"));
            }
        }
    }
    ensure!(failed.is_empty(), "{}", failed.join("\n\n"));
    Ok(())
}

fn points(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).expect("a source folder is readable").flatten() {
        let path = entry.path();
        if path.is_dir() {
            points(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("source is text");
            let named = text.split("dies_at!(\"").skip(1).filter_map(|rest| rest.split('"').next());
            for point in named {
                assert!(found.insert(point.to_owned()), "{point} is in the source twice");
            }
        }
    }
}

#[test]
fn every_fail_point_of_the_source_is_played_and_none_is_in_a_program_that_ships() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests is in the project");
    let mut found = BTreeSet::new();
    for folder in ["hub", "spoke"] {
        points(&root.join(folder), &mut found);
    }
    let played: BTreeSet<String> = CRASHES.iter().map(|crash| crash.point.to_owned()).collect();
    assert_eq!(found, played);
    let (ships, dying) = (Programs::built()?, Dying::built()?);
    let names = |program: &Path, point: &str| Command::new("grep").args(["-aqF", point]).arg(program).status().map(|s| s.success());
    for point in &found {
        let shown = names(&dying.hub, point)? || names(&dying.spoke, point)?;
        assert!(shown, "{point} is in no program of the crash tests: they are older than the source");
        for program in [&ships.hub, &ships.spoke] {
            assert!(!names(program, point)?, "{point} is in {}", program.display());
        }
    }
    Ok(())
}
