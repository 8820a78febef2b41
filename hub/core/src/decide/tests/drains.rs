//! Whose users are drained: of each GPU that fails, once each, and the whole node's where nobody can say which GPU it is.

use gpuheal_proto::{fault::GpuRef, ids::GpuUuid};

use super::*;

const A: u8 = 0x5d;
const B: u8 = 0x5e;

fn lost(on: Option<GpuRef>) -> KnownFault {
    fault_on(on, FaultClass::Xid, "79", Witness::KernelLine, Onset::Edge)
}

fn named(uuid: &str) -> GpuRef {
    GpuRef { slot: None, uuid: GpuUuid::parse(uuid).ok(), model: String::new() }
}

/// The GPU of each drain that is asked for.
fn asked(story: &Snapshot) -> Vec<Option<GpuRef>> {
    let decision = decide(story, &policy(Mode::Heal), now());
    let drains = decision.commands.into_iter().filter(|command| command.steps.iter().any(|step| step.name() == "drain"));
    drains.map(|command| command.gpu).collect()
}

/// A node that we have marked, with drains of these GPUs that went so.
fn drained(faults: Vec<KnownFault>, drains: &[(Option<GpuRef>, CommandState)]) -> Snapshot {
    let mut story = quarantined(faults);
    story.commands = drains
        .iter()
        .enumerate()
        .map(|(at, (gpu, state))| {
            let steps: &[&str] = if at == 0 { &["mark", "drain"] } else { &["drain"] };
            let mut command = KnownCommand { gpu: gpu.clone(), ..command(Action::Evict, steps, *state) };
            if at == 0 && *state != CommandState::Succeeded {
                command.steps_done = vec!["mark".into()];
            }
            command
        })
        .collect();
    story
}

#[test]
fn the_users_of_the_gpu_at_fault_are_drained_and_the_command_is_for_its_faults_alone() {
    let warm = fault_on(Some(gpu(B)), FaultClass::Thermal, "warn", Witness::ExporterGauge, Onset::Edge);
    let story = snapshot(vec![xid79(), KnownFault { first_at: at(-900), ..warm }]);
    let careful = but_heal(Mode::Mark, &["xid"]);
    let decision = decide(&story, &careful, now());
    let [command] = &*decision.commands else { panic!("{decision:?}") };
    assert_eq!((command.gpu.clone(), &command.fault_keys), (Some(gpu(A)), &vec![xid79().key]));
    assert!(command.reason.starts_with("xid 79 on GPU 0000:5d:00: "), "{}", command.reason);
    let told = "drains the users of GPU 0000:5d:00 alone";
    assert!(decision.reasons.iter().any(|reason| reason == told), "{:?}", decision.reasons);
}

#[test]
fn a_second_gpu_that_fails_has_a_drain_of_its_own_and_the_first_is_not_drained_again() {
    let (a, b) = (gpu(A), gpu(B));
    let done = (Some(a.clone()), CommandState::Succeeded);
    assert_eq!(asked(&drained(vec![lost(Some(a.clone()))], std::slice::from_ref(&done))), []);
    let both = vec![lost(Some(a.clone())), lost(Some(b.clone()))];
    let story = drained(both.clone(), std::slice::from_ref(&done));
    assert_eq!(asked(&story), [Some(b.clone())]);
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!((&decision.commands[0].fault_keys, state(&decision)), (&vec![both[1].key], IncidentState::Draining));
    assert_eq!(asked(&drained(both.clone(), &[done.clone(), (Some(b.clone()), CommandState::Dispatched)])), []);
    assert_eq!(asked(&drained(both.clone(), &[done.clone(), (Some(b.clone()), CommandState::Succeeded)])), []);
    let whole = (None, CommandState::Succeeded);
    assert_eq!(asked(&drained(both, &[whole])), [], "a drain of the whole node covers them all");
}

#[test]
fn gpus_that_are_ill_at_once_are_drained_one_after_the_other_the_worst_first() {
    let (a, b) = (gpu(A), gpu(B));
    let hot = fault_on(Some(b.clone()), FaultClass::Thermal, "warn", Witness::ExporterGauge, Onset::Edge);
    let both = vec![KnownFault { first_at: at(-900), ..hot }, lost(Some(a.clone()))];
    let first = decide(&snapshot(both.clone()), &policy(Mode::Heal), now());
    assert_eq!((first.commands.len(), first.commands[0].gpu.clone()), (1, Some(a.clone())));
    assert_eq!(first.commands[0].fault_keys, [both[1].key]);
    assert!(first.reasons.iter().any(|reason| reason.ends_with("those of the other GPUs that are ill come after")), "{first:?}");
    assert_eq!(asked(&drained(both, &[(Some(a), CommandState::Succeeded)])), [Some(b)]);
}

#[test]
fn a_fault_of_the_node_or_of_a_gpu_that_nobody_knows_needs_the_whole_node() {
    let (a, done) = (gpu(A), [(Some(gpu(A)), CommandState::Succeeded)]);
    let strange = GpuRef { slot: Some(slot(0x99)), ..GpuRef::default() };
    for fault in [lost(None), lost(Some(strange)), lost(Some(GpuRef { model: "H100".into(), ..GpuRef::default() }))] {
        assert_eq!(asked(&snapshot(vec![fault.clone()])), [None], "{fault:?}");
        let both = vec![lost(Some(a.clone())), fault.clone()];
        assert_eq!(asked(&snapshot(both.clone())), [None], "{fault:?}");
        assert_eq!(asked(&drained(both, &done)), [None], "what was drained for one GPU does not cover it: {fault:?}");
        let decision = decide(&snapshot(vec![fault]), &policy(Mode::Heal), now());
        assert!(decision.reasons.iter().any(|reason| reason.starts_with("drains the whole node: xid 79")), "{decision:?}");
    }
}

#[test]
fn a_fault_that_names_a_slot_alone_is_of_the_gpu_that_the_node_shows_there() {
    let by_slot = |bus| lost(Some(GpuRef { uuid: None, ..gpu(bus) }));
    assert_eq!(asked(&snapshot(vec![by_slot(A)])), [Some(gpu(A))]);
    let mut story = drained(vec![by_slot(A), by_slot(B)], &[(Some(gpu(A)), CommandState::Succeeded)]);
    assert_eq!(asked(&story), [Some(gpu(B))]);
    // It has fallen off the bus since: what was drained stays drained.
    story.node.gpus.retain(|shown| *shown != gpu(A));
    assert_eq!(asked(&story), [Some(gpu(B))]);
}

#[test]
fn gpus_without_a_slot_are_told_apart_by_their_uuid() {
    let both = vec![lost(Some(named("GPU-1"))), lost(Some(named("GPU-2")))];
    assert_ne!(both[0].key, both[1].key);
    assert_eq!(asked(&snapshot(both[..1].to_vec())), [Some(named("GPU-1"))]);
    assert_eq!(asked(&drained(both.clone(), &[(Some(named("GPU-1")), CommandState::Succeeded)])), [Some(named("GPU-2"))]);
    let mark = decide(&snapshot(both), &policy(Mode::Mark), now());
    assert_eq!(mark.commands[0].gpu, None, "a mark for two GPUs is for neither");
}

#[test]
fn a_board_that_was_put_into_a_slot_is_none_of_which_the_users_were_drained() {
    let old = GpuRef { uuid: GpuUuid::parse("GPU-old").ok(), ..gpu(A) };
    assert_eq!(asked(&drained(vec![lost(Some(gpu(A)))], &[(Some(old), CommandState::Succeeded)])), [Some(gpu(A))]);
}

#[test]
fn a_drain_that_failed_calls_a_person_whatever_other_gpus_were_drained() {
    let (a, b) = (gpu(A), gpu(B));
    let both = vec![lost(Some(a.clone())), lost(Some(b.clone()))];
    let story = drained(both, &[(Some(a), CommandState::Failed), (Some(b), CommandState::Succeeded)]);
    assert_eq!((asked(&story), state(&decide(&story, &policy(Mode::Heal), now()))), (vec![], IncidentState::Failed));
}

#[test]
fn a_person_asks_for_the_whole_node_and_what_one_gpu_had_is_no_answer() {
    let mut story = drained(vec![lost(Some(gpu(A)))], &[(Some(gpu(A)), CommandState::Succeeded)]);
    let request = |action| Request {
        id: "r".into(),
        action,
        reason: "it goes to repair".into(),
        caller: "user/x".into(),
        ..request(Action::Evict)
    };
    story.request = Some(request(Action::Evict));
    assert_eq!(asked(&story), [None]);
    story.commands[0].state = CommandState::Started;
    story.commands[0].steps_done = vec!["mark".into()];
    let decision = decide(&story, &policy(Mode::Heal), now());
    let Some(RequestOutcome::Blocked { reason }) = decision.request else { panic!("{decision:?}") };
    assert_eq!(reason, "a command for evict of GPU 0000:5d:00 alone is under way: ask again when it has ended");
    story.request = Some(request(Action::Mark));
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert!(matches!(decision.request, Some(RequestOutcome::AlreadyDone { .. })), "{decision:?}");
}

#[test]
fn gpus_that_the_device_plugin_took_back_are_those_that_are_ill_and_one_more_is_anybodys() {
    let (a, b) = (gpu(A), gpu(B));
    let withheld = |count: u32, code: &str| {
        let fault = fault_on(None, FaultClass::Allocatable, code, Witness::Allocatable, Onset::Edge);
        KnownFault { first_at: at(-900), count, ..fault }
    };
    let done = [(Some(a.clone()), CommandState::Succeeded)];
    let story = |count, code| drained(vec![lost(Some(a.clone())), withheld(count, code)], &done);
    assert_eq!(asked(&story(1, "nvidia.com/gpu")), []);
    assert_eq!(asked(&story(2, "nvidia.com/gpu")), [None], "which the second is nobody says");
    assert_eq!(asked(&story(1, "amd.com/gpu")), [], "what counts GPUs is the spoke's to say");
    assert_eq!(asked(&story(0, "nvidia.com/mig-1g.10gb")), [None], "slices are not counted as GPUs are");
    let mut more = story(1, "nvidia.com/gpu");
    more.node.allocatable_gpus = 0;
    assert_eq!(asked(&more), [None], "the node shows two by now");
    let both = vec![lost(Some(a)), lost(Some(b.clone())), withheld(2, "nvidia.com/gpu")];
    assert_eq!(asked(&drained(both, &done)), [Some(b)], "as many as are ill");
}

#[test]
fn a_gpu_whose_fault_was_over_before_its_drain_began_holds_up_no_other() {
    let (a, b) = (gpu(A), gpu(B));
    let cleared = KnownFault { evidence: Evidence { state: EvidenceState::Clear, since: at(-20) }, ..lost(Some(a.clone())) };
    let mut story = quarantined(vec![cleared, lost(Some(b.clone()))]);
    story.node.mark = None;
    let void = |refusal| KnownCommand {
        gpu: Some(a.clone()),
        refusal: Some(refusal),
        ..command(Action::Evict, &["mark", "drain"], CommandState::Refused)
    };
    story.commands = vec![void(gpuheal_proto::command::Refusal::FaultCleared)];
    assert_eq!(asked(&story), [Some(b)]);
    story.commands = vec![void(gpuheal_proto::command::Refusal::OverCeiling)];
    assert_eq!((asked(&story), state(&decide(&story, &policy(Mode::Heal), now()))), (vec![], IncidentState::Blocked));
}

fn drains(decision: &Decision) -> usize {
    decision.commands.iter().filter(|command| command.steps.iter().any(|step| step.name() == "drain")).count()
}

fn hot(on: Option<GpuRef>) -> KnownFault {
    let fault = fault_on(on, FaultClass::Thermal, "warn", Witness::ExporterGauge, Onset::Edge);
    KnownFault { first_at: at(-900), ..fault }
}

#[test]
fn a_fault_that_waits_for_a_person_neither_starts_nor_widens_the_drain_of_one_that_does_not() {
    let (a, b) = (gpu(A), gpu(B));
    let xids = but_heal(Mode::Approve, &["xid"]);
    let thermal = but_heal(Mode::Approve, &["thermal"]);
    // Whichever is the worse, and where the other names no GPU.
    let cases = [
        (vec![hot(Some(a.clone())), lost(Some(b.clone()))], &xids, 1),
        (vec![lost(Some(a.clone())), hot(Some(b.clone()))], &thermal, 1),
        (vec![lost(None), hot(Some(b.clone()))], &thermal, 1),
    ];
    for (faults, policy, heals) in cases {
        let decision = decide(&snapshot(faults.clone()), policy, now());
        let [command] = &*decision.commands else { panic!("{decision:?}") };
        assert_eq!((command.gpu.as_ref(), &command.fault_keys), (Some(&b), &vec![faults[heals].key]), "{faults:?}");
        let after = decide(&drained(faults, &[(Some(b.clone()), CommandState::Succeeded)]), policy, now());
        assert_eq!((drains(&after), state(&after)), (0, IncidentState::AwaitingApproval), "{after:?}");
    }
    let whole = vec![lost(Some(a)), hot(None)];
    let decision = decide(&snapshot(whole.clone()), &thermal, now());
    assert_eq!((decision.commands[0].gpu.clone(), &decision.commands[0].fault_keys), (None, &vec![whole[1].key]));
}

#[test]
fn a_drain_that_failed_keeps_no_other_gpus_users_waiting() {
    let (a, b) = (gpu(A), gpu(B));
    let both = vec![lost(Some(a.clone())), lost(Some(b.clone()))];
    for ended in [CommandState::Failed, CommandState::Unknown] {
        assert_eq!(asked(&drained(both.clone(), &[(Some(a.clone()), ended)])), [Some(b.clone())]);
        assert_eq!(asked(&drained(both.clone(), &[(None, ended)])), [], "the whole node's trouble is theirs too");
        let more = [both.clone(), vec![hot(None)]].concat();
        assert_eq!(asked(&drained(more.clone(), &[(Some(a.clone()), ended)])), [Some(b.clone())]);
        let story = drained(more, &[(Some(a.clone()), ended), (Some(b.clone()), CommandState::Succeeded)]);
        assert_eq!((asked(&story), state(&decide(&story, &policy(Mode::Heal), now()))), (vec![], IncidentState::Failed));
    }
    let story = drained(both, &[(Some(a), CommandState::Failed)]);
    let decision = decide(&story, &policy(Mode::Approve), now());
    assert_eq!((drains(&decision), state(&decision)), (0, IncidentState::Failed), "that one waits itself");
}

#[test]
fn a_fault_that_joins_a_failed_incident_and_would_be_drained_for_pages_once_more() {
    let (a, b) = (gpu(A), gpu(B));
    let both = vec![lost(Some(a.clone())), lost(Some(b))];
    let mut story = drained(both.clone(), &[(Some(a), CommandState::Failed)]);
    let incident = story.incident.as_mut().unwrap();
    incident.state = IncidentState::Failed;
    (incident.fault_keys, incident.asked_keys) = (vec![both[0].key], vec![both[0].key]);
    let pages = |story: &Snapshot| {
        let notices = decide(story, &policy(Mode::Approve), now()).notify;
        notices.iter().filter(|notice| notice.urgency == Urgency::Page && notice.text.starts_with("drain failed")).count()
    };
    assert_eq!(pages(&story), 1);
    let change = decide(&story, &policy(Mode::Approve), now()).incident.unwrap();
    let incident = story.incident.as_mut().unwrap();
    (incident.fault_keys, incident.asked_keys) = (change.fault_keys, change.asked_keys);
    assert_eq!(pages(&story), 0, "it is known by now");
}

#[test]
fn a_fault_that_joined_a_failed_incident_before_it_asked_for_an_eviction_pages_once_when_it_does() {
    let (a, b) = (gpu(A), gpu(B));
    let warm = fault_on(Some(b), FaultClass::Thermal, "warn", Witness::ExporterGauge, Onset::Edge);
    let (young, old) = (KnownFault { first_at: at(-10), ..warm.clone() }, KnownFault { first_at: at(-900), ..warm });
    for spent in [false, true] {
        let ended = if spent { CommandState::Succeeded } else { CommandState::Failed };
        let mut story = drained(vec![lost(Some(a.clone())), young.clone()], &[(Some(a.clone()), ended)]);
        let last = if spent { IncidentState::Escalated } else { IncidentState::Failed };
        story.attempts = if spent { vec![at(-20_000), at(-15_000), at(-10_000)] } else { vec![] };
        let first = story.faults[0].key;
        let incident = story.incident.as_mut().unwrap();
        (incident.state, incident.fault_keys, incident.asked_keys) = (last, vec![first], vec![first]);
        let mut pages = Vec::new();
        for fault in [&young, &young, &old, &old] {
            story.faults[1] = fault.clone();
            let decision = decide(&story, &policy(Mode::Approve), now());
            assert_eq!((drains(&decision), state(&decision)), (0, last), "{decision:?}");
            let pages_for = |notice: &&Notice| notice.urgency == Urgency::Page && !notice.text.contains("; incident ");
            pages.push(decision.notify.iter().filter(pages_for).count());
            let change = decision.incident.unwrap();
            assert!(change.changed || pages.last() == Some(&0), "what nobody stores would come at each look");
            let incident = story.incident.as_mut().unwrap();
            (incident.fault_keys, incident.asked_keys) = (change.fault_keys, change.asked_keys);
        }
        assert_eq!(pages, [0, 0, 1, 0], "spent: {spent}");
    }
}

#[test]
fn a_gpu_that_the_device_plugin_does_not_take_back_for_its_fault_explains_none_that_is_lacking() {
    let (a, b) = (gpu(A), gpu(B));
    let fault = fault_on(None, FaultClass::Allocatable, "nvidia.com/gpu", Witness::Allocatable, Onset::Edge);
    let withheld = KnownFault { first_at: at(-900), count: 2, ..fault };
    let done = [(Some(a.clone()), CommandState::Succeeded), (Some(b.clone()), CommandState::Succeeded)];
    let with = |one: KnownFault| asked(&drained(vec![one, lost(Some(b.clone())), withheld.clone()], &done));
    assert_eq!(with(hot(Some(a.clone()))), [None], "heat is nothing to the plugin");
    assert_eq!(with(lost(Some(a.clone()))), []);
}
