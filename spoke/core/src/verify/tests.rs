use std::collections::BTreeMap;

use gpuheal_proto::{
    command::Step,
    envelope::{CANCEL_TYPE, COMMAND_TYPE},
    ids::FaultKey,
    kubernetes::{
        ANNOTATION_LAST_PROCESS_TIME, ANNOTATION_PLAN_REVISION, ANNOTATION_PROCESS_ID, LABEL_OPT_OUT, LABEL_STATUS, STATUS_FAULTY,
    },
};
use serde_json::json;

use super::{testing::*, *};
use crate::{
    ceiling::{self, Config, Out},
    mark::NodeFacts,
};

fn cluster() -> ClusterId {
    ClusterId::parse("c1").unwrap()
}

fn refusal<T>(result: Result<T, Refused>) -> Refusal {
    result.err().expect("must be refused").refusal
}

fn authentic(command: &Command) -> Envelope<Authentic> {
    Envelope::received(signed(command)).authenticate(&trust(), &cluster()).unwrap()
}

const fn now(at: Timestamp) -> Option<HubNow> {
    Some(HubNow { at, uncertainty: Duration::from_millis(5) })
}

const fn held() -> Held {
    Held { known: Known::No, fence: Fence { key_epoch: 2, hub_term: 3, trust_version: 1 }, now: now(T0) }
}

/// The cluster, to be spoilt by each test in one place.
struct World {
    node: Option<NodeFacts>,
    standing: BTreeMap<FaultKey, Standing>,
    margin: Option<Duration>,
    config: Config,
    out: Out,
    at_work: Option<u64>,
}

impl World {
    fn sound() -> Self {
        // Marked by an earlier command, as a drain without a mark of its own assumes.
        let labels = json!({ LABEL_STATUS: STATUS_FAULTY });
        let metadata = json!({"name": "n1", "uid": "u1", "resourceVersion": "1", "labels": labels, "annotations": {}});
        let node = json!({"metadata": metadata, "spec": {}});
        Self {
            node: Some(NodeFacts::from_json(&node).unwrap()),
            standing: BTreeMap::new(),
            margin: Some(Duration::from_secs(12)),
            config: Config::default(),
            out: Out { others: 0, gpu_nodes: 4, target: false },
            at_work: None,
        }
    }

    fn label(mut self, key: &str, value: &str) -> Self {
        self.node.as_mut().unwrap().labels.as_mut().unwrap().insert(key.into(), value.into());
        self
    }

    fn annotate(mut self, key: &str, value: &str) -> Self {
        self.node.as_mut().unwrap().annotations.as_mut().unwrap().insert(key.into(), value.into());
        self
    }

    fn admit(&self, command: &Command) -> Result<Envelope<Verified>, Refused> {
        self.admit_known(command, Known::No)
    }

    fn admit_known(&self, command: &Command, known: Known) -> Result<Envelope<Verified>, Refused> {
        let live = Live {
            node: self.node.as_ref(),
            standing: &self.standing,
            margin: self.margin,
            config: &self.config,
            out: self.out,
            at_work: self.at_work,
            now: T0,
        };
        authentic(command).timely(&Held { known, ..held() }).unwrap().admit(&live)
    }
}

#[test]
fn a_sound_command_passes_every_check() {
    let command = command(vec![mark(), drain()]);
    let verified = World::sound().admit(&command).unwrap();
    assert_eq!(verified.command(), &command);
    assert_eq!(verified.bytes(), signed(&command));
    assert!(verified.notes().is_empty());
}

#[test]
fn bytes_over_the_limit_are_refused_before_their_signature_is_looked_at() {
    let bytes = vec![0; limits::ENVELOPE_BYTES_MAX + 1];
    assert_eq!(refusal(Envelope::received(bytes).authenticate(&trust(), &cluster())), Refusal::TooLarge);
}

#[test]
fn a_key_that_is_not_trusted_signs_nothing() {
    let payload = v1::CommandBody::from(&command(vec![mark()])).encode_to_vec();
    let forged = seal(&key(9), COMMAND_TYPE, payload);
    assert_eq!(refusal(Envelope::received(forged).authenticate(&trust(), &cluster())), Refusal::BadSignature);
}

#[test]
fn one_changed_bit_breaks_the_signature() {
    let good = signed(&command(vec![mark()]));
    let envelope = v1::Envelope::decode(good.as_slice()).unwrap();
    let mut payload = envelope.payload.to_vec();
    for at in [0, payload.len() / 2, payload.len() - 1] {
        payload[at] ^= 1;
        let forged = v1::Envelope { payload: payload.clone().into(), ..envelope.clone() }.encode_to_vec();
        assert_eq!(refusal(Envelope::received(forged).authenticate(&trust(), &cluster())), Refusal::BadSignature, "byte {at}");
        payload[at] ^= 1;
    }
}

#[test]
fn a_cancellation_is_not_a_command_and_the_reverse() {
    let payload = v1::CommandBody::from(&command(vec![mark()])).encode_to_vec();
    let other = seal(&key(1), CANCEL_TYPE, payload);
    assert_eq!(refusal(Envelope::received(other).authenticate(&trust(), &cluster())), Refusal::WrongType);
    let fence = Fence::default();
    assert_eq!(refusal(cancel(&signed(&command(vec![mark()])), &trust(), &cluster(), fence)), Refusal::WrongType);
}

#[test]
fn a_type_swapped_under_the_signature_does_not_verify() {
    let mut envelope = v1::Envelope::decode(signed(&command(vec![mark()])).as_slice()).unwrap();
    envelope.payload_type = CANCEL_TYPE.into();
    assert_eq!(refusal(cancel(&envelope.encode_to_vec(), &trust(), &cluster(), Fence::default())), Refusal::BadSignature);
}

#[test]
fn signed_bytes_that_are_no_command_are_malformed_and_an_unknown_step_is_unsupported() {
    let junk = seal(&key(1), COMMAND_TYPE, vec![0xff; 9]);
    assert_eq!(refusal(Envelope::received(junk).authenticate(&trust(), &cluster())), Refusal::Malformed);
    let mut body = v1::CommandBody::from(&command(vec![mark()]));
    body.steps[0] = v1::Step { step: None };
    let newer = seal(&key(1), COMMAND_TYPE, body.encode_to_vec());
    assert_eq!(refusal(Envelope::received(newer).authenticate(&trust(), &cluster())), Refusal::Unsupported);
}

#[test]
fn a_command_for_another_cluster_is_refused() {
    let elsewhere = ClusterId::parse("c2").unwrap();
    let refused = Envelope::received(signed(&command(vec![mark()]))).authenticate(&trust(), &elsewhere).unwrap_err();
    assert_eq!(refused.refusal, Refusal::WrongAudience);
    assert_eq!(refused.reason, "for cluster c1, this is c2");
    assert_eq!(
        refused.command.map(|command| command.id),
        Some(command(vec![mark()]).id),
        "its signature holds: a tombstone can name it"
    );
}

#[test]
fn a_final_action_answers_for_ever_before_time_is_looked_at() {
    let late = Held { known: Known::Final, now: now(T0.after(Duration::from_secs(9_999))), ..held() };
    assert_eq!(refusal(authentic(&command(vec![mark()])).timely(&late)), Refusal::Replayed);
}

/// Failure table, row 31.
#[test]
fn what_an_older_database_or_older_keys_signed_is_refused_before_time_is_looked_at() {
    let fence = Fence { key_epoch: 3, hub_term: 4, trust_version: 1 };
    let held = Held { fence, now: None, ..held() };
    assert_eq!(refusal(authentic(&command(vec![mark()])).timely(&held)), Refusal::StaleKeyEpoch);
    let held = Held { fence: Fence { key_epoch: 2, ..fence }, ..held };
    let refused = authentic(&command(vec![mark()])).timely(&held).unwrap_err();
    assert_eq!(refused, Refused::new(Refusal::StaleHubTerm, "hub term 3, 4 was seen"));
}

#[test]
fn the_fence_rises_and_never_falls() {
    let command = command(vec![mark()]);
    let fence = Fence { key_epoch: 1, hub_term: 9, trust_version: 1 };
    assert_eq!(fence.raised_by(&command, 1), Some(Fence { key_epoch: 2, hub_term: 9, trust_version: 1 }));
    assert_eq!(held().fence.raised_by(&command, 1), None);
}

#[test]
fn a_command_that_may_be_late_by_the_clocks_uncertainty_is_expired() {
    let command = command(vec![mark()]);
    let at = |before_ms, uncertainty_ms| Held {
        now: Some(HubNow {
            at: command.times.start_by.before(Duration::from_millis(before_ms)),
            uncertainty: Duration::from_millis(uncertainty_ms),
        }),
        ..held()
    };
    assert!(authentic(&command).timely(&at(100, 100)).is_ok());
    assert_eq!(refusal(authentic(&command).timely(&at(100, 101))), Refusal::Expired);
}

#[test]
fn an_uncertain_clock_says_not_now() {
    for now in [None, Some(HubNow { at: T0, uncertainty: Duration::from_secs(31) })] {
        let refused = refusal(authentic(&command(vec![mark()])).timely(&Held { now, ..held() }));
        assert_eq!(refused, Refusal::ClockUncertain);
        assert!(refused.not_now());
    }
}

#[test]
fn a_resumed_command_is_held_to_finish_by_instead_of_start_by() {
    let command = command(vec![mark()]);
    let between = now(command.times.start_by.after(Duration::from_secs(60)));
    assert!(authentic(&command).timely(&Held { known: Known::Open { begun: true }, now: between, ..held() }).is_ok());
    let early = Held { known: Known::Open { begun: false }, now: between, ..held() };
    assert_eq!(refusal(authentic(&command).timely(&early)), Refusal::Expired, "nothing has happened yet");
    let past = now(command.times.finish_by.after(Duration::from_secs(1)));
    assert_eq!(
        refusal(authentic(&command).timely(&Held { known: Known::Open { begun: true }, now: past, ..held() })),
        Refusal::Expired
    );
}

#[test]
fn a_plan_revision_that_the_node_has_passed_is_superseded_for_releases_too() {
    let world = World::sound().annotate(ANNOTATION_PLAN_REVISION, "6");
    for steps in [vec![mark()], vec![drain()], vec![release_step()]] {
        let refused = world.admit(&command(steps)).unwrap_err();
        assert_eq!(refused, Refused::new(Refusal::Superseded, "plan revision 5, node n1 carries 6"));
    }
}

#[test]
fn an_equal_plan_revision_passes_only_when_it_is_the_commands_own() {
    let world = World::sound().annotate(ANNOTATION_PLAN_REVISION, "5");
    assert_eq!(refusal(world.admit(&command(vec![mark()]))), Refusal::Superseded);
    assert!(world.admit_known(&command(vec![mark()]), Known::Open { begun: false }).is_ok());
    assert!(world.admit(&command(vec![drain()])).is_ok(), "it writes nothing to the node");
}

#[test]
fn beside_another_command_at_work_on_its_node_only_a_higher_plan_revision_passes() {
    let beside = |at_work| World { at_work: Some(at_work), ..World::sound() };
    for known in [Known::No, Known::Open { begun: true }] {
        for steps in [vec![mark()], vec![drain()], vec![release_step()]] {
            assert!(beside(4).admit_known(&command(steps.clone()), known).is_ok());
            assert_eq!(refusal(beside(5).admit_known(&command(steps.clone()), known)), Refusal::Superseded, "{known:?} {steps:?}");
            assert_eq!(refusal(beside(6).admit_known(&command(steps), known)), Refusal::Superseded);
        }
        assert!(beside(6).admit_known(&command(vec![Step::Notify { message: "seen".into() }]), known).is_ok());
    }
}

#[test]
fn without_the_lease_or_too_near_its_end_the_answer_is_not_now() {
    for (margin, want) in [(None, Refusal::NotLeader), (Some(Duration::from_secs(3)), Refusal::LeaseMargin)] {
        let refused = refusal(World { margin, ..World::sound() }.admit(&command(vec![release_step()])));
        assert_eq!(refused, want);
        assert!(refused.not_now());
    }
}

#[test]
fn another_machine_under_the_nodes_name_is_not_the_target() {
    let mut world = World::sound();
    world.node.as_mut().unwrap().uid = "u2".into();
    assert_eq!(refusal(world.admit(&command(vec![release_step()]))), Refusal::NodeGone);
    world.node = None;
    assert_eq!(refusal(world.admit(&command(vec![mark()]))), Refusal::NodeGone);
}

#[test]
fn a_fault_that_its_own_fresh_source_cleared_is_not_acted_on() {
    let command = command(vec![mark()]);
    let standing = |standing| BTreeMap::from([(command.fault_keys[0], standing)]);
    let world = |standing| World { standing, ..World::sound() };
    assert_eq!(refusal(world(standing(Standing::Cleared)).admit(&command)), Refusal::FaultCleared);
    assert!(world(standing(Standing::Unknown)).admit(&command).is_ok(), "silence is not health");
    assert!(world(standing(Standing::Present)).admit(&command).is_ok());
}

#[test]
fn an_opted_out_node_is_left_alone_and_false_is_no_opt_out() {
    assert_eq!(refusal(World::sound().label(LABEL_OPT_OUT, "").admit(&command(vec![mark()]))), Refusal::OptedOut);
    assert!(World::sound().label(LABEL_OPT_OUT, "false").admit(&command(vec![mark()])).is_ok());
    assert!(World::sound().label(LABEL_OPT_OUT, "true").admit(&command(vec![notify()])).is_ok(), "an Event harms nobody");
}

fn cooling(incident: &str, ago: Duration) -> World {
    World::sound().annotate(ANNOTATION_PROCESS_ID, incident).annotate(ANNOTATION_LAST_PROCESS_TIME, &T0.before(ago).to_string())
}

#[test]
fn another_incidents_cooldown_blocks_its_own_does_not() {
    let mut command = command(vec![mark()]);
    let world = cooling("another", Duration::from_secs(60));
    let refused = world.admit(&command).unwrap_err();
    assert_eq!(refused.refusal, Refusal::Cooldown);
    assert_eq!(refused.reason, "incident another acted on node n1 1 min ago, the cooldown is 15 min");
    assert!(cooling("another", Duration::from_secs(900)).admit(&command).is_ok(), "it has run out");
    assert!(cooling(&command.incident.to_string(), Duration::ZERO).admit(&command).is_ok(), "its own");
    command.ignore_cooldown = true;
    assert!(world.admit(&command).is_ok(), "a signed waiver");
}

#[test]
fn a_malformed_annotation_is_noted_and_does_not_block() {
    let world = World::sound()
        .annotate(ANNOTATION_PROCESS_ID, "x")
        .annotate(ANNOTATION_LAST_PROCESS_TIME, "yesterday")
        .annotate(ANNOTATION_PLAN_REVISION, "many");
    let verified = world.admit(&command(vec![mark()])).unwrap();
    assert_eq!(verified.notes().len(), 2, "{:?}", verified.notes());
}

#[test]
fn a_node_that_somebody_else_is_at_work_on_is_left_to_them() {
    for (key, value) in
        [("nvidia.com/gpu-driver-upgrade-state", "drain-required"), ("remediation.medik8s.io/exclude-from-remediation", "true")]
    {
        let refused = World::sound().label(key, value).admit(&command(vec![mark()])).unwrap_err();
        assert_eq!(refused, Refused::new(Refusal::ForeignMarker, format!("node n1 carries {key}={value}")));
    }
    assert!(World::sound().label("nvidia.com/gpu-driver-upgrade-state", "upgrade-done").admit(&command(vec![mark()])).is_ok());
}

#[test]
fn a_drain_that_marks_nothing_itself_begins_only_where_something_keeps_new_pods_off() {
    let bare = || {
        let mut world = World::sound();
        world.node.as_mut().unwrap().labels = None;
        world
    };
    let refused = bare().admit(&command(vec![notify(), drain()])).unwrap_err();
    assert_eq!(refused.refusal, Refusal::Unmarked, "{}", refused.reason);
    assert!(bare().admit(&command(vec![mark(), drain()])).is_ok(), "it marks first");
    let resumed = bare().admit_known(&command(vec![drain()]), Known::Open { begun: true });
    assert!(resumed.is_ok(), "whoever goes on with it finds out who took the mark away");
    let mut tainted = bare();
    tainted.node.as_mut().unwrap().taints = vec![crate::mark::taint()];
    assert!(tainted.admit(&command(vec![drain()])).is_ok());
    let mut cordoned = bare();
    cordoned.node.as_mut().unwrap().unschedulable = Some(true);
    assert!(cordoned.admit(&command(vec![drain()])).is_ok(), "by whomever");
}

#[test]
fn a_release_needs_only_uid_and_plan_revision() {
    let mut world =
        cooling("another", Duration::ZERO).label(LABEL_OPT_OUT, "true").label("nvidia.com/gpu-driver-upgrade-state", "x");
    world.config = ceiling::parse("ceiling: {stop: true, nodesOut: 0}").unwrap();
    let mut command = command(vec![release_step()]);
    world.standing.insert(command.fault_keys[0], Standing::Cleared);
    assert!(world.admit(&command).is_ok());
    command.steps.push(Step::Notify { message: "released".into() });
    assert!(world.admit(&command).is_ok());
}

#[test]
fn the_ceiling_is_asked_last() {
    let mut world = World::sound();
    world.config = ceiling::parse("ceiling: {nodesOut: 1}").unwrap();
    world.out = Out { others: 1, gpu_nodes: 4, target: false };
    assert_eq!(refusal(world.admit(&command(vec![mark()]))), Refusal::OverCeiling);
    assert_eq!(refusal(world.label(LABEL_OPT_OUT, "true").admit(&command(vec![mark()]))), Refusal::OptedOut);
}

#[test]
fn a_cancellation_names_its_command_and_an_older_databases_is_refused() {
    let body = v1::CancelBody {
        command_id: command(vec![mark()]).id.to_string(),
        audience: "c1".into(),
        hub_term: 3,
        reason: "approval withdrawn".into(),
        created_unix_ms: T0.unix_ms(),
    };
    let bytes = seal(&key(1), CANCEL_TYPE, body.encode_to_vec());
    let parsed = cancel(&bytes, &trust(), &cluster(), Fence::default()).unwrap();
    assert_eq!((parsed.command, parsed.reason.as_str()), (command(vec![mark()]).id, "approval withdrawn"));
    assert_eq!(refusal(cancel(&bytes, &trust(), &cluster(), Fence { hub_term: 4, ..Fence::default() })), Refusal::StaleHubTerm);
}

#[test]
fn a_bundle_with_a_weak_repeated_broken_or_no_key_is_refused() {
    let good = key(1).verifying_key().to_bytes();
    // The neutral point of the curve: every signature by it would verify in the lax mode.
    let mut weak = [0; 32];
    weak[0] = 1;
    for (json, why) in [
        (trust_json(&[]), "none"),
        (trust_json(&[good, good]), "twice"),
        (trust_json(&[weak]), "weak"),
        (b"{\"version\": 1}".to_vec(), "no keys at all"),
        (b"not json".to_vec(), "junk"),
    ] {
        assert!(Trust::parse(&json).is_err(), "{why}");
    }
    assert!(Trust::parse(&trust_json(&[good])).is_ok());
}
