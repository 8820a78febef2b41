//! Restarting workloads: one rollout each, and what does not restart by its template is left as it is.

use gpuheal_proto::{command::Step, link::v1::CommandState};
use kubesim::build;
use serde_json::{Value, json};
use testkube::settled;

use crate::{hub::signed, replica::Spoke, world::World};

testkube::claims![
    a_restart_is_one_rollout_and_taken_up_again_is_the_same_one,
    a_workload_that_does_not_restart_by_its_template_is_left_and_named,
    another_workload_under_the_name_that_was_meant_is_left_alone,
];

/// Without pods: what is rolled out is the template.
fn deployment(w: &World, name: &str) -> Value {
    build::deployment(&w.ns, name, 0, 1, &[("app", name)])
}

fn restart(owners: &[String]) -> Step {
    Step::RestartWorkload { owners: owners.to_vec() }
}

async fn read(w: &World, plural: &str, name: &str) -> Value {
    w.get(&format!("/apis/apps/v1/namespaces/{}/{plural}/{name}", w.ns)).await.unwrap()
}

fn restarted_by(object: &Value) -> &Value {
    &object["spec"]["template"]["metadata"]["annotations"]["gpu-selfhealing.io/restarted-by"]
}

/// Failure table, row 14.
async fn a_restart_is_one_rollout_and_taken_up_again_is_the_same_one(w: World) {
    w.create_workload("deployments", &deployment(&w, "web")).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![restart(&[format!("Deployment/{}/web", w.ns)])]).await;
    let end = spoke.carry_out(&command).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert!(end.reason.contains("1 of 1 workloads restarted"), "{}", end.reason);
    let web = read(&w, "deployments", "web").await;
    assert_eq!((restarted_by(&web), &web["metadata"]["generation"]), (&json!(command.id.to_string()), &json!(2)));
    w.told_all(&command).await;
    w.kill_and_free(spoke).await;
    // As if its leader had died before it wrote down what it had done.
    w.forget_status(command.id).await;
    let mut next = Spoke::start(&w, "b", "").await;
    let end = next.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert_eq!(w.writes_to("deployments").await.len(), 1);
    assert_eq!(read(&w, "deployments", "web").await["metadata"]["generation"], 2, "one rollout");
}

async fn a_workload_that_does_not_restart_by_its_template_is_left_and_named(w: World) {
    let mut paused = deployment(&w, "paused");
    paused["spec"]["paused"] = json!(true);
    w.create_workload("deployments", &paused).await;
    w.create_workload("deployments", &deployment(&w, "web")).await;
    let mut daemon = build::daemonset(&w.ns, "daemon", &[("app", "daemon")]);
    daemon["spec"]["updateStrategy"] = json!({"type": "OnDelete"});
    daemon["spec"]["template"]["spec"]["nodeSelector"] = json!({"no": "node"});
    w.create_workload("daemonsets", &daemon).await;
    let mut spoke = Spoke::leading(&w, "a", &format!("ceiling: {{namespaces: [{}]}}", w.ns)).await;
    let named = ["deployment/{}/paused", "daemonset/{}/daemon", "deployment/{}/web", "deployment/{}/nobody", "job/{}/train"];
    let mut owners: Vec<_> = named.iter().map(|owner| owner.replace("{}", &w.ns)).collect();
    owners.push("deployment/elsewhere/web".to_owned());
    let end = spoke.carry_out(&w.command("n1", 1, vec![restart(&owners)]).await).await;
    assert_eq!(end.state(), CommandState::Failed, "{}", end.reason);
    for part in [
        "1 of 6 workloads restarted, 1 are gone",
        "/paused is paused",
        "/daemon has update strategy OnDelete",
        "/train cannot be restarted by its template",
        "elsewhere/web stays: the cluster's ceiling does not allow namespace elsewhere",
    ] {
        assert!(end.reason.contains(part), "{part} is not in {}", end.reason);
    }
    assert_eq!(w.writes_to("deployments").await.len(), 1);
    assert_eq!(w.writes_to("daemonsets").await, []);
    assert!(restarted_by(&read(&w, "deployments", "paused").await).is_null());
}

async fn another_workload_under_the_name_that_was_meant_is_left_alone(w: World) {
    w.create_workload("deployments", &deployment(&w, "web")).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let meant = format!("deployment/{}/web/0c5c7a3e-0000-4000-8000-000000000000", w.ns);
    let command = w.command("n1", 1, vec![restart(&[meant])]).await;
    spoke.send(signed(&command)).await;
    let end = spoke.ended(command.id).await;
    assert!(end.reason.contains("0 of 1 workloads restarted, 1 are gone"), "{}", end.reason);
    assert_eq!(w.writes_to("deployments").await, []);
    settled::is_true("its last Event is posted", || async { !w.events().await.is_empty() }).await;
}
