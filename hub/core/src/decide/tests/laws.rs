//! Laws that hold for every story.

use proptest::prelude::*;

use super::*;
use gpuheal_proto::workload::Workload;

fn faults() -> impl Strategy<Value = Vec<KnownFault>> {
    let class = proptest::sample::select(FaultClass::ALL.to_vec());
    let code = proptest::sample::select(vec!["79", "31", "45", "63", "999", "high", "warn", "154", "145", "GPUUnhealthy", ""]);
    let kind = proptest::sample::select(Witness::ALL.to_vec());
    let evidence = proptest::sample::select(vec![EvidenceState::Seen, EvidenceState::Clear, EvidenceState::Stale]);
    let on = proptest::sample::select(vec![None, Some(gpu(0x5d)), Some(gpu(0x5d)), Some(gpu(0x5e))]);
    let one = (class, code, kind, any::<bool>(), on, evidence, 0i64..2000, 0u32..8, any::<bool>());
    let one = one.prop_map(|(class, code, kind, edge, on, evidence, age, count, settled)| {
        let onset = if edge { Onset::Edge } else { Onset::Standing };
        let mut fault = fault_on(on, class, code, kind, onset);
        fault.evidence = Evidence { state: evidence, since: at(-age) };
        fault.first_at = at(-age);
        fault.count = count;
        fault.witnesses[0].count = count;
        fault.settled = settled.then_some(Settled { level: Level::P2 });
        fault
    });
    proptest::collection::vec(one, 0..5)
}

fn known_command() -> impl Strategy<Value = KnownCommand> {
    let kinds = vec![
        (Action::Notify, vec!["notify"]),
        (Action::Mark, vec!["notify", "mark"]),
        (Action::Evict, vec!["mark", "drain"]),
        (Action::Evict, vec!["drain"]),
        (Action::Restart, vec!["notify", "restart"]),
        (Action::Release, vec!["release"]),
    ];
    let states = proptest::sample::select(CommandState::ALL.to_vec());
    let gpus = proptest::sample::select(vec![None, Some(gpu(0x5d)), Some(gpu(0x5e))]);
    (proptest::sample::select(kinds), states, any::<bool>(), 0i64..1000, gpus).prop_map(
        |((action, steps), state, half, age, gpu)| {
            let mut command = KnownCommand { gpu, ..command(action, &steps, state) };
            if half && matches!(state, CommandState::Started | CommandState::Failed | CommandState::Cancelled) {
                command.steps_done = vec![steps[0].to_owned()];
            }
            command.state_at = at(-age);
            command.start_by = at(240 - age);
            command
        },
    )
}

fn stories() -> impl Strategy<Value = Snapshot> {
    let open: Vec<_> = IncidentState::ALL.iter().copied().filter(|state| !state.closed()).collect();
    let incident_state = proptest::option::of(proptest::sample::select(open));
    let action = proptest::option::of(proptest::sample::select(Action::ALL.to_vec()));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let commands = proptest::collection::vec(known_command(), 0..4);
    (faults(), incident_state, action, flags, commands, 0u32..4, 0u64..3000).prop_map(
        |(faults, open, action, (held, marked, opted, stop, gone), commands, out, tokens)| {
            let mut story = snapshot(faults);
            story.incident = open.map(|state| Incident { held, ..incident(state, &story.faults) });
            if story.incident.is_some() {
                story.commands = commands;
            }
            story.node.mark =
                marked.then(|| Mark { labelled: true, tainted: held, cordoned_by_us: false, incident: String::new() });
            story.node.opted_out = opted;
            story.node.gone = gone && !stop;
            story.cluster.out = out;
            story.cluster.rate.milli_tokens = tokens;
            story.cluster.fleet_stop = (stop && gone).then(|| "drill".to_owned());
            story.request = action.map(|action| Request {
                id: "r".into(),
                action,
                reason: "because".into(),
                caller: "someone".into(),
                ignore_cooldown: stop,
                workloads: vec![Workload::parse("deployment/ml/web").unwrap()],
                past_budgets: marked,
            });
            story
        },
    )
}

fn modes() -> impl Strategy<Value = Mode> {
    proptest::sample::select(Mode::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn the_same_question_has_the_same_answer(story in stories(), mode in modes()) {
        prop_assert_eq!(decide(&story, &policy(mode), now()), decide(&story, &policy(mode), now()));
    }

    #[test]
    fn nothing_harmful_is_decided_below_mode_mark_and_nothing_at_all_leaves_in_observe(story in stories()) {
        for mode in [Mode::Observe, Mode::Notify] {
            let decision = decide(&story, &policy(mode), now());
            prop_assert!(!decision.commands.iter().any(harmful));
            prop_assert!(mode > Mode::Observe || decision.commands.iter().all(|c| c.action == Action::Release));
        }
        let decision = decide(&story, &policy(Mode::Mark), now());
        prop_assert!(decision.commands.iter().all(|c| c.action != Action::Evict));
    }

    #[test]
    fn an_opted_out_node_gets_no_command_but_a_release(mut story in stories(), mode in modes()) {
        story.node.opted_out = true;
        let decision = decide(&story, &policy(mode), now());
        prop_assert!(decision.commands.iter().all(|c| c.action == Action::Release));
    }

    #[test]
    fn harm_holds_a_place_in_the_budget_that_was_free(story in stories(), mode in modes()) {
        let policy = policy(mode);
        let decision = decide(&story, &policy, now());
        if decision.commands.iter().any(harmful) {
            let held = story.incident.as_ref().is_some_and(|incident| incident.held);
            let allowed = policy.settings.budgets.cluster.allowed(story.cluster.gpu_nodes);
            let takes = matches!(decision.budget, BudgetOp::Hold { .. });
            prop_assert!(held || takes && story.cluster.out < allowed);
            prop_assert!(decision.budget != BudgetOp::Free);
        }
    }

    #[test]
    fn absence_never_closes_what_was_marked(mut story in stories(), mode in modes()) {
        let held: Vec<_> = story.faults.iter().map(|f| f.key).collect();
        story.faults.clear();
        story.node.gone = false;
        story.request = None;
        if let Some(incident) = &mut story.incident {
            incident.fault_keys = if held.is_empty() { vec![xid79().key] } else { held };
            let decision = decide(&story, &policy(mode), now());
            let change = decision.incident.expect("it was open");
            let by_hand = matches!(change.state, IncidentState::Overridden | IncidentState::Overriding);
            let was_ending = matches!(story.incident.unwrap().state, IncidentState::Releasing | IncidentState::Overriding);
            prop_assert!(was_ending || by_hand || !change.state.closed() && change.state != IncidentState::Releasing, "{:?}", change);
        }
    }

    #[test]
    fn every_harmful_command_has_an_incident_a_reason_and_a_higher_plan_revision(story in stories(), mode in modes()) {
        let decision = decide(&story, &policy(mode), now());
        for command in &decision.commands {
            let incident = decision.incident.as_ref().expect("no command without an incident");
            prop_assert!(incident.changed && !command.reason.is_empty() && !incident.state.closed());
            prop_assert!(command.plan_rev > story.node.plan_revision.max(story.node.plan_rev_floor));
            prop_assert!(command.times.created <= command.times.deliver_by && command.times.deliver_by <= command.times.start_by);
            prop_assert!(command.times.finish_by.since(command.times.created) <= gpuheal_proto::limits::COMMAND_LIFE_MAX);
        }
    }

    #[test]
    fn nobody_is_drained_twice_and_a_drain_of_one_gpu_is_for_faults_of_that_gpu(mut story in stories(), mode in modes()) {
        story.request = None;
        let decision = decide(&story, &policy(mode), now());
        for command in decision.commands.iter().filter(|command| command.action == Action::Evict) {
            let done = |c: &&KnownCommand| c.state == CommandState::Succeeded && c.steps.iter().any(|step| step == "drain");
            let of: Vec<_> = story.commands.iter().filter(done).map(|c| c.gpu.clone()).collect();
            prop_assert!(!of.contains(&None) && !of.contains(&command.gpu), "{:?} after {:?}", command, of);
            let on = |key: &gpuheal_proto::ids::FaultKey| story.faults.iter().find(|fault| fault.key == *key).and_then(|fault| fault.gpu.clone());
            prop_assert!(command.gpu.is_none() || command.fault_keys.iter().all(|key| on(key) == command.gpu), "{:?}", command);
        }
    }

    #[test]
    fn a_waiting_state_is_always_judged_again(story in stories(), mode in modes()) {
        let decision = decide(&story, &policy(mode), now());
        if let Some(change) = &decision.incident {
            let waits = matches!(change.state, IncidentState::Blocked | IncidentState::Suppressed);
            prop_assert!(!waits || decision.recheck_at.is_some() || decision.request.is_some(), "{:?}", decision);
        }
    }

    #[test]
    fn an_incident_never_closes_while_a_mark_of_ours_is_seen(story in stories(), mode in modes()) {
        let decision = decide(&story, &policy(mode), now());
        let undone = |c: &KnownCommand| c.action == Action::Release && !c.steps_done.is_empty();
        let released = story.commands.iter().any(undone);
        if let Some(change) = &decision.incident
            && story.node.mark.is_some() && !story.node.gone && !released
        {
            prop_assert!(!change.state.closed(), "{:?}", change);
        }
    }
}
