//! The ways back, and what people ask for.

use super::*;

fn clear(mut fault: KnownFault, since: i64) -> KnownFault {
    fault.evidence = Evidence { state: EvidenceState::Clear, since: at(since) };
    fault
}

fn asked(action: Action) -> Option<Request> {
    Some(Request { id: "r1".into(), action, reason: "looks odd".into(), caller: "someone".into(), ..request(Action::Evict) })
}

fn undo_of(cordon: bool) -> gpuheal_proto::command::Undo {
    let field =
        |kind| UndoField { kind, key: String::new(), before: String::new(), after: "x".into(), resource_version: "1".into() };
    let mut fields = vec![field(UndoKind::Label), field(UndoKind::Taint)];
    if cordon {
        fields.push(field(UndoKind::Unschedulable));
    }
    gpuheal_proto::command::Undo { fields }
}

#[test]
fn a_node_is_released_when_its_faults_own_sources_were_clear_for_the_soak() {
    let mut story = quarantined(vec![clear(xid79(), -899)]);
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!((decision.commands.len(), decision.recheck_at), (0, Some(at(1))));
    story.faults[0].evidence.since = at(-900);
    story.incident.as_mut().unwrap().undo = undo_of(false);
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!((steps(&decision), state(&decision)), (vec!["release"], IncidentState::Releasing));
    assert_eq!(decision.commands[0].steps[0], Step::Release { undo: undo_of(false), overridden: false });
    assert_eq!(decision.commands[0].plan_rev, 2);
}

#[test]
fn a_release_waits_for_no_budget_stop_cooldown_or_breaker() {
    let mut story = quarantined(vec![clear(xid79(), -900)]);
    story.cluster.out = 20;
    story.cluster.fleet_out = 100;
    story.cluster.newly_suspect = 20;
    story.cluster.fleet_stop = Some("drill".into());
    story.cluster.rate.milli_tokens = 0;
    story.cooldown = Some(Cooldown { incident: incident_id(7), state: CooldownState::Reserved });
    assert_eq!(steps(&decide(&story, &policy(Mode::Observe), now())), ["release"]);
}

#[test]
fn silence_is_not_recovery() {
    for state in [EvidenceState::Stale, EvidenceState::Seen] {
        let mut story = quarantined(vec![xid79()]);
        story.faults[0].evidence = Evidence { state, since: at(-1_000_000) };
        assert!(decide(&story, &policy(Mode::Heal), now()).commands.is_empty(), "{state:?}");
    }
}

#[test]
fn a_missing_row_holds_the_release() {
    let mut story = quarantined(vec![clear(xid79(), -900)]);
    story.node.gpus.pop();
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert!(decision.commands.is_empty());
    assert!(decision.reasons.iter().any(|why| why.contains("rows of 1 GPUs are seen, the node has 2")), "{:?}", decision.reasons);
}

#[test]
fn a_release_waits_for_the_last_fault() {
    let mut other = fault_on(Some(gpu(0x5e)), FaultClass::Ecc, "dbe", Witness::ExporterCounter, Onset::Edge);
    let mut story = quarantined(vec![clear(xid79(), -900), other.clone()]);
    assert!(decide(&story, &policy(Mode::Heal), now()).commands.is_empty());
    other = clear(other, -900);
    story.faults[1] = other;
    assert_eq!(steps(&decide(&story, &policy(Mode::Heal), now())), ["release"]);
}

#[test]
fn a_mark_beside_an_incident_that_holds_no_place_counts_as_out_once_the_view_is_not_older_than_our_last_word() {
    let mut story = snapshot(vec![xid79()]);
    story.incident = Some(Incident { held: false, ..incident(IncidentState::Blocked, &story.faults) });
    story.node.mark = Some(Mark { labelled: true, tainted: true, cordoned_by_us: false, incident: String::new() });
    (story.node.plan_revision, story.node.plan_rev_floor) = (1, 1);
    assert_eq!(decide(&story, &policy(Mode::Notify), now()).budget, BudgetOp::HoldFound);
    story.node.plan_rev_floor = 2;
    assert_ne!(decide(&story, &policy(Mode::Notify), now()).budget, BudgetOp::HoldFound);
}

#[test]
fn a_cluster_that_is_not_heard_of_any_more_has_nothing_released_by_what_it_said_before() {
    let mut story = quarantined(vec![clear(xid79(), -1800)]);
    story.cluster.observer.told_upto = Some(at(-91));
    let silent = decide(&story, &policy(Mode::Heal), now());
    assert!(silent.commands.is_empty() && silent.recheck_at.is_some());
    assert!(silent.reasons.iter().any(|why| why.contains("not heard of since")), "{:?}", silent.reasons);
    story.cluster.observer.told_upto = Some(at(-90));
    assert_eq!(steps(&decide(&story, &policy(Mode::Heal), now())), ["release"]);
}

#[test]
fn a_cluster_that_cannot_say_that_all_it_sees_was_told_has_nothing_released() {
    let mut story = quarantined(vec![clear(xid79(), -1800)]);
    story.cluster.observer.told_upto = None;
    let held = decide(&story, &policy(Mode::Heal), now());
    assert!(held.commands.is_empty() && held.recheck_at == Some(at(30)), "{:?}", held.reasons);
    story.cluster.observer.told_upto = Some(at(0));
    assert_eq!(steps(&decide(&story, &policy(Mode::Heal), now())), ["release"]);
}

#[test]
fn an_alert_about_another_gpu_holds_the_release_whatever_cleared_on_this_one() {
    let other = fault_on(Some(gpu(0x5e)), FaultClass::Xid, "79", Witness::Alert, Onset::Edge);
    let same = fault_on(Some(gpu(0x5d)), FaultClass::Xid, "63", Witness::Alert, Onset::Edge);
    assert_eq!(steps(&decide(&quarantined(vec![same, clear(xid79(), -900)]), &policy(Mode::Heal), now())), ["release"]);
    let held = decide(&quarantined(vec![other, clear(xid79(), -900)]), &policy(Mode::Heal), now());
    assert!(held.commands.is_empty(), "{:?}", held.reasons);
}

#[test]
fn an_alert_of_another_kind_holds_the_release_whatever_cleared_on_its_gpu() {
    let hot = || clear(fault_on(Some(gpu(0x5d)), FaultClass::Thermal, "high", Witness::ExporterGauge, Onset::Edge), -900);
    let alert = |class, code| fault_on(Some(gpu(0x5d)), class, code, Witness::Alert, Onset::Edge);
    let held = decide(&quarantined(vec![alert(FaultClass::Xid, "79"), hot()]), &policy(Mode::Heal), now());
    assert!(held.commands.is_empty(), "{:?}", held.reasons);
    let named = decide(&quarantined(vec![alert(FaultClass::Thermal, "alerted"), hot()]), &policy(Mode::Heal), now());
    assert_eq!(steps(&named), ["release"], "the same kind, and better known by its gauge");
}

#[test]
fn a_resolved_alert_alone_releases_nothing_and_an_unresolved_one_holds_nothing_back() {
    let alert = fault_on(None, FaultClass::Xid, "79", Witness::Alert, Onset::Edge);
    let story = quarantined(vec![clear(alert.clone(), -900), xid79()]);
    assert!(decide(&story, &policy(Mode::Heal), now()).commands.is_empty(), "the gauge still shows it");
    let story = quarantined(vec![alert, clear(xid79(), -900)]);
    assert_eq!(steps(&decide(&story, &policy(Mode::Heal), now())), ["release"], "a resolve that never comes");
}

#[test]
fn an_incident_closes_when_its_release_is_done() {
    let mut story = quarantined(vec![clear(xid79(), -1000)]);
    story.incident.as_mut().unwrap().state = IncidentState::Releasing;
    story.commands.push(command(Action::Release, &["release"], CommandState::Dispatched));
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!((state(&decision), decision.budget), (IncidentState::Releasing, BudgetOp::Keep));
    story.commands[1] = command(Action::Release, &["release"], CommandState::Succeeded);
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!((state(&decision), decision.budget), (IncidentState::Released, BudgetOp::Free));
    assert_eq!(decision.settle.len(), 1);
}

/// Nothing else would ask for that judgement: it was told before, and stands.
#[test]
fn a_fault_that_came_while_an_incident_was_ended_is_judged_at_once() {
    let mut story = quarantined(vec![clear(xid79(), -1000)]);
    story.incident.as_mut().unwrap().state = IncidentState::Releasing;
    story.commands.push(command(Action::Release, &["release"], CommandState::Succeeded));
    assert_eq!(decide(&story, &policy(Mode::Heal), now()).recheck_at, None);
    story.faults.push(fault(FaultClass::Xid, "48", Witness::KernelLine, Onset::Edge));
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!((state(&decision), decision.recheck_at), (IncidentState::Released, Some(now())));
    let last = story.faults.pop().unwrap();
    story.faults.push(clear(last, -5));
    assert_eq!(decide(&story, &policy(Mode::Heal), now()).recheck_at, None, "what is clear again asks for nothing");
}

#[test]
fn a_node_that_was_marked_anew_after_a_release_of_the_same_incident_is_not_marked_again_and_again() {
    let mut story = quarantined(vec![xid79()]);
    story.commands.push(command(Action::Release, &["release"], CommandState::Succeeded));
    story.commands.push(command(Action::Mark, &["mark"], CommandState::Succeeded));
    let decision = decide(&story, &policy(Mode::Mark), now());
    assert_eq!(steps(&decision), [""; 0], "as after a restore, when commands are shown in any order");
}

#[test]
fn a_release_that_came_to_nothing_is_tried_again() {
    let mut story = quarantined(vec![clear(xid79(), -1000)]);
    story.incident.as_mut().unwrap().state = IncidentState::Releasing;
    story.commands.push(command(Action::Release, &["release"], CommandState::Expired));
    assert!(decide(&story, &policy(Mode::Heal), at(9)).commands.is_empty());
    assert_eq!(steps(&decide(&story, &policy(Mode::Heal), at(10))), ["release"]);
}

#[test]
fn a_person_who_removes_our_taint_overrides_and_the_rest_is_released() {
    let mut story = quarantined(vec![xid79()]);
    story.incident.as_mut().unwrap().undo = undo_of(false);
    story.node.mark.as_mut().unwrap().tainted = false;
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!((steps(&decision), state(&decision)), (vec!["release"], IncidentState::Overriding));
    story.node.mark = None;
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!((steps(&decision), state(&decision)), (vec![], IncidentState::Overridden));
    assert_eq!(decision.settle[0].settled.level, Level::P0, "nothing is applied again for that episode");
    assert_eq!(decision.budget, BudgetOp::Free);
}

#[test]
fn a_view_older_than_our_own_mark_is_nobodys_hand() {
    let mut story = quarantined(vec![xid79()]);
    story.node.mark = None;
    story.node.plan_revision = 0;
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!(state(&decision), IncidentState::Validating);
    story.node.seen_at = at(100);
    let decision = decide(&story, &policy(Mode::Heal), at(101));
    assert_eq!(state(&decision), IncidentState::Overridden, "a deleted annotation does not blind us for ever");
}

#[test]
fn an_untaint_in_the_middle_of_a_drain_calls_the_drain_off() {
    let mut story = quarantined(vec![xid79()]);
    story.commands[0].state = CommandState::Started;
    story.commands[0].steps_done = vec!["mark".into()];
    story.node.mark = None;
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!(decision.cancel.len(), 1);
    assert_eq!((steps(&decision), state(&decision)), (vec!["release"], IncidentState::Overriding));
}

#[test]
fn an_uncordon_by_a_known_automation_is_no_order() {
    let mut story = quarantined(vec![xid79()]);
    story.incident.as_mut().unwrap().undo = undo_of(true);
    story.node.unschedulable = false;
    for (by, want) in [("k8s-driver-manager", IncidentState::Validating), ("kubectl", IncidentState::Overriding)] {
        story.node.unschedulable_by = by.into();
        assert_eq!(state(&decide(&story, &policy(Mode::Heal), now())), want, "{by}");
    }
}

#[test]
fn an_opt_out_on_a_quarantined_node_is_an_order() {
    let mut story = quarantined(vec![xid79()]);
    story.node.opted_out = true;
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!((steps(&decision), state(&decision)), (vec!["release"], IncidentState::Overriding));
}

#[test]
fn a_node_that_is_gone_closes_its_incident_and_frees_its_place() {
    let mut story = quarantined(vec![xid79()]);
    story.commands[0].state = CommandState::Started;
    story.node.gone = true;
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!((state(&decision), decision.budget, decision.cancel.len()), (IncidentState::Gone, BudgetOp::Free, 1));
}

#[test]
fn a_mark_without_an_incident_is_adopted_and_counted_as_out() {
    let mut story = quarantined(vec![]);
    story.incident = None;
    story.commands.clear();
    story.node.plan_rev_floor = 2;
    story.node.written_at = at(-10);
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!((decision.incident, decision.recheck_at), (None, Some(at(110))), "the view may be older than our own release");
    story.node.plan_rev_floor = 1;
    let decision = decide(&story, &policy(Mode::Observe), now());
    assert_eq!((state(&decision), decision.budget), (IncidentState::Validating, BudgetOp::HoldFound));
    story.request = asked(Action::Release);
    let decision = decide(&story, &policy(Mode::Observe), now());
    let Step::Release { undo, overridden: false } = &decision.commands[0].steps[0] else { panic!() };
    assert_eq!(undo.fields.len(), 2, "label and taint as the cluster shows them");
}

#[test]
fn a_mark_without_its_annotation_is_adopted_however_often_its_cluster_reports() {
    let mut story = quarantined(vec![]);
    story.incident = None;
    story.commands.clear();
    (story.node.plan_revision, story.node.plan_rev_floor, story.node.written_at) = (0, 2, at(-600));
    story.node.seen_at = at(-1);
    assert_eq!(state(&decide(&story, &policy(Mode::Heal), now())), IncidentState::Validating, "the view is of a second ago");
    story.node.seen_at = at(-601);
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!((decision.incident, decision.recheck_at), (None, Some(at(120))), "a cluster that is cut off shows what was");
}

#[test]
fn an_adopted_mark_that_a_person_removed_closes_its_incident() {
    let mut story = quarantined(vec![]);
    story.commands.clear();
    assert_eq!(state(&decide(&story, &policy(Mode::Heal), now())), IncidentState::Validating);
    story.node.mark = None;
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!((state(&decision), decision.budget), (IncidentState::Overridden, BudgetOp::Free));
}

#[test]
fn a_cordon_of_ours_that_is_left_of_a_mark_is_adopted_and_taken_off() {
    let mut story = quarantined(vec![]);
    story.incident = None;
    story.commands.clear();
    (story.node.plan_rev_floor, story.node.unschedulable) = (1, true);
    story.node.mark = Some(Mark { cordoned_by_us: true, ..Mark::default() });
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!((state(&decision), decision.budget), (IncidentState::Validating, BudgetOp::HoldFound));
    story.incident = Some(Incident { held: true, ..incident(IncidentState::Validating, &[]) });
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!(state(&decision), IncidentState::Overriding, "who took label and taint off wants the node back");
    let Step::Release { undo, overridden: true } = &decision.commands[0].steps[0] else { panic!() };
    assert_eq!(undo.fields.iter().map(|field| field.kind).collect::<Vec<_>>(), [UndoKind::Unschedulable]);
}

#[test]
fn p2_alone_is_filed_after_the_merge_window_with_no_claim_about_health() {
    let mut p2 = fault(FaultClass::Xid, "31", Witness::ExporterGauge, Onset::Edge);
    p2.last_at = at(-299);
    let mut story = snapshot(vec![p2]);
    story.incident = Some(Incident { held: false, level: Level::P2, ..incident(IncidentState::Recorded, &story.faults) });
    story.incident.as_mut().unwrap().opened_at = at(-400);
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!((state(&decision), decision.recheck_at), (IncidentState::Recorded, Some(at(1))));
    let decision = decide(&story, &policy(Mode::Heal), at(1));
    assert_eq!((state(&decision), decision.settle[0].settled.level), (IncidentState::Filed, Level::P2));
}

#[test]
fn a_person_may_mark_and_evict_without_any_fault() {
    for (action, want) in [(Action::Mark, vec!["notify", "mark"]), (Action::Evict, vec!["notify", "mark", "drain"])] {
        let mut story = snapshot(vec![]);
        story.request = asked(action);
        let decision = decide(&story, &policy(Mode::Heal), now());
        assert_eq!(steps(&decision), want);
        assert_eq!(decision.request, Some(RequestOutcome::Accepted { command: decision.commands[0].id }));
        assert!(decision.incident.as_ref().unwrap().manual && decision.commands[0].level == "manual");
        assert!(matches!(decision.budget, BudgetOp::Hold { .. }));
    }
}

#[test]
fn what_a_person_asks_for_passes_the_same_guards() {
    let ask = |change: fn(&mut Snapshot), action, mode| {
        let mut story = snapshot(vec![]);
        story.request = asked(action);
        change(&mut story);
        decide(&story, &policy(mode), now())
    };
    let cool =
        |s: &mut Snapshot| s.cooldown = Some(Cooldown { incident: incident_id(7), state: CooldownState::Running { until: at(9) } });
    for (decision, word) in [
        (ask(|s| s.cluster.out = 2, Action::Evict, Mode::Heal), "2 of 20"),
        (ask(|s| s.node.opted_out = true, Action::Mark, Mode::Heal), "opt-out"),
        (ask(cool, Action::Mark, Mode::Heal), "in cooldown of incident"),
        (ask(|_| (), Action::Mark, Mode::Notify), "mode notify"),
        (ask(|_| (), Action::Evict, Mode::Mark), "mode mark"),
        (ask(|_| (), Action::Notify, Mode::Observe), "mode observe"),
    ] {
        let Some(RequestOutcome::Blocked { reason }) = &decision.request else { panic!("{decision:?}") };
        assert!(reason.contains(word), "{reason} lacks {word}");
        assert!(decision.commands.is_empty() && decision.incident.is_none());
    }
    let mut story = snapshot(vec![]);
    cool(&mut story);
    story.request = Some(Request { ignore_cooldown: true, ..asked(Action::Mark).unwrap() });
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert!(decision.commands[0].ignore_cooldown, "an explicit waiver travels with the command");
}

#[test]
fn what_is_done_already_is_not_done_again_for_a_person() {
    let mut story = quarantined(vec![xid79()]);
    story.request = asked(Action::Evict);
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert!(matches!(decision.request, Some(RequestOutcome::AlreadyDone { command: Some(_), .. })), "{:?}", decision.request);
    assert!(decision.commands.is_empty());
}

#[test]
fn a_persons_release_takes_the_node_back_at_once_and_settles_what_is_still_seen() {
    let mut story = quarantined(vec![xid79()]);
    story.request = asked(Action::Release);
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!((steps(&decision), state(&decision)), (vec!["release"], IncidentState::Releasing));
    assert!(decision.reasons[0].contains("someone asked for release: looks odd"));
    let mut healthy = snapshot(vec![]);
    healthy.request = asked(Action::Release);
    let decision = decide(&healthy, &policy(Mode::Heal), now());
    assert!(matches!(decision.request, Some(RequestOutcome::AlreadyDone { .. })) && decision.incident.is_none());
}

/// Failure table, row 18.
#[test]
fn a_persons_release_is_not_called_done_where_the_database_may_have_lost_the_mark() {
    for faults in [vec![], vec![xid79()]] {
        let mut story = snapshot(faults);
        story.cluster.observer.state_at = None;
        story.request = asked(Action::Release);
        let decision = decide(&story, &policy(Mode::Heal), now());
        let Some(RequestOutcome::Blocked { reason }) = &decision.request else { panic!("{decision:?}") };
        assert!(reason.contains("cluster c1 is not taken over yet"), "{reason}");
        assert!(decision.commands.is_empty());
    }
    let mut known = quarantined(vec![xid79()]);
    known.cluster.observer.state_at = None;
    known.request = asked(Action::Release);
    let decision = decide(&known, &policy(Mode::Heal), now());
    assert_eq!(steps(&decision), ["release"], "of a mark that is known a release waits for nothing");
}

#[test]
fn a_drain_by_hand_marks_first_where_nobody_knows_how_the_mark_ended() {
    for (ended, wanted) in
        [(CommandState::Succeeded, vec!["notify", "drain"]), (CommandState::Unknown, vec!["notify", "mark", "drain"])]
    {
        let mut story = quarantined(vec![xid79()]);
        story.commands = vec![command(Action::Mark, &["notify", "mark"], ended)];
        if ended == CommandState::Unknown {
            story.commands[0].steps_done.clear();
        }
        story.request = asked(Action::Evict);
        assert_eq!(steps(&decide(&story, &policy(Mode::Heal), now())), wanted, "{ended}");
    }
}
