//! One fault heals, end to end: the shipping programs, real Postgres, mTLS, and an API server that is simulated in one test
//! and Kubernetes' own in the next. `KUBE=off` leaves the latter out, and says what was not proved.

use anyhow::Result;
use gpuheal_tests::{
    cluster::Kind,
    fleet::Fleet,
    measure::stops,
    script::{PATIENT_LEASE, Stage, plan, plan_of},
};

/// A fixed seed: the demo plays fresh ones.
const SEED: u64 = 20_261_129;

async fn played(kind: Kind, scenes: &str) -> Result<()> {
    let mut plan =
        if scenes.chars().all(|letter| "abej".contains(letter)) { plan_of(SEED, "alpha", kind) } else { plan(SEED, kind) };
    plan.lease = PATIENT_LEASE;
    let fleet = Fleet::start(plan, |_| {}).await?;
    let mut stage = Stage::new(fleet, SEED);
    for letter in scenes.chars() {
        if let Err(error) = stage.play(letter).await {
            stage.fleet.place.keep();
            let logs = stage.fleet.place.dir.display().to_string();
            return Err(error.context(format!("logs are in {logs}")));
        }
    }
    gpuheal_tests::invariants::check(&stage.fleet).await?;
    stage.fleet.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_is_healed_once_and_released_whole_on_a_simulated_api_server() -> Result<()> {
    played(Kind::Sim, "abj").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_is_healed_once_and_released_whole_on_kubernetes_own_api_server() -> Result<()> {
    if std::env::var("KUBE").as_deref() == Ok("off") {
        println!("KUBE=off: quarantine, drain and release were NOT proved on a real Kubernetes API server");
        return Ok(());
    }
    played(Kind::Real, "abj").await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_scene_of_the_script_ends_as_scripted() -> Result<()> {
    played(Kind::Sim, "abcdefghij").await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_stop_ends_the_drains_that_are_under_way_and_a_revoked_identity_is_cut() -> Result<()> {
    let figures = stops::run(2, SEED, include_str!("../src/measure/policy.yaml"), |_| {}).await?;
    // Each of them is an error of the run when it does not come; here that none was left out.
    assert_eq!((figures.fleet_ms.len(), figures.cluster_ms.len()), (2, 2));
    Ok(())
}
