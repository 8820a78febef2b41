use gpuheal_proto::command::DeadlineOutcome;

use super::*;

/// An incident whose only command was an Event, which ended so.
fn told(ends: &[CommandState]) -> Snapshot {
    let fault = xid79();
    let mut story = snapshot(vec![fault.clone()]);
    story.incident = Some(Incident { held: false, ..incident(IncidentState::Recorded, std::slice::from_ref(&fault)) });
    story.commands = ends.iter().map(|&state| command(Action::Notify, &["notify"], state)).collect();
    story
}

fn notified(story: &Snapshot, after_s: i64) -> bool {
    steps(&decide(story, &policy(Mode::Notify), at(after_s))) == ["notify"]
}

#[test]
fn an_event_that_was_never_posted_does_not_count_as_told() {
    for state in [CommandState::Refused, CommandState::Expired, CommandState::Failed, CommandState::Cancelled] {
        assert!(notified(&told(&[state]), 3600), "{state}");
    }
    for state in [CommandState::Succeeded, CommandState::Signed, CommandState::Received, CommandState::Unknown] {
        assert!(!notified(&told(&[state]), 3600), "{state}");
    }
    let mut half = told(&[CommandState::Succeeded]);
    half.commands[0].steps = vec!["notify".into(), "restart".into()];
    half.commands[0].steps_done = vec!["restart".into()];
    assert!(notified(&half, 3600), "the rest of its command succeeded, the Event did not");
}

#[test]
fn an_event_that_failed_is_tried_again_later_each_time_and_not_for_ever() {
    let failed = CommandState::Failed;
    let once = decide(&told(&[failed]), &policy(Mode::Notify), now());
    assert!(once.commands.is_empty(), "not in the same breath");
    assert_eq!(once.recheck_at, Some(at(-50 + 300)));
    assert!(notified(&told(&[failed]), 250) && !notified(&told(&[failed, failed]), 250));
    assert!(notified(&told(&[failed, failed]), 550));
    assert!(!notified(&told(&[failed, failed, failed]), 86_400), "three times are enough");
}

#[test]
fn the_events_words_are_why_and_the_notices_name_the_incident_too() {
    let decision = decide(&snapshot(vec![xid79()]), &policy(Mode::Notify), now());
    let Step::Notify { message } = &decision.commands[0].steps[0] else { panic!("{decision:?}") };
    assert_eq!(*message, decision.commands[0].reason, "the spoke says it once");
    let id = decision.incident.as_ref().unwrap().id.to_string();
    assert!(!message.contains(&id) && decision.notify[0].text.contains(&id));
}

#[test]
fn a_drain_by_itself_stops_at_its_deadline_where_policy_would_pass_budgets() {
    let mut policy = policy(Mode::Heal);
    policy.settings.response.drain.on_deadline = DeadlineOutcome::BypassPdb;
    policy.settings.response.drain.allow_pdb_bypass = true;
    let decision = decide(&snapshot(vec![xid79()]), &policy, now());
    let Some(Step::Drain(drain)) = decision.commands[0].steps.last() else { panic!("{decision:?}") };
    assert_eq!((drain.on_deadline, drain.allow_pdb_bypass), (DeadlineOutcome::Stop, false));
}

#[test]
fn a_drain_by_hand_passes_budgets_only_where_policy_lets_it_and_the_person_says_so() {
    let asked = |allowed, past_budgets| {
        let mut policy = policy(Mode::Heal);
        policy.settings.response.drain.allow_pdb_bypass = allowed;
        if allowed {
            policy.settings.response.drain.on_deadline = DeadlineOutcome::BypassPdb;
        }
        let mut story = snapshot(vec![]);
        story.request = Some(Request { past_budgets, ..request(Action::Evict) });
        decide(&story, &policy, now())
    };
    for (allowed, said, passes) in [(true, false, false), (false, false, false), (true, true, true)] {
        let decision = asked(allowed, said);
        let Some(Step::Drain(drain)) = decision.commands[0].steps.last() else { panic!("{decision:?}") };
        let want = if passes { (DeadlineOutcome::BypassPdb, true) } else { (DeadlineOutcome::Stop, false) };
        assert_eq!((drain.on_deadline, drain.allow_pdb_bypass), want, "{allowed} {said}");
        assert_eq!(decision.commands[0].reason.contains("evict past budgets"), passes, "who asked for what is told with it");
    }
    let Some(RequestOutcome::Blocked { reason }) = asked(false, true).request else { panic!("the policy says no") };
    assert!(reason.contains("allowPdbBypass"), "{reason}");
}

#[test]
fn who_asks_to_pass_budgets_while_a_drain_that_may_not_is_under_way_is_told_to_wait() {
    let mut policy = policy(Mode::Heal);
    policy.settings.response.drain.allow_pdb_bypass = true;
    let mut story = quarantined(vec![xid79()]);
    story.commands = vec![command(Action::Evict, &["mark", "drain"], CommandState::Started)];
    story.request = Some(Request { past_budgets: true, ..request(Action::Evict) });
    let decision = decide(&story, &policy, now());
    assert!(matches!(&decision.request, Some(RequestOutcome::Blocked { reason }) if reason.contains("under way")), "{decision:?}");
}

#[test]
fn a_node_that_no_state_has_shown_opens_its_incident_and_is_told_of_once_it_is_shown() {
    let mut story = snapshot(vec![xid79()]);
    story.node.seen_at = gpuheal_proto::time::Timestamp::EPOCH;
    let unseen = decide(&story, &policy(Mode::Notify), now());
    assert!(unseen.incident.is_some_and(|change| change.opens) && unseen.commands.is_empty());
    story.node.seen_at = now();
    assert_eq!(steps(&decide(&story, &policy(Mode::Notify), now())), ["notify"]);
}
