//! Claims about restarts of workloads, which people alone ask for.

use gpuheal_proto::workload::Workload;

use super::*;

fn asked(workloads: &[&str]) -> Option<Request> {
    let workloads = workloads.iter().map(|text| Workload::parse(text).unwrap()).collect();
    Some(Request { workloads, ..request(Action::Restart) })
}

fn answered(change: fn(&mut Snapshot), mode: Mode) -> Decision {
    let mut story = snapshot(vec![]);
    story.request = asked(&["deployment/ml/web"]);
    change(&mut story);
    decide(&story, &policy(mode), now())
}

#[test]
fn a_restart_by_hand_is_one_command_that_leaves_the_node_where_it_is() {
    let mut story = snapshot(vec![]);
    story.request = asked(&["Deployment/ml/web", "statefulset/ml/db"]);
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!((steps(&decision), state(&decision)), (vec!["notify", "restart"], IncidentState::Recorded));
    let command = &decision.commands[0];
    assert_eq!((command.action, command.level.as_str(), command.takes_rate), (Action::Restart, "manual", true));
    assert_eq!(command.steps[1], Step::RestartWorkload { owners: vec!["deployment/ml/web".into(), "statefulset/ml/db".into()] });
    assert!(command.reason.contains("asked for restart of deployment/ml/web and 1 more"), "{}", command.reason);
    assert_eq!(
        (decision.budget, decision.cooldown),
        (BudgetOp::Keep, CooldownOp::Keep),
        "no place, and no later fault waits for it"
    );
}

#[test]
fn a_restart_passes_each_guard_of_harm_but_the_budgets() {
    let cool =
        |s: &mut Snapshot| s.cooldown = Some(Cooldown { incident: incident_id(7), state: CooldownState::Running { until: at(9) } });
    for (decision, word) in [
        (answered(|s| s.cluster.fleet_stop = Some("drill".into()), Mode::Heal), "the fleet is stopped"),
        (answered(|s| s.node.opted_out = true, Mode::Heal), "opt-out"),
        (answered(|s| s.node.foreign_markers = vec!["taint karpenter.sh/disrupted".into()], Mode::Heal), "somebody else"),
        (answered(|s| s.node.created_at = at(-60), Mode::Heal), "younger than"),
        (answered(|s| s.cluster.newly_suspect = 9, Mode::Heal), "breaker"),
        (answered(cool, Mode::Heal), "in cooldown of incident"),
        (answered(|s| s.cluster.rate = crate::budget::RateState { milli_tokens: 0, at: now() }, Mode::Heal), "rate of cluster"),
        (answered(|_| (), Mode::Mark), "mode mark"),
        (
            answered(|s| s.cluster.narrowing = Some(Narrowing { evict_off: true, ..Narrowing::default() }), Mode::Heal),
            "eviction is off",
        ),
    ] {
        let Some(RequestOutcome::Blocked { reason }) = &decision.request else { panic!("{word}: {decision:?}") };
        assert!(reason.contains(word), "{reason} lacks {word}");
        assert!(decision.commands.is_empty() && decision.incident.is_none());
    }
    let full = answered(|s| (s.cluster.out, s.cluster.fleet_out) = (19, 99), Mode::Heal);
    assert_eq!(steps(&full), ["notify", "restart"], "the node is not taken out");
}

#[test]
fn a_restart_waits_for_what_is_under_way_and_holds_up_no_plan_for_the_node() {
    let mut story = quarantined(vec![xid79()]);
    story.commands = vec![command(Action::Evict, &["mark", "drain"], CommandState::Started)];
    story.request = asked(&["deployment/ml/web"]);
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert!(
        matches!(&decision.request, Some(RequestOutcome::Blocked { reason }) if reason.contains("evict is under way")),
        "{decision:?}"
    );

    let mut story = snapshot(vec![xid79()]);
    story.incident = Some(Incident { held: false, manual: true, ..incident(IncidentState::Recorded, &[]) });
    story.commands = vec![command(Action::Restart, &["notify", "restart"], CommandState::Started)];
    assert_eq!(steps(&decide(&story, &policy(Mode::Heal), now())), ["mark", "drain"]);
    story.request = asked(&["deployment/ml/web"]);
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert!(
        matches!(&decision.request, Some(RequestOutcome::Blocked { reason }) if reason.contains("restart is under way")),
        "{decision:?}"
    );
}

#[test]
fn the_incident_of_a_restart_is_filed_once_that_has_ended_and_never_before() {
    let mut story = snapshot(vec![]);
    let opened_at = at(-3600);
    story.incident =
        Some(Incident { level: Level::P2, held: false, manual: true, opened_at, ..incident(IncidentState::Recorded, &[]) });
    story.commands = vec![command(Action::Restart, &["restart"], CommandState::Started)];
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!(state(&decision), IncidentState::Recorded);
    assert!(decision.recheck_at.is_some(), "a command's end is looked for");
    story.commands = vec![command(Action::Restart, &["restart"], CommandState::Succeeded)];
    assert_eq!(state(&decide(&story, &policy(Mode::Heal), now())), IncidentState::Filed);
}

#[test]
fn a_stop_of_the_fleet_calls_a_restart_off() {
    let mut story = snapshot(vec![]);
    story.incident = Some(Incident { held: false, manual: true, ..incident(IncidentState::Recorded, &[]) });
    story.commands = vec![command(Action::Restart, &["restart"], CommandState::Dispatched)];
    story.cluster.fleet_stop = Some("drill".into());
    let decision = decide(&story, &policy(Mode::Heal), now());
    assert_eq!(decision.cancel.iter().map(|cancel| cancel.id).collect::<Vec<_>>(), [story.commands[0].id]);
}
