//! Least power: what the account that ships with a spoke may do, by the API server's own answers and its own record. All
//! other claims act as that account too, with every grant; here are the grants one by one, and what none of them gives.

pub(crate) mod never;

use std::{collections::BTreeSet, time::Duration};

use gpuheal_proto::{
    command::{DeadlineOutcome, Step},
    kubernetes::FINALIZER,
    link::v1::CommandState,
};
use gpuheal_spoke::{
    healaction::{HealAction, HealActionSpec, Tombstone},
    rights::{Grant, NODE_EVENTS, OWN_NAMESPACE, Place, RIGHTS, Right},
};
use kubesim::build;
use serde_json::json;
use testkube::{AuditEntry, settled};

use crate::{
    drain::{blocked, one_gpu::claimed},
    hub::{drain, mark, release, signed},
    program::Program,
    replica::Spoke,
    world::{World, marks, owner},
};

testkube::claims![
    each_right_is_used_and_nothing_that_is_used_is_missing,
    a_spoke_that_may_only_observe_is_ready_and_writes_in_its_own_namespace_alone,
    a_spoke_that_may_only_mark_marks_and_releases_and_evicts_nobody,
    without_the_right_to_pass_a_budget_its_pod_stays_and_is_named,
    what_is_in_a_namespace_without_rights_stays_and_is_named_and_the_rest_is_done,
];

fn at_once(outcome: DeadlineOutcome) -> Step {
    let Step::Drain(mut words) = drain() else { unreachable!() };
    words.deadline = Duration::from_secs(1);
    words.allow_pdb_bypass = outcome == DeadlineOutcome::BypassPdb;
    words.on_deadline = outcome;
    Step::Drain(words)
}

/// The row of the table that a request was allowed by.
fn row(entry: &AuditEntry, home: &str) -> Option<(usize, &'static Right)> {
    let resource = match entry.subresource.as_str() {
        "" => entry.resource.clone(),
        subresource => format!("{}/{subresource}", entry.resource),
    };
    let fits = |right: &Right| {
        let place = match right.place {
            Place::Own => entry.namespace == home,
            Place::NodeEvents => entry.namespace == NODE_EVENTS,
            Place::Cluster | Place::Workloads => true,
        };
        // A list of one object by its name has that name in Kubernetes' record and none in kubesim's.
        let listed = entry.name.is_empty() && entry.uri.contains("fieldSelector=metadata.name");
        let meant = |name: &&str| *name == entry.name || (*name == OWN_NAMESPACE && entry.name == home);
        let name = right.names.is_empty() || listed || right.names.iter().any(meant);
        place && name && right.group == entry.group && right.resource == resource && right.verbs.contains(&entry.verb.as_str())
    };
    RIGHTS.iter().enumerate().find(|(_, right)| fits(right))
}

/// All that a spoke ever asks of the API server, once: then the record is compared with the table, both ways.
async fn each_right_is_used_and_nothing_that_is_used_is_missing(w: World) {
    // Reads its own namespace and kube-system, as no part of it does alone.
    let program = Program::start(&w).await;
    program.waits_for_nothing_but_the_hub().await;
    drop(program);
    w.give_lease_to("").await;
    // Collected, since it ran out years ago.
    let tombstone = Tombstone { state: "REFUSED".into(), refusal: "EXPIRED".into(), reason: "late".into() };
    let spec = HealActionSpec { expires: "2020-01-01T00:00:00Z".into(), tombstone: Some(tombstone), ..HealActionSpec::default() };
    let mut old = HealAction::named("0195e0a0-0000-7000-8000-000000000001", &w.home, spec);
    old.metadata.finalizers = None;
    w.leave_action(&old).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;

    // A drain that looks at storage and at claims, whose first answer is lost, and to whose record somebody writes meanwhile.
    w.allow_stateful_eviction().await;
    w.stateful_pod("db-0", "n1").await;
    w.stateful_pod("db-1", "n2").await;
    claimed(&w, "claimed", "gpu.nvidia.com", "gpu-0").await;
    w.guarded_pod().await;
    w.lose_answer_to_eviction();
    let drained = w.command("n1", 1, vec![mark(), drain()]).await;
    spoke.send(signed(&drained)).await;
    spoke.told("that a budget is in the way", |status| blocked(status, "guarded-1").is_some()).await;
    w.try_change_action(drained.id, &json!({"metadata": {"labels": {"seen-by": "oncall"}}})).await.expect(200);
    w.free_budget().await;
    let end = spoke.ended(drained.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    let undone = w.command("n1", 2, vec![release(end.undo.clone())]).await;
    spoke.ack(&end).await;
    let end = spoke.carry_out(&undone).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    // Its finalizer goes, with that of the mark that it has undone.
    spoke.ack(&end).await;
    settled::is_true("what was acked is let go", || async {
        w.action(drained.id).await.unwrap()["metadata"]["finalizers"].as_array().is_none_or(|all| !all.contains(&json!(FINALIZER)))
    })
    .await;

    // A pod under two budgets, which a person lets it pass at the deadline.
    w.budget("one", "both").await;
    w.budget("two", "both").await;
    w.gpu_pod("both-1", "n3", json!({"metadata": {"labels": {"app": "both"}}})).await;
    let mut past = w.command("n3", 1, vec![mark(), at_once(DeadlineOutcome::BypassPdb)]).await;
    past.level = "manual".into();
    let end = spoke.carry_out(&past).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);

    // A rollout of each kind.
    w.create_workload("deployments", &build::deployment(&w.ns, "web", 0, 1, &[("app", "web")])).await;
    let mut daemon = build::daemonset(&w.ns, "daemon", &[("app", "daemon")]);
    daemon["spec"]["template"]["spec"]["nodeSelector"] = json!({"no": "node"});
    w.create_workload("daemonsets", &daemon).await;
    let mut set = build::deployment(&w.ns, "set", 0, 1, &[("app", "set")]);
    (set["kind"], set["spec"]["serviceName"]) = (json!("StatefulSet"), json!("set"));
    w.create_workload("statefulsets", &set).await;
    let owners = ["deployment/{}/web", "statefulset/{}/set", "daemonset/{}/daemon"].map(|owner| owner.replace("{}", &w.ns));
    let restart = w.command("n4", 2, vec![Step::RestartWorkload { owners: owners.to_vec() }]).await;
    let end = spoke.carry_out(&restart).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);

    // A node that the watch does not show is asked for.
    w.hide_node("n2").await;
    settled::is_true("the watch shows it no more", || async { spoke.nodes.node(&w.name("n2")).is_none() }).await;
    let end = spoke.carry_out(&w.command("n2", 1, vec![mark()]).await).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    settled::is_true("the old record is collected", || async {
        w.asked_by_account().await.iter().any(|entry| entry.verb == "delete" && entry.resource == "healactions")
    })
    .await;

    let mut unused: BTreeSet<_> =
        RIGHTS.iter().enumerate().flat_map(|(at, right)| right.verbs.iter().map(move |verb| (at, *verb))).collect();
    let asked = w.asked_by_account().await;
    let asked: Vec<_> = asked.iter().filter(|entry| !entry.resource.is_empty() && !entry.resource.ends_with("reviews")).collect();
    for entry in &asked {
        assert_ne!(entry.code, 403, "{}", entry.brief());
        let (at, _) = row(entry, &w.home).unwrap_or_else(|| panic!("no row of the table allows {}", entry.brief()));
        unused.remove(&(at, entry.verb.as_str()));
    }
    let unused: Vec<_> = unused.into_iter().map(|(at, verb)| format!("{verb} {}", RIGHTS[at].resource)).collect();
    assert_eq!(unused, Vec::<String>::new(), "granted and not used in {} requests", asked.len());
    println!("{}: {} requests by the spoke's account, each in the table, each right used", w.cluster.name(), asked.len());
}

/// Writes outside of our namespace that were done, and not merely asked for.
async fn written_elsewhere(w: &World) -> Vec<String> {
    let all = w.asked_by_account().await;
    let done = all.iter().filter(|entry| entry.is_write() && entry.namespace != w.home && entry.code < 300);
    done.map(AuditEntry::brief).collect()
}

async fn a_spoke_that_may_only_observe_is_ready_and_writes_in_its_own_namespace_alone(w: World) {
    let w = w.granted(&[Grant::Observe]).await;
    let program = Program::start(&w).await;
    program.waits_for_nothing_but_the_hub().await;
    program.leads().await;
    let refused: Vec<_> = w.asked_by_account().await.iter().filter(|one| one.code == 403).map(AuditEntry::brief).collect();
    assert_eq!(refused, Vec::<String>::new(), "it asks for nothing that it may not");
    drop(program);
    w.give_lease_to("").await;
    if !w.is_kubernetes() {
        return;
    }
    // A hub whose policy goes further than the cluster's owner has granted.
    w.gpu_pod("web-1", "n1", json!({})).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    let end = spoke.carry_out(&command).await;
    assert_eq!(end.state(), CommandState::Failed, "{}", end.reason);
    assert!(end.reason.contains("cannot patch resource \"nodes\""), "{}", end.reason);
    assert_eq!(marks(&w.node("n1").await), (false, 0, false));
    assert!(w.pod("web-1").await.is_some());
    assert_eq!(written_elsewhere(&w).await, Vec::<String>::new());
}

async fn a_spoke_that_may_only_mark_marks_and_releases_and_evicts_nobody(w: World) {
    let w = w.granted(&[Grant::Observe, Grant::Notify, Grant::Mark]).await;
    w.gpu_pod("web-1", "n1", json!({})).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let marked = spoke.carry_out(&w.command("n1", 1, vec![mark()]).await).await;
    assert_eq!(marked.state(), CommandState::Succeeded, "{}", marked.reason);
    assert_eq!(marks(&w.node("n1").await), (true, 1, true));
    w.deny("create", "pods/eviction");
    // Long before the deadline: what it may not it tries once.
    let end = spoke.carry_out(&w.command("n1", 2, vec![mark(), drain()]).await).await;
    assert_eq!(end.state(), CommandState::Failed, "{}", end.reason);
    assert!(end.reason.contains("cannot create resource \"pods/eviction\""), "{}", end.reason);
    assert!(w.pod("web-1").await.is_some());
    assert_eq!(w.wire.evictions().len(), 1, "nothing else is tried");
    let end = spoke.carry_out(&w.command("n1", 3, vec![release(marked.undo)]).await).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert_eq!(marks(&w.node("n1").await), (false, 0, false));
}

async fn what_is_in_a_namespace_without_rights_stays_and_is_named_and_the_rest_is_done(w: World) {
    let (w, far) = w.granted_at_home(&Grant::ALL).await;
    w.gpu_pod("web-1", "n1", json!({})).await;
    w.gpu_pod_in(&far, "far-1", "n1").await;
    w.create_workload("deployments", &build::deployment(&w.ns, "web", 0, 1, &[("app", "web")])).await;
    w.post(&format!("/apis/apps/v1/namespaces/{far}/deployments"), &build::deployment(&far, "web", 0, 1, &[("app", "web")])).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;

    // Long before the deadline, and once: what it may not it does not try again.
    let end = spoke.carry_out(&w.command("n1", 1, vec![mark(), drain()]).await).await;
    assert_eq!(end.state(), CommandState::Failed, "{}", end.reason);
    for part in ["1 of 1 pods gone", &format!("left: {far}/far-1: "), "cannot create resource \"pods/eviction\""] {
        assert!(end.reason.contains(part), "{part} is not in {}", end.reason);
    }
    w.gone("web-1").await;
    assert!(w.get(&format!("/api/v1/namespaces/{far}/pods/far-1")).await.is_some());
    let asked = w.evictions().await;
    assert_eq!(asked.iter().filter(|entry| entry.namespace == far).count(), 1, "{asked:?}");

    let owners = [&far, &w.ns].map(|namespace| format!("deployment/{namespace}/web"));
    let end = spoke.carry_out(&w.command("n2", 1, vec![Step::RestartWorkload { owners: owners.to_vec() }]).await).await;
    assert_eq!(end.state(), CommandState::Failed, "{}", end.reason);
    for part in ["1 of 2 workloads restarted", &format!("deployment/{far}/web stays: "), "cannot get resource \"deployments\""] {
        assert!(end.reason.contains(part), "{part} is not in {}", end.reason);
    }
    let done: Vec<_> = written_elsewhere(&w).await.into_iter().filter(|written| written.contains(&far)).collect();
    assert_eq!(done, Vec::<String>::new());
    // On the node it is told; in a namespace that gave no right nothing is tried but what the command asks for.
    let told = w.writes_to("events").await;
    assert!(told.iter().all(|entry| entry.namespace != far), "{told:?}");
}

async fn without_the_right_to_pass_a_budget_its_pod_stays_and_is_named(w: World) {
    let w = w.granted(&[Grant::Observe, Grant::Notify, Grant::Mark, Grant::Heal]).await;
    w.guarded_pod().await;
    w.gpu_pod("web-1", "n1", json!({"metadata": {"ownerReferences": owner("CloneSet", "other")}})).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    w.deny("delete", "pods");
    let mut command = w.command("n1", 1, vec![mark(), at_once(DeadlineOutcome::BypassPdb)]).await;
    command.level = "manual".into();
    spoke.send(signed(&command)).await;
    w.gone("web-1").await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Failed, "{}", end.reason);
    assert!(end.reason.contains("cannot delete resource \"pods\""), "{}", end.reason);
    assert!(w.pod("guarded-1").await.is_some());
}
