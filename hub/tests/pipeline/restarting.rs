//! Restarts of workloads that people ask for: one command, of what they named and nothing else.

use gpuheal_hub::decide::{ManualRequest, Outcome, process, process_by_user, process_from_spoke};
use gpuheal_proto::{fleet::v1::ProcessRequest, link::v1, words::Action};

use super::world::{World, cluster, request};

fn restart(id: &str, workloads: &[&str]) -> ManualRequest {
    ManualRequest { workloads: workloads.iter().map(|&text| text.to_owned()).collect(), ..request(id, 1, Action::Restart) }
}

#[tokio::test]
async fn a_restart_by_hand_is_a_command_of_its_own_that_takes_no_node_out() {
    let world = World::healing(10).await;
    let asked =
        process(&world.pool, &restart("r1", &["Deployment/ml/web", "deployment/ml/web", "daemonset/ml/agent"])).await.unwrap();
    assert_eq!(asked.outcome, Outcome::Accepted, "{asked:?}");
    assert_eq!(world.lines("SELECT action || ' ' || level || ' ' || state FROM commands").await, ["restart manual PROPOSED"]);
    let owners = "SELECT jsonb_path_query(steps_asked, '$[*].owners')::text FROM commands";
    assert_eq!(world.lines(owners).await, [r#"["deployment/ml/web", "daemonset/ml/agent"]"#], "each once");
    assert_eq!((world.count("holds").await, world.count("cooldowns").await), (0, 0));
    assert_eq!(world.lines("SELECT state FROM incidents").await, ["recorded"]);
    let told = world.text("SELECT string_agg(body, ' ') FROM audit_entries").await;
    assert!(told.contains("daemonset/ml/agent") && told.contains("user/tester"), "{told}");
}

#[tokio::test]
async fn an_id_is_good_for_the_workloads_that_it_was_first_used_for() {
    let world = World::healing(10).await;
    let first = process(&world.pool, &restart("r1", &["deployment/ml/web"])).await.unwrap();
    let again = process(&world.pool, &restart("r1", &["deployment/ml/web"])).await.unwrap();
    assert_eq!((again.outcome, again.command), (Outcome::Repeated, first.command));
    let other = process(&world.pool, &restart("r1", &["deployment/ml/other"])).await.unwrap();
    assert_eq!(other.outcome, Outcome::Invalid, "{other:?}");
    assert_eq!(world.count("commands").await, 1);
}

#[tokio::test]
async fn what_names_no_workload_that_can_be_restarted_is_refused_with_its_field() {
    let world = World::healing(10).await;
    let many: Vec<String> = (0..17).map(|n| format!("deployment/ml/web-{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let of_node = ManualRequest { action: Action::Evict, ..restart("r5", &["deployment/ml/web"]) };
    for (asked, why) in [
        (restart("r1", &[]), "workloads: a restart needs one"),
        (restart("r2", &["job/ml/train"]), "workloads: job/ml/train cannot be restarted"),
        (restart("r3", &["deployment/ml/a\0b"]), "workloads: "),
        (restart("r4", &many), "workloads: there are 17, at most 16"),
        (of_node, "workloads: only a restart is of workloads, evict is of the node"),
    ] {
        let answer = process(&world.pool, &asked).await.unwrap();
        assert_eq!(answer.outcome, Outcome::Invalid, "{answer:?}");
        assert!(answer.reason.starts_with(why), "{answer:?}");
    }
    assert_eq!((world.count("commands").await, world.count("process_requests").await), (0, 0));
}

#[tokio::test]
async fn users_and_spokes_ask_for_a_restart_in_their_own_words() {
    let world = World::healing(10).await;
    let of_user = ProcessRequest {
        request_id: "u".into(),
        cluster_id: "c1".into(),
        node: "n1".into(),
        action: "restart".into(),
        reason: "stuck".into(),
        workloads: vec!["deployment/ml/web".into()],
        ..ProcessRequest::default()
    };
    assert_eq!(process_by_user(&world.pool, "admin", of_user).await.unwrap().outcome, "accepted");
    let of_spoke = v1::Process {
        request_id: "s".into(),
        node: "n2".into(),
        action: v1::ProcessAction::Restart.into(),
        reason: "stuck".into(),
        caller: "webhook".into(),
        workloads: vec!["deployment/ml/web".into()],
        past_budgets: false,
    };
    let answer = process_from_spoke(&world.pool, cluster("c1"), of_spoke).await.unwrap();
    assert_eq!(answer.outcome(), v1::ProcessOutcome::Accepted, "{answer:?}");
}
