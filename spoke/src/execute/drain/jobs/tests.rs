use gpuheal_spoke_core::drain::{Planned, Skipped};
use serde_json::{Value, json};

use super::{
    super::{evict::Outcome, pods::Event},
    *,
};

fn pod(name: &str) -> PodFacts {
    PodFacts { namespace: "ml".into(), name: name.into(), uid: name.into(), ready: true, ..PodFacts::default() }
}

fn facts_of(pod: &Value) -> Option<PodFacts> {
    PodFacts::from_json(pod)
}

fn is(pod: Value) -> Event {
    Event::Is(Box::new(facts_of(&pod).unwrap()))
}

fn planned(name: &str) -> Planned {
    Planned { pod: pod(name), after_completion: false }
}

fn jobs(stateless: &[&str], stateful: &[&str], now: Instant) -> Jobs {
    let list = |names: &[&str]| names.iter().map(|name| planned(name)).collect();
    let plan = Plan { stateless: list(stateless), stateful: list(stateful), skipped: vec![], spared: [].into() };
    Jobs::new(&plan, Duration::from_secs(60), now)
}

fn budget() -> Outcome {
    Outcome::Budget { wait: None, why: "the disruption budget web needs 3 healthy pods and has 3 currently".into() }
}

#[test]
fn stateless_pods_go_together_and_stateful_ones_one_by_one_after_them() {
    let now = Instant::now();
    let mut jobs = jobs(&["a", "b"], &["db-0", "db-1"], now);
    assert_eq!(jobs.due(now), ["a", "b"]);
    for uid in ["a", "b"] {
        jobs.launch(uid).unwrap();
        jobs.answered(uid, Outcome::Accepted, now);
    }
    assert!(jobs.due(now).is_empty(), "accepted is not gone");
    for uid in ["a", "b"] {
        jobs.by_uid.get_mut(uid).unwrap().go();
    }
    assert_eq!(jobs.due(now), ["db-0"]);
    jobs.launch("db-0").unwrap();
    assert!(jobs.due(now).is_empty());
    jobs.answered("db-0", Outcome::Gone, now);
    assert_eq!(jobs.due(now), ["db-1"]);
    jobs.launch("db-1").unwrap();
    jobs.answered("db-1", Outcome::Gone, now);
    assert!(jobs.settled());
}

#[test]
fn a_budgets_refusal_makes_one_pod_wait_and_is_told_once() {
    let now = Instant::now();
    let mut jobs = jobs(&["a", "b"], &["db-0"], now);
    jobs.launch("a").unwrap();
    let (hold, told) = jobs.answered("a", budget(), now).unwrap();
    assert_eq!(hold, Hold::Budget);
    assert_eq!(told, "pod ml/a cannot be evicted yet: the disruption budget web needs 3 healthy pods and has 3 currently");
    assert_eq!(jobs.due(now), ["b"], "others go on");
    let later = now + Duration::from_secs(1);
    assert_eq!(jobs.due(later), ["a", "b"]);
    jobs.launch("a").unwrap();
    assert_eq!(jobs.answered("a", budget(), later), None);
    jobs.launch("b").unwrap();
    jobs.answered("b", Outcome::Gone, later);
    assert!(jobs.due(later).is_empty(), "stateful pods wait for what a budget holds back");
}

#[test]
fn what_only_a_person_can_mend_does_not_hold_up_the_stateful_ones() {
    let now = Instant::now();
    let mut jobs = jobs(&["a"], &["db-0"], now);
    jobs.launch("a").unwrap();
    jobs.answered("a", Outcome::ManyBudgets { why: "two".into() }, now);
    assert_eq!(jobs.due(now), ["db-0"]);
    assert!(!jobs.settled());
    assert_eq!(jobs.records()[0].state, "blocked");
}

#[test]
fn what_keeps_a_pod_is_told_anew_when_it_is_of_another_kind_and_each_kind_once() {
    let now = Instant::now();
    let mut jobs = jobs(&["a"], &[], now);
    let no = |why: &str| Outcome::Denied { wait: None, why: why.into() };
    let many = |why: &str| Outcome::ManyBudgets { why: why.into() };
    let failed = || Outcome::Failed { wait: None, why: "etcdserver: no leader".into() };
    let answers = [
        (no("first"), Some(Hold::Admission)),
        (no("in other words"), None),
        (budget(), Some(Hold::Budget)),
        (Outcome::Throttled { wait: None }, None),
        (no("again"), None),
        (many("two"), Some(Hold::Budgets)),
        (failed(), Some(Hold::Server)),
        (Outcome::Terminating, Some(Hold::Refusal)),
        (budget(), None),
        (failed(), None),
        (many("three"), None),
    ];
    for (answer, kind) in answers {
        jobs.launch("a").unwrap();
        let told = jobs.answered("a", answer.clone(), now);
        assert_eq!(told.as_ref().map(|(hold, _)| *hold), kind, "{answer:?}");
    }
    let waits = |jobs: &mut Jobs, hold: Hold| jobs.waits("a", (hold, "later".to_owned()), now).map(|(hold, _)| hold);
    assert_eq!(waits(&mut jobs, Hold::Replica), Some(Hold::Replica));
    assert_eq!(waits(&mut jobs, Hold::Storage), Some(Hold::Storage));
    assert_eq!(waits(&mut jobs, Hold::Replica), None);
    let told = &jobs.by_uid["a"].told;
    assert!(Hold::ALL.iter().all(|hold| told.contains(hold)), "{told:?}");
    let words: BTreeSet<_> = Hold::ALL.into_iter().map(Hold::word).collect();
    assert_eq!(words.len(), Hold::ALL.len(), "each in a name of its own");
}

#[test]
fn a_lost_answer_is_looked_up_before_it_is_asked_again() {
    let now = Instant::now();
    let mut jobs = jobs(&["a"], &[], now);
    assert!(!jobs.launch("a").unwrap().doubt);
    jobs.answered("a", Outcome::Doubt, now);
    assert!(jobs.launch("a").unwrap().doubt);
    assert_eq!(jobs.records()[0].eviction_calls, 1, "a look is no eviction");
}

#[test]
fn a_pod_on_its_way_out_is_not_evicted_again() {
    let now = Instant::now();
    let mut leaving = planned("a");
    leaving.pod.deleting = true;
    let plan = Plan { stateless: vec![leaving], ..Plan::default() };
    let jobs = Jobs::new(&plan, Duration::from_secs(60), now);
    assert!(jobs.due(now).is_empty());
    assert_eq!(jobs.records()[0].state, "evicting");
}

#[test]
fn a_pod_that_does_not_go_is_named_and_on_a_dead_node_not_waited_for() {
    let now = Instant::now();
    let mut jobs = jobs(&["a"], &[], now);
    jobs.launch("a").unwrap();
    jobs.answered("a", Outcome::Accepted, now);
    let later = now + Duration::from_secs(30) + GRACE_SLACK;
    jobs.age(later);
    assert_eq!(jobs.records()[0].reason, "still terminating 60 s after it was evicted");
    assert!(!jobs.settled());
    jobs.look(Duration::from_secs(60), true);
    jobs.age(later);
    assert!(jobs.settled());
    assert_eq!(jobs.gone(), 0, "it is not claimed to be gone");
    assert_eq!(jobs.stuck().len(), 1);
}

#[test]
fn a_long_grace_is_shortened_on_a_dead_node_whether_it_was_asked_for_before_or_after() {
    let now = Instant::now();
    let long =
        |name: &str| Planned { pod: PodFacts { grace: Some(Duration::from_secs(600)), ..pod(name) }, after_completion: false };
    let plan = Plan { stateless: vec![long("before"), long("after")], ..Plan::default() };
    let mut jobs = Jobs::new(&plan, Duration::from_secs(600), now);
    assert_eq!(jobs.launch("before").unwrap().grace_secs, 600);
    jobs.answered("before", Outcome::Accepted, now);
    jobs.age(now + Duration::from_secs(60));
    assert_eq!(jobs.records()[0].reason, "", "its kubelet lives: it has its ten minutes");
    jobs.look(Duration::from_secs(600), true);
    assert_eq!(jobs.launch("after").unwrap().grace_secs, 30);
    jobs.answered("after", Outcome::Accepted, now);
    jobs.age(now + Duration::from_secs(59));
    assert!(!jobs.settled());
    jobs.age(now + Duration::from_secs(60));
    assert!(jobs.settled());
    assert_eq!(jobs.stuck().len(), 2);
}

#[test]
fn a_finalizer_is_named_with_its_owner_while_its_pod_ends_and_once_only_its_object_is_left() {
    let now = Instant::now();
    let pod = |phase: &str, deleted: Value| -> Value {
        let fields = json!({"f:metadata": {"f:finalizers": {"v:\"team.example/hold\"": {}}}});
        let managed = json!([{"manager": "team-operator", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": fields}]);
        let metadata = json!({"namespace": "ml", "name": "a", "uid": "a", "finalizers": ["team.example/hold"],
            "managedFields": managed, "deletionTimestamp": deleted});
        json!({"metadata": metadata, "status": {"phase": phase}})
    };
    let drained = Planned { pod: facts_of(&pod("Running", Value::Null)).unwrap(), after_completion: false };
    let mut jobs = Jobs::new(&Plan { stateless: vec![drained], ..Plan::default() }, Duration::from_secs(60), now);
    jobs.launch("a").unwrap();
    jobs.answered("a", Outcome::Accepted, now);
    jobs.seen(is(pod("Running", json!("2026-01-01T00:00:00Z"))), now);
    assert!(jobs.leaving() && jobs.records()[0].reason.is_empty());
    jobs.age(now + Duration::from_secs(30) + GRACE_SLACK);
    assert_eq!(jobs.records()[0].reason, "still terminating, held by finalizer team.example/hold (set by team-operator)");
    jobs.seen(is(pod("Succeeded", json!("2026-01-01T00:00:00Z"))), now);
    assert_eq!(jobs.records()[0].reason, "finished; its object is held by finalizer team.example/hold (set by team-operator)");
    assert!(jobs.settled());
}

#[test]
fn a_pod_that_waits_for_completion_is_evicted_at_the_deadline_and_never_deleted() {
    let now = Instant::now();
    let plan = Plan { stateless: vec![Planned { after_completion: true, ..planned("a") }, planned("b")], ..Plan::default() };
    let mut jobs = Jobs::new(&plan, Duration::from_secs(60), now);
    assert_eq!(jobs.due(now), ["b"]);
    assert_eq!(jobs.records()[0].state, "waiting for its completion");
    assert!(jobs.end_patience(now));
    assert!(!jobs.end_patience(now), "once");
    assert_eq!(jobs.due(now), ["a", "b"]);
    assert!(!jobs.launch("a").unwrap().bypass);
    jobs.answered("a", budget(), now);
    jobs.bypass(now);
    assert!(!jobs.launch("a").unwrap().bypass, "also where budgets may be passed, its own wish is kept");
    assert!(!jobs.launch("b").unwrap().bypass, "nobody has asked for it yet");
}

#[test]
fn a_pod_that_was_never_asked_for_is_evicted_past_the_deadline_and_deleted_once_a_budget_refuses_that() {
    let now = Instant::now();
    for refusal in [budget(), Outcome::ManyBudgets { why: "two".into() }] {
        let mut jobs = jobs(&["a"], &["db-0"], now);
        jobs.launch("a").unwrap();
        jobs.answered("a", refusal.clone(), now);
        jobs.bypass(now);
        assert_eq!(jobs.due(now), ["a"]);
        assert!(jobs.launch("a").unwrap().bypass, "a budget has refused it: {refusal:?}");
        jobs.answered("a", Outcome::Gone, now);
        assert_eq!(jobs.due(now), ["db-0"]);
        let asked = jobs.launch("db-0").unwrap();
        assert!(!asked.bypass, "its own budget may allow it");
        jobs.answered("db-0", refusal, now);
        assert!(!jobs.records()[1].past_budget);
        assert_eq!(jobs.due(now), ["db-0"], "a budget that may be passed is not waited for");
        assert!(jobs.launch("db-0").unwrap().bypass);
    }
}

#[test]
fn what_anything_but_a_budget_refuses_is_not_deleted_past_the_deadline() {
    let now = Instant::now();
    let no = || Outcome::Denied { wait: None, why: "the admission webhook evict.example.com says no".into() };
    for answers in [vec![no()], vec![budget(), no()], vec![Outcome::Again { wait: None, why: "x".into() }], vec![Outcome::Unsent]] {
        let mut jobs = jobs(&["a"], &[], now);
        for answer in &answers {
            jobs.launch("a").unwrap();
            jobs.answered("a", answer.clone(), now);
        }
        jobs.bypass(now);
        assert!(!jobs.launch("a").unwrap().bypass, "after {answers:?}");
        jobs.answered("a", no(), now);
        assert!(!jobs.launch("a").unwrap().bypass, "after {answers:?}");
        jobs.answered("a", budget(), now);
        assert!(jobs.launch("a").unwrap().bypass, "a budget alone is in its way now");
        jobs.answered("a", no(), now);
        assert!(jobs.launch("a").unwrap().bypass, "what is said to a delete is no word on its eviction");
    }
}

#[test]
fn a_pod_that_waits_for_completion_holds_up_no_stateful_one_before_the_deadline_or_after_it() {
    let now = Instant::now();
    let plan = Plan {
        stateless: vec![Planned { after_completion: true, ..planned("a") }, planned("b")],
        stateful: vec![Planned { after_completion: true, ..planned("db-0") }, planned("db-1"), planned("db-2")],
        ..Plan::default()
    };
    let mut jobs = Jobs::new(&plan, Duration::from_secs(60), now);
    assert_eq!(jobs.due(now), ["b"]);
    jobs.launch("b").unwrap();
    jobs.answered("b", Outcome::Gone, now);
    assert_eq!(jobs.due(now), ["db-1"]);
    jobs.launch("db-1").unwrap();
    assert!(jobs.due(now).is_empty(), "one by one");
    jobs.end_patience(now);
    assert_eq!(jobs.due(now), ["a"], "a stateful one is on its way");
    jobs.launch("a").unwrap();
    jobs.answered("a", budget(), now);
    jobs.answered("db-1", Outcome::Gone, now);
    assert_eq!(jobs.due(now), ["db-0"], "a budget holds back what was let finish, and nobody behind it");
    jobs.launch("db-0").unwrap();
    jobs.answered("db-0", Outcome::Gone, now);
    assert_eq!(jobs.due(now), ["db-2"]);
}

#[test]
fn those_on_their_way_out_are_given_their_grace_once_nobody_is_to_be_asked_for() {
    let now = Instant::now();
    let mut jobs = jobs(&["a", "b"], &[], now);
    for uid in ["a", "b"] {
        jobs.launch(uid).unwrap();
    }
    jobs.answered("a", Outcome::Accepted, now);
    assert_eq!(jobs.last_gone_by(), None, "b may be refused yet");
    jobs.answered("b", budget(), now);
    assert_eq!(jobs.last_gone_by(), None);
    jobs.answered("b", Outcome::Accepted, now);
    jobs.by_uid.get_mut("b").unwrap().go();
    assert_eq!(jobs.last_gone_by(), Some(now + Duration::from_secs(30) + GRACE_SLACK));
}

#[test]
fn a_pod_that_finished_in_its_time_is_not_asked_for_at_the_deadline() {
    let now = Instant::now();
    let plan = Plan { stateless: vec![Planned { after_completion: true, ..planned("a") }], ..Plan::default() };
    let mut jobs = Jobs::new(&plan, Duration::from_secs(60), now);
    jobs.by_uid.get_mut("a").unwrap().go();
    assert!(!jobs.end_patience(now));
    assert!(jobs.settled());
}

#[test]
fn attempts_without_an_answer_are_told_from_the_third_on() {
    let now = Instant::now();
    let mut jobs = jobs(&["a"], &[], now);
    let silence = || Outcome::Again { wait: None, why: "Timeout: the server could not decide".into() };
    let told: Vec<_> = (0..4)
        .map(|_| {
            jobs.launch("a").unwrap();
            jobs.answered("a", silence(), now)
        })
        .collect();
    let words = "pod ml/a cannot be evicted yet: Timeout: the server could not decide".to_owned();
    assert_eq!(told, [None, None, Some((Hold::Server, words)), None]);
    assert_eq!(jobs.records()[0].state, "blocked");
}

#[test]
fn a_new_pod_counts_once_however_many_events_tell_of_it_and_is_not_evicted() {
    let now = Instant::now();
    let owner = json!([{"apiVersion": "v1", "kind": "CloneSet", "name": "web", "uid": "o1", "controller": true}]);
    let pod = |name: &str, owner: &Value, phase: &str| -> Value {
        let metadata = json!({"namespace": "ml", "name": name, "uid": name, "ownerReferences": owner});
        json!({"metadata": metadata, "status": {"phase": phase}})
    };
    let drained = Planned { pod: facts_of(&pod("a", &owner, "Running")).unwrap(), after_completion: false };
    let mut jobs = Jobs::new(&Plan { stateless: vec![drained], ..Plan::default() }, Duration::from_secs(60), now);
    for phase in ["Pending", "Pending", "Running"] {
        jobs.seen(is(pod("b", &owner, phase)), now);
    }
    let other = json!([{"apiVersion": "v1", "kind": "CloneSet", "name": "other", "uid": "o2", "controller": true}]);
    jobs.seen(is(pod("c", &other, "Running")), now);
    assert_eq!(jobs.returned(), "1 new pod of CloneSet ml/web");
    assert_eq!(jobs.due(now), ["a"]);
    let states: Vec<_> = jobs.records().into_iter().map(|record| (record.name, record.state)).collect();
    assert_eq!(states, [("a".to_owned(), "waiting".to_owned()), ("b".to_owned(), "skipped".to_owned())]);
}

#[test]
fn a_pod_that_the_plan_leaves_has_not_come_back_though_its_owner_is_drained() {
    let now = Instant::now();
    let owner = json!([{"apiVersion": "v1", "kind": "CloneSet", "name": "web", "uid": "o1", "controller": true}]);
    let pod = |name: &str| -> Value {
        let metadata = json!({"namespace": "ml", "name": name, "uid": name, "ownerReferences": owner});
        json!({"metadata": metadata, "status": {"phase": "Running"}})
    };
    let facts = |name: &str| facts_of(&pod(name)).unwrap();
    let left = Skipped { pod: facts("b"), why: "uses another GPU".to_owned(), holds_gpu: false };
    let drained = Planned { pod: facts("a"), after_completion: false };
    let plan = Plan { stateless: vec![drained], skipped: vec![left], ..Plan::default() };
    let mut jobs = Jobs::new(&plan, Duration::from_secs(60), now);
    jobs.seen(is(pod("b")), now);
    assert_eq!(jobs.returned(), "");
    jobs.seen(is(pod("c")), now);
    assert_eq!(jobs.returned(), "1 new pod of CloneSet ml/web");
}

#[test]
fn a_pod_that_a_budget_holds_back_stays_blocked_while_it_is_asked_again() {
    let now = Instant::now();
    let mut jobs = jobs(&["a"], &[], now);
    jobs.launch("a").unwrap();
    assert_eq!(jobs.records()[0].state, "evicting");
    jobs.answered("a", budget(), now);
    for answer in [budget(), Outcome::Throttled { wait: None }, Outcome::Again { wait: None, why: String::new() }, Outcome::Doubt] {
        jobs.launch("a").unwrap();
        let asked = jobs.records().remove(0);
        assert_eq!((asked.state.as_str(), asked.reason.contains("budget web")), ("blocked", true), "before {answer:?}");
        jobs.answered("a", answer, now);
        assert_eq!(jobs.records()[0].state, "blocked");
    }
    jobs.launch("a").unwrap();
    jobs.answered("a", Outcome::Accepted, now);
    assert_eq!((jobs.records()[0].state.as_str(), jobs.records()[0].reason.as_str()), ("evicting", ""));
}

#[test]
fn what_is_being_asked_for_at_the_deadline_is_passed_too_once_it_is_refused() {
    let now = Instant::now();
    let mut jobs = jobs(&["a"], &[], now);
    for _ in 0..6 {
        jobs.launch("a").unwrap();
        jobs.answered("a", budget(), now);
    }
    jobs.launch("a").unwrap();
    jobs.bypass(now);
    jobs.answered("a", budget(), now);
    let soon = now + Duration::from_secs(1);
    assert_eq!(jobs.due(soon), ["a"], "the attempts before the deadline count no longer");
    assert!(jobs.launch("a").unwrap().bypass);
}

#[test]
fn an_owner_whose_uid_is_none_is_left_out_of_the_record_of_its_pod() {
    let recorded = |uid: &str| {
        let owner = json!([{"apiVersion": "v1", "kind": "CloneSet", "name": "web", "uid": uid, "controller": true}]);
        let metadata = json!({"namespace": "ml", "name": "a", "uid": "a", "ownerReferences": owner});
        let pod = json!({"metadata": metadata, "spec": {"containers": []}});
        planned_record(&facts_of(&pod).unwrap()).owner_uid
    };
    let uid = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";
    assert_eq!(recorded(uid), uid);
    assert_eq!(recorded(&"x".repeat(64)).len(), 64);
    for none in ["x".repeat(65), "x".repeat(300), "a b".to_owned(), "a\nb".to_owned(), "ü".to_owned()] {
        assert_eq!(recorded(&none), "", "{none}");
    }
}

#[test]
fn only_a_delete_past_the_budgets_that_took_place_or_may_have_counts_as_one() {
    let now = Instant::now();
    let mut jobs = jobs(&["evicted", "deleted", "kept", "gone", "doubted"], &[], now);
    for uid in ["deleted", "kept", "gone", "doubted"] {
        jobs.launch(uid).unwrap();
        jobs.answered(uid, budget(), now);
    }
    jobs.launch("evicted").unwrap();
    jobs.bypass(now);
    jobs.answered("evicted", Outcome::Accepted, now);
    for (uid, outcome) in [
        ("deleted", Outcome::Accepted),
        ("kept", Outcome::Denied { wait: None, why: "no".into() }),
        ("gone", Outcome::Gone),
        ("doubted", Outcome::Doubt),
    ] {
        assert!(jobs.launch(uid).unwrap().bypass);
        jobs.answered(uid, outcome, now);
    }
    jobs.launch("doubted").unwrap();
    jobs.answered("doubted", Outcome::Gone, now);
    let past: Vec<String> = jobs.records().into_iter().filter(|record| record.past_budget).map(|record| record.name).collect();
    assert_eq!(past, ["deleted", "doubted"]);
    let told: Vec<String> = jobs.past_budgets().into_iter().map(|(pod, _)| pod.name).collect();
    assert_eq!(told, ["deleted", "doubted"]);
    let before = jobs.records();
    let mut next = self::jobs(&["deleted"], &[], now);
    next.recall(&before);
    assert!(next.records()[0].past_budget, "whoever takes the drain up knows");
}
