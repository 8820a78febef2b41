use gpuheal_proto::{
    command::{CommandState, Step, UndoField, UndoKind},
    fault::{FaultClass, Onset, Witness},
    words::{Action, Level, Mode},
};

use super::*;
use crate::{
    cooldown::{Cooldown, CooldownState},
    policy::{Narrowing, Policy},
    snapshot::*,
    story::*,
};

mod back;
mod drains;
mod fleet;
mod laws;
mod restart;
mod tell;

fn state(decision: &Decision) -> IncidentState {
    decision.incident.as_ref().unwrap().state
}

fn steps(decision: &Decision) -> Vec<&str> {
    decision.commands.iter().flat_map(|command| &command.steps).map(Step::name).collect()
}

fn blocked(snapshot: &Snapshot, word: &str) {
    let decision = decide(snapshot, &policy(Mode::Heal), now());
    assert!(!decision.commands.iter().any(harmful), "{word}: {decision:?}");
    assert_eq!(state(&decision), IncidentState::Blocked, "{word}");
    assert!(decision.reasons[0].contains(word), "{:?} lacks {word}", decision.reasons);
    assert!(decision.recheck_at.is_some(), "{word}: a waiting state is judged again");
}

fn harmful(command: &PlannedCommand) -> bool {
    matches!(command.action, Action::Mark | Action::Evict)
}

fn p1(first_at: i64) -> KnownFault {
    let mut fault = fault(FaultClass::Thermal, "warn", Witness::ExporterGauge, Onset::Edge);
    fault.first_at = at(first_at);
    fault
}

#[test]
fn each_mode_goes_as_far_as_it_says_and_no_further() {
    for (mode, want, stands) in [
        (Mode::Observe, vec![], IncidentState::Recorded),
        (Mode::Notify, vec!["notify"], IncidentState::Recorded),
        (Mode::Mark, vec!["notify", "mark"], IncidentState::Quarantining),
        (Mode::Approve, vec!["notify"], IncidentState::AwaitingApproval),
        (Mode::Heal, vec!["notify", "mark", "drain"], IncidentState::Quarantining),
    ] {
        let decision = decide(&snapshot(vec![xid79()]), &policy(mode), now());
        assert_eq!(steps(&decision), want, "{mode}");
        assert_eq!(state(&decision), stands, "{mode}");
    }
}

#[test]
fn a_plan_takes_place_cooldown_and_rate_in_one_decision() {
    let decision = decide(&snapshot(vec![xid79()]), &policy(Mode::Heal), now());
    assert_eq!(decision.budget, BudgetOp::Hold { cluster_allowed: 2, fleet_allowed: 5 });
    assert_eq!(decision.cooldown, CooldownOp::Reserve);
    let command = &decision.commands[0];
    assert!(command.takes_rate && command.plan_rev == 1 && command.fault_keys == vec![xid79().key]);
    assert_eq!((command.level.as_str(), &command.gpu), ("P0", &Some(gpu(0x5d))));
    assert!(command.reason.contains("xid 79 on GPU 0000:5d:00") && command.reason.contains("kernel line"), "{}", command.reason);
}

#[test]
fn what_harms_carries_what_policy_says_of_others_and_nothing_else_does() {
    let mut policy = policy(Mode::Heal);
    policy.settings.markers_ignored = vec!["karpenter.sh/do-not-disrupt=true".into()];
    policy.settings.automations = vec!["driver-manager".into()];
    let mut story = snapshot(vec![xid79()]);
    story.node.foreign_markers = policy.settings.markers_ignored.clone();
    let others = &decide(&story, &policy, now()).commands[0].others;
    assert_eq!((&others.markers_ignored, &others.automations), (&policy.settings.markers_ignored, &policy.settings.automations));
    let mut back = quarantined(vec![xid79()]);
    back.request = Some(request(Action::Release));
    assert_eq!(decide(&back, &policy, now()).commands[0].others, Default::default());
}

#[test]
fn in_approve_a_persons_request_to_evict_is_the_yes_and_the_explanation_says_so() {
    let fault = xid79();
    let mut story = snapshot(vec![fault.clone()]);
    let mut incident = incident(IncidentState::AwaitingApproval, std::slice::from_ref(&fault));
    incident.held = false;
    story.incident = Some(incident);
    let waits = decide(&story, &policy(Mode::Approve), now());
    assert!(!waits.commands.iter().any(harmful));
    assert!(waits.would_change.iter().any(|line| line.contains("process n1 --cluster c1 --action evict")), "{waits:?}");
    let reason = "yes".to_owned();
    story.request =
        Some(Request { id: "r".into(), action: Action::Evict, reason, caller: "user/x".into(), ..request(Action::Evict) });
    let decision = decide(&story, &policy(Mode::Approve), now());
    assert_eq!((steps(&decision), state(&decision)), (vec!["notify", "mark", "drain"], IncidentState::Quarantining));
}

#[test]
fn an_uncorroborated_p0_is_told_after_a_minute_and_never_acted_on() {
    let mut gauge = fault(FaultClass::Xid, "79", Witness::ExporterGauge, Onset::Edge);
    let decision = decide(&snapshot(vec![gauge.clone()]), &policy(Mode::Heal), now());
    assert_eq!((steps(&decision), state(&decision)), (vec![], IncidentState::Watching));
    assert_eq!(decision.recheck_at, Some(gauge.first_at.after(std::time::Duration::from_secs(60))));
    gauge.first_at = at(-30 * 86_400);
    let decision = decide(&snapshot(vec![gauge]), &policy(Mode::Heal), now());
    assert_eq!((steps(&decision), state(&decision)), (vec!["notify"], IncidentState::Watching));
    assert!(decision.reasons[0].contains("waits for"), "{:?}", decision.reasons);
}

#[test]
fn p1_is_told_now_watched_for_its_window_and_acted_on_when_still_seen() {
    let decision = decide(&snapshot(vec![p1(-5)]), &policy(Mode::Heal), now());
    assert_eq!((steps(&decision), state(&decision)), (vec!["notify"], IncidentState::Watching));
    assert_eq!(decision.recheck_at, Some(at(-5 + 600)));
    let decision = decide(&snapshot(vec![p1(-600)]), &policy(Mode::Heal), now());
    assert_eq!(steps(&decision), ["notify", "mark", "drain"]);
}

#[test]
fn p1_whose_source_is_silent_at_the_end_of_its_window_waits_on() {
    let mut silent = p1(-700);
    silent.evidence.state = EvidenceState::Stale;
    let decision = decide(&snapshot(vec![silent]), &policy(Mode::Heal), now());
    assert!(!decision.commands.iter().any(harmful));
    assert_eq!(state(&decision), IncidentState::Watching);
}

#[test]
fn p1_is_recorded_where_only_p0_is_acted_on() {
    let mut story = snapshot(vec![p1(-700)]);
    story.cluster.narrowing = Some(Narrowing { alert_level: Some(Level::P0), ..Narrowing::default() });
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!((steps(&decision), state(&decision)), (vec!["notify"], IncidentState::Recorded));
}

#[test]
fn a_burst_of_the_applications_own_xids_isolates_nobody_whatever_its_count() {
    for code in ["31", "13", "43"] {
        let mut app = fault(FaultClass::Xid, code, Witness::KernelLine, Onset::Edge);
        app.count = 1000;
        app.witnesses[0].count = 1000;
        let decision = decide(&snapshot(vec![app]), &policy(Mode::Heal), now());
        assert_eq!((steps(&decision), state(&decision)), (vec![], IncidentState::Recorded), "{code}");
    }
}

#[test]
fn xid_45_alone_opens_nothing_and_follows_a_worse_one() {
    let app = fault(FaultClass::Xid, "45", Witness::KernelLine, Onset::Edge);
    assert_eq!(decide(&snapshot(vec![app.clone()]), &policy(Mode::Heal), now()).incident, None);
    let decision = decide(&snapshot(vec![app.clone(), xid79()]), &policy(Mode::Heal), now());
    assert_eq!(decision.incident.as_ref().unwrap().fault_keys.len(), 2);
    assert_eq!(decision.commands[0].fault_keys, vec![xid79().key], "what may have cleared is judged by the cause alone");
}

#[test]
fn an_unknown_code_is_recorded_and_told() {
    let unknown = fault(FaultClass::Xid, "999", Witness::KernelLine, Onset::Edge);
    let decision = decide(&snapshot(vec![unknown]), &policy(Mode::Heal), now());
    assert_eq!((steps(&decision), state(&decision)), (vec!["notify"], IncidentState::Recorded));
}

#[test]
fn an_ill_observer_is_never_a_reason_for_harm() {
    let faults = vec![
        fault_on(None, FaultClass::Source, "stale", Witness::ExporterGauge, Onset::Edge),
        fault_on(None, FaultClass::NodeCondition, "AcceleratedHardwareReady", Witness::NodeCondition, Onset::Standing),
    ];
    let decision = decide(&snapshot(faults), &policy(Mode::Heal), now());
    assert!(!decision.commands.iter().any(harmful), "{decision:?}");
}

#[test]
fn each_guard_blocks_with_its_arithmetic_and_is_asked_again() {
    let story = || snapshot(vec![xid79()]);
    let with = |change: fn(&mut Snapshot)| {
        let mut story = story();
        change(&mut story);
        story
    };
    blocked(&with(|s| s.cluster.out = 2), "2 of 20 GPU nodes of cluster c1 out, 10 % allows 2");
    blocked(&with(|s| s.cluster.fleet_out = 5), "5 of 100 GPU nodes of the fleet out, 5 % allows 5");
    blocked(&with(|s| s.cluster.fleet_stop = Some("drill".into())), "the fleet is stopped: drill");
    let adopting = |s: &mut Snapshot| (s.cluster.fleet_out, s.cluster.fleet_adopting) = (5, 4);
    blocked(&with(adopting), "5 % allows 5; 4 of them count for clusters that are not taken over yet");
    blocked(&with(|s| s.cluster.observer.state_at = None), "cluster c1 is not taken over yet");
    blocked(&with(|s| s.node.seen_at = gpuheal_proto::time::Timestamp::EPOCH), "not in the cluster's state");
    blocked(&with(|s| s.node.opted_out = true), "opt-out");
    blocked(&with(|s| s.node.foreign_markers = vec!["ToBeDeletedByClusterAutoscaler".into()]), "ToBeDeleted");
    blocked(&with(|s| s.node.created_at = at(-599)), "599 s old, younger than 10 min");
    blocked(&with(|s| s.cluster.newly_suspect = 4), "breaker: 4 of 20 GPU nodes");
}

#[test]
fn a_used_up_rate_waits_for_the_next_token() {
    let mut story = snapshot(vec![xid79()]);
    story.cluster.rate = crate::budget::RateState { milli_tokens: 0, at: now() };
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!(decision.recheck_at, Some(now().after(std::time::Duration::from_millis(500))));
}

#[test]
fn a_small_cluster_may_have_one_node_out() {
    let mut story = snapshot(vec![xid79()]);
    story.cluster.gpu_nodes = 3;
    story.cluster.fleet_gpu_nodes = 3;
    assert!(decide(&story, &policy(Mode::Heal), now()).commands.iter().any(harmful));
}

#[test]
fn another_incidents_cooldown_suppresses_and_its_end_is_the_recheck() {
    let mut story = snapshot(vec![xid79()]);
    story.cooldown = Some(Cooldown { incident: incident_id(7), state: CooldownState::Running { until: at(300) } });
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!((state(&decision), decision.recheck_at), (IncidentState::Suppressed, Some(at(300))));
    assert_eq!(steps(&decision), ["notify"]);
    assert!(decide(&story, &policy(Mode::Heal), at(300)).commands.iter().any(harmful));
}

#[test]
fn a_repeat_of_the_fault_on_a_quarantined_node_does_nothing_twice() {
    let story = quarantined(vec![xid79()]);
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!((decision.commands.len(), state(&decision)), (0, IncidentState::Validating));
    assert!(!decision.incident.unwrap().changed);
}

#[test]
fn a_command_under_way_is_waited_for() {
    let mut story = quarantined(vec![xid79()]);
    story.node.mark = None;
    story.node.plan_revision = 0;
    for (command_state, done, want) in [
        (CommandState::Dispatched, vec![], IncidentState::Quarantining),
        (CommandState::Started, vec!["mark".to_owned()], IncidentState::Draining),
    ] {
        story.commands[0].state = command_state;
        story.commands[0].steps_done = done;
        let decision = decide(&story, &policy(Mode::Heal), now());
        assert_eq!((decision.commands.len(), state(&decision)), (0, want), "{command_state}");
        assert!(decision.recheck_at.is_some());
    }
}

/// A policy of this mode, with these faults in mode heal.
fn but_heal(mode: Mode, faults: &[&str]) -> Policy {
    let mut policy = policy(mode);
    let rule = crate::policy::Rule {
        scope: Default::default(),
        faults: faults.iter().map(|fault| (*fault).into()).collect(),
        priority: 0,
        mode: Some(Mode::Heal),
        act_from: None,
        level: None,
    };
    policy.rules.insert("heal these".into(), rule);
    policy
}

#[test]
fn a_worse_fault_escalates_the_same_incident_from_mark_to_drain_through_its_own_cooldown() {
    let careful = but_heal(Mode::Mark, &["xid"]);
    let mut story = quarantined(vec![p1(-900)]);
    story.commands = vec![KnownCommand { level: Level::P1, ..command(Action::Mark, &["notify", "mark"], CommandState::Succeeded) }];
    story.cooldown = Some(Cooldown { incident: incident_id(1), state: CooldownState::Running { until: at(800) } });
    story.incident.as_mut().unwrap().level = Level::P1;
    assert_eq!(decide(&story, &careful, now()).commands.len(), 0);
    story.faults.push(xid79());
    let decision = decide(&story, &careful, now());
    assert_eq!(steps(&decision), ["notify", "drain"]);
    let incident = decision.incident.unwrap();
    assert_eq!((incident.level, incident.state, incident.decision_no), (Level::P0, IncidentState::Draining, 2));
    assert_eq!((decision.budget, decision.commands[0].takes_rate), (BudgetOp::Keep, false), "it holds its place already");
    assert_eq!(decision.commands[0].plan_rev, 2);
}

#[test]
fn what_came_to_nothing_gives_back_cooldown_and_place_once_the_cluster_shows_no_mark() {
    for dead in [CommandState::Refused, CommandState::Expired, CommandState::Cancelled, CommandState::Failed] {
        let mut story = quarantined(vec![xid79()]);
        story.node.mark = None;
        story.node.plan_revision = 0;
        story.commands[0].state = dead;
        story.commands[0].steps_done.clear();
        story.cooldown = Some(Cooldown { incident: incident_id(1), state: CooldownState::Reserved });
        let decision = decide(&story, &policy(Mode::Heal), now());
        assert_eq!(
            (decision.budget, decision.cooldown),
            (BudgetOp::Keep, CooldownOp::Keep),
            "{dead}: the view is older than start_by"
        );
        story.cluster.observer.state_at = Some(at(241));
        let decision = decide(&story, &policy(Mode::Heal), at(242));
        assert_eq!((decision.budget, decision.cooldown), (BudgetOp::Free, CooldownOp::Void), "{dead}");
        assert!(decision.commands.is_empty(), "{dead}: not planned again in the same breath");
    }
}

#[test]
fn a_refusal_is_not_asked_again_at_once() {
    let mut story = quarantined(vec![xid79()]);
    story.node.mark = None;
    story.incident.as_mut().unwrap().held = false;
    story.commands[0] = KnownCommand {
        refusal: Some(gpuheal_proto::command::Refusal::OverCeiling),
        outcome: "2 nodes out, the ceiling is 2".into(),
        ..command(Action::Evict, &["mark", "drain"], CommandState::Refused)
    };
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!(state(&decision), IncidentState::Blocked);
    assert!(decision.reasons[0].contains("OVER_CEILING: 2 nodes out, the ceiling is 2"), "{:?}", decision.reasons);
    assert!(decide(&story, &policy(Mode::Heal), at(251)).commands.iter().any(harmful));
}

#[test]
fn a_command_that_failed_before_any_effect_is_planned_again_three_times_and_then_a_person_is_called() {
    let mut story = quarantined(vec![xid79()]);
    story.node.mark = None;
    story.incident.as_mut().unwrap().held = false;
    let failed =
        KnownCommand { outcome: "API server away".into(), ..command(Action::Evict, &["mark", "drain"], CommandState::Failed) };
    story.commands = vec![failed.clone()];
    assert_eq!(state(&decide(&story, &policy(Mode::Heal), now())), IncidentState::Blocked);
    assert!(decide(&story, &policy(Mode::Heal), at(251)).commands.iter().any(harmful));
    story.commands = vec![failed.clone(), failed.clone(), failed];
    let decision = decide(&story, &policy(Mode::Heal), at(4000));
    assert_eq!(state(&decision), IncidentState::Failed);
    assert!(!decision.commands.iter().any(harmful));
}

#[test]
fn a_cooldown_runs_from_the_first_effect() {
    let mut story = quarantined(vec![xid79()]);
    story.cooldown = Some(Cooldown { incident: incident_id(1), state: CooldownState::Reserved });
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!(decision.cooldown, CooldownOp::Run { until: at(-50 + 900) });
}

#[test]
fn an_unknown_end_stays_out_and_calls_a_person() {
    let mut story = quarantined(vec![xid79()]);
    story.commands[0].state = CommandState::Unknown;
    story.commands[0].steps_done.clear();
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!((state(&decision), decision.budget), (IncidentState::Failed, BudgetOp::Keep));
    assert!(decision.commands.is_empty());
    assert_eq!(decision.notify[0].urgency, Urgency::Page);
}

#[test]
fn the_fourth_quarantine_in_a_day_marks_alone_and_calls_a_person() {
    let mut story = snapshot(vec![xid79()]);
    story.attempts = vec![at(-20_000), at(-15_000), at(-10_000)];
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!(steps(&decision), ["notify", "mark"]);
    let mut marked = quarantined(vec![xid79()]);
    marked.attempts = story.attempts.clone();
    marked.commands = vec![command(Action::Mark, &["notify", "mark"], CommandState::Succeeded)];
    let decision = decide(&marked, &policy(Mode::Heal), now());
    assert_eq!((state(&decision), decision.commands.len()), (IncidentState::Escalated, 0));
    story.attempts[0] = at(-86_401);
    assert_eq!(steps(&decide(&story, &policy(Mode::Heal), now())), ["notify", "mark", "drain"]);
}

#[test]
fn a_fleet_stop_calls_off_what_is_under_way() {
    let mut story = quarantined(vec![xid79()]);
    story.commands[0].state = CommandState::Signed;
    story.commands[0].steps_done.clear();
    story.node.mark = None;
    story.cluster.fleet_stop = Some("bad driver".into());
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!(decision.cancel.len(), 1);
    assert_eq!(state(&decision), IncidentState::Blocked);
}

#[test]
fn a_new_policy_revision_judges_again_what_is_open_and_not_what_is_settled() {
    let mut recorded = snapshot(vec![xid79()]);
    recorded.incident = Some(Incident { held: false, ..incident(IncidentState::Recorded, &recorded.faults) });
    assert!(decide(&recorded, &policy(Mode::Observe), now()).commands.is_empty());
    let raised = Policy { revision: 2, ..policy(Mode::Heal) };
    let decision = decide(&recorded, &raised, now());
    assert_eq!(steps(&decision), ["notify", "mark", "drain"]);
    let mut settled = snapshot(vec![xid79()]);
    settled.faults[0].settled = Some(Settled { level: Level::P0 });
    assert_eq!(decide(&settled, &raised, now()).incident, None);
}

#[test]
fn a_settled_fault_that_became_worse_is_judged_again() {
    let mut worse = fault(FaultClass::Xid, "63", Witness::ExporterCounter, Onset::Edge);
    worse.settled = Some(Settled { level: Level::P2 });
    assert_eq!(decide(&snapshot(vec![worse.clone()]), &policy(Mode::Heal), now()).incident, None);
    worse.count = 5;
    worse.witnesses[0].count = 5;
    assert!(decide(&snapshot(vec![worse]), &policy(Mode::Heal), now()).commands.iter().any(harmful));
}

#[test]
fn the_cluster_owners_own_settings_only_narrow() {
    let mut story = snapshot(vec![xid79()]);
    for (narrowing, want) in [
        (Narrowing { notify_only: true, ..Narrowing::default() }, vec!["notify"]),
        (Narrowing { evict_off: true, ..Narrowing::default() }, vec!["notify", "mark"]),
        (Narrowing { notify_off: true, ..Narrowing::default() }, vec!["mark", "drain"]),
    ] {
        story.cluster.narrowing = Some(narrowing);
        assert_eq!(steps(&decide(&story, &policy(Mode::Heal), now())), want);
    }
    story.cluster.narrowing = Some(Narrowing { taint_off: true, ..Narrowing::default() });
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert!(decision.commands[0].steps.contains(&Step::Mark { label: true, taint: false, cordon: false }));
}

#[test]
fn faults_that_differ_in_their_gpu_alone_are_one_line() {
    let on = |bus| fault_on(Some(gpu(bus)), FaultClass::Xid, "31", Witness::KernelLine, Onset::Edge);
    let mut story = snapshot((1..=8).map(on).collect());
    let lines = decide(&story, &policy(Mode::Heal), now()).reasons;
    assert_eq!(lines.iter().filter(|line| line.starts_with("xid 31 on")).collect::<Vec<_>>().len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("xid 31 on 8 GPUs: "), "{lines:?}");
    story.faults.push(xid79());
    let lines = decide(&story, &policy(Mode::Heal), now()).reasons;
    assert!(lines[0].starts_with("xid 79 on GPU 0000:5d:00: ") && lines[1].starts_with("xid 31 on 8 GPUs: "), "{lines:?}");
}

#[test]
fn a_released_node_that_is_still_faulty_says_what_would_change_it() {
    let mut known = xid79();
    known.settled = Some(Settled { level: Level::P0 });
    let decision = decide(&snapshot(vec![known.clone()]), &policy(Mode::Heal), now());
    assert_eq!(decision.incident, None);
    assert!(decision.would_change.iter().any(|line| line.contains("xid 79") && line.contains("anew")), "{decision:?}");
    known.evidence.state = EvidenceState::Clear;
    assert_eq!(decide(&snapshot(vec![known]), &policy(Mode::Heal), now()).would_change, Vec::<String>::new());
}

#[test]
fn a_persons_words_stay_the_reason_of_their_incident_until_something_else_speaks() {
    let mut story = quarantined(vec![]);
    let words = "user/admin asked for mark: odd noise".to_owned();
    let was = story.incident.take().unwrap();
    let manual = Incident { manual: true, level: Level::P2, state: IncidentState::Quarantining, reason: words.clone(), ..was };
    story.incident = Some(manual);
    let change = decide(&story, &policy(Mode::Heal), now()).incident.unwrap();
    assert_eq!((change.state, change.reason.as_str(), change.level_word()), (IncidentState::Validating, words.as_str(), "manual"));
    story.faults = vec![xid79()];
    let change = decide(&story, &policy(Mode::Heal), now()).incident.unwrap();
    assert_eq!(change.level_word(), "P0");
    assert!(change.reason.starts_with("xid 79"), "{}", change.reason);
}
