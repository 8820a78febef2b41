//! The claims, each on both stores.

use gpuheal_hub::{
    ingest::Origin,
    link::hello::{Hello, Seen},
    store::server::Recognised,
};
use gpuheal_proto::{
    command::{Command, Step, Undo},
    fault::{Onset, Witness},
    ids::CommandId,
    link::v1::{self, CommandState as Wire, EvidenceState},
};
use gpuheal_sim::store::{Error, Owner};

use crate::{
    fixtures::{HEAL, batch, c1, done, evidence, fault, hello, lost, marked, node, snapshot, status, xid79},
    pair::Pair,
};

/// A policy that heals, an attached leader, ten nodes.
fn healing() -> (Pair, Owner) {
    let mut pair = Pair::new();
    pair.policy(HEAL);
    let (owner, ..) = pair.attach(&hello("spoke-0", &["s"])).unwrap();
    pair.state(&c1(), 1, 1, snapshot((0..10).map(node).collect()));
    (pair, owner)
}

/// And a command on its way to node 1.
fn commanded() -> (Pair, Owner) {
    let (mut pair, owner) = healing();
    pair.faults(&owner, &batch("s", 1, &[xid79(1, 100)])).unwrap();
    pair.decide();
    assert_eq!(pair.deliver(&owner, 1), ["c1 command"]);
    (pair, owner)
}

#[test]
fn a_batch_is_taken_once_and_one_with_a_hole_before_it_is_answered_with_the_resume_point() {
    let (mut pair, owner) = healing();
    let both = [xid79(1, 100), xid79(2, 100)];
    assert_eq!(pair.faults(&owner, &batch("s", 1, &both)), Ok(2));
    assert_eq!(pair.faults(&owner, &batch("s", 1, &both)), Ok(2), "again");
    assert_eq!(pair.faults(&owner, &batch("s", 4, &[xid79(3, 100)])), Ok(2), "3 is missing");
    assert_eq!(pair.faults(&owner, &batch("s", 2, &[xid79(2, 100), xid79(3, 100)])), Ok(3), "it overlaps");
    let held = pair.holds("three faults");
    assert_eq!((held.faults.len(), held.streams), (3, vec!["c1 s 3".to_owned()]));
}

#[test]
fn a_session_that_was_taken_over_commits_nothing() {
    let (mut pair, old) = healing();
    let (new, _, acked) = pair.attach(&hello("spoke-0", &["s", "unknown"])).unwrap();
    assert_eq!(acked, [], "nothing was taken of either");
    assert!(matches!(pair.faults(&old, &batch("s", 1, &[xid79(1, 100)])), Err(Error::TakenOver { generation: 1, .. })));
    assert!(pair.lead(&old, Some(9)).is_err() && !pair.owned(&old) && pair.owned(&new));
    // Nor anything else that it says, whichever kind of message it comes in.
    let (gap, from) = (v1::Gap { stream_id: "s".into(), from_seq: 1, to_seq: 4, ..Default::default() }, Origin::from(&old));
    assert!(matches!(pair.gap(&old, &gap), Err(Error::TakenOver { .. })));
    let fewer = snapshot((0..5).map(node).collect());
    assert!(matches!(pair.state_of(&from, 1, 2, fewer.clone()), Err(Error::TakenOver { .. })));
    let cleared = [evidence(&xid79(1, 100), EvidenceState::Clear)];
    assert!(matches!(pair.evidence_of(&from, &cleared), Err(Error::TakenOver { .. })));
    assert!(matches!(pair.settle_of(&from, 1, &status(1, Wire::Received)), Err(Error::TakenOver { .. })));
    let held = pair.holds("what a session said that is over");
    assert!(held.nodes.iter().all(|node| node.ends_with("gone false")) && held.streams.is_empty(), "{held:?}");
    assert!(pair.evidence_of(&Origin::from(&new), &cleared).is_ok());
    pair.detach(&old);
    assert_eq!(pair.faults(&new, &batch("s", 1, &[xid79(1, 100)])), Ok(1));
    assert_eq!(pair.attach(&hello("spoke-0", &["s"])).unwrap().2, [("s".to_owned(), 1)]);
    pair.holds("a takeover");
}

#[test]
fn a_session_of_which_the_database_has_lost_what_was_noted_is_over() {
    let (mut pair, owner) = healing();
    assert!(pair.owned_since(&owner, false));
    assert!(!pair.owned_since(&owner, true), "a backup is older than what this hub wrote");
    assert!(pair.owned(&owner), "and who has noted nothing yet knows no better");
    pair.holds("a restore");
}

#[test]
fn a_gap_is_passed_and_what_follows_is_taken() {
    let (mut pair, owner) = healing();
    let gap = v1::Gap { stream_id: "s".into(), from_seq: 1, to_seq: 4, reason: "damaged".into(), ..Default::default() };
    assert_eq!(pair.gap(&owner, &gap), Ok(4));
    assert_eq!(pair.gap(&owner, &gap), Ok(4), "again");
    assert_eq!(pair.faults(&owner, &batch("s", 5, &[xid79(1, 100)])), Ok(5));
    pair.holds("a gap");
}

#[test]
fn another_clusters_uid_is_refused_and_puts_the_identity_into_quarantine() {
    let (mut pair, owner) = healing();
    let mut clone = hello("spoke-9", &[]);
    clone.kube_system_uid = "another".into();
    assert_eq!(pair.attach(&clone), Err(Error::Foreign));
    assert_eq!(pair.attach(&hello("spoke-0", &["s"])), Err(Error::Refused("quarantined".into())));
    assert!(!pair.owned(&owner), "who was attached is out");
    assert!(matches!(pair.faults(&owner, &batch("s", 1, &[xid79(1, 100)])), Err(Error::TakenOver { .. })));
    pair.holds("a clone");
}

#[test]
fn a_fault_of_another_cluster_is_poison_and_acked() {
    let (mut pair, owner) = healing();
    let mut foreign = xid79(1, 100);
    foreign.key = gpuheal_proto::ids::FaultKey::parse(&"ab".repeat(32)).unwrap();
    assert_eq!(pair.faults(&owner, &batch("s", 1, &[foreign, xid79(1, 100)])), Ok(2));
    assert_eq!(pair.holds("poison").faults.len(), 1);
}

#[test]
fn a_fault_becomes_one_incident_one_command_and_one_place_in_the_budgets() {
    let (mut pair, _) = commanded();
    let held = pair.holds("a command");
    assert_eq!((held.incidents.len(), held.commands.len()), (1, 1));
    assert_eq!(held.out, ["c1 cluster 1", "c1 uid-1"]);
    assert_eq!(held.cooldowns, ["c1 uid-1 reserved"]);
}

#[test]
fn a_budget_that_is_spent_blocks_the_next_node_until_one_comes_back() {
    let (mut pair, owner) = healing();
    for n in 0..10 {
        pair.faults(&owner, &batch("s", u64::from(n) + 1, &[xid79(n, 100)])).unwrap();
        pair.decide();
        pair.elapse(3);
    }
    let held = pair.holds("ten faults");
    assert_eq!(held.out.len(), 6, "five places and the counter: {:?}", held.out);
}

#[test]
fn a_command_is_sent_once_in_a_session_and_again_at_the_next_until_its_time_is_over() {
    let (mut pair, _) = commanded();
    let (owner, ..) = pair.attach(&hello("spoke-0", &["s"])).unwrap();
    assert_eq!(pair.deliver(&owner, 1), ["c1 command"]);
    assert!(pair.deliver(&owner, 1).is_empty(), "nothing inside a live stream is sent again");
    pair.elapse(245);
    let (owner, ..) = pair.attach(&hello("spoke-0", &["s"])).unwrap();
    assert!(pair.deliver(&owner, 1).is_empty(), "deliver_by is past");
    pair.holds("deliveries");
}

/// Failure table, row 18.
#[test]
fn a_leader_that_proves_itself_with_what_the_database_lost_raises_the_epoch_before_it_is_sent_anything() {
    let (mut pair, owner) = commanded();
    pair.lead(&owner, None).unwrap();
    let says = Seen { term: 1, cmd_seq: 9, ..Seen::default() };
    assert!(pair.lead_having_seen(&owner, Some(2), says).unwrap());
    assert!(pair.deliver(&owner, 2).is_empty(), "nobody knows what the lost commits had out when it was decided");
    assert!(!pair.lead_having_seen(&owner, Some(3), says).unwrap(), "it is known by now");
    // A number that this database has given to another command was given out twice.
    let (of_n1, another) =
        (Seen { term: 2, cmd_seq: 1, ..says }, CommandId::parse("01890000-0000-7000-8000-000000000007").unwrap());
    assert!(!pair.lead_having_seen(&owner, Some(4), of_n1).unwrap());
    assert!(pair.lead_having_seen(&owner, Some(5), Seen { cmd_id: Some(another), ..of_n1 }).unwrap());
    let absurd = Seen { cmd_seq: u64::MAX, ..says };
    assert!(matches!(pair.lead_having_seen(&owner, Some(6), absurd), Err(Error::Refused(_))));
    pair.holds("a proof");
}

/// Failure table, row 18.
#[test]
fn a_start_of_the_server_that_no_hub_has_seen_through_raises_the_epoch_and_holds_back_what_harms() {
    let (mut pair, owner) = commanded();
    let (mut new, mut old) = ([None, None], [None, None]);
    assert_eq!(pair.look("old", &mut old), Recognised::GoesOn, "the first run that there is");
    assert_eq!(pair.look("old", &mut old), Recognised::Known);
    pair.faults(&owner, &batch("s", 2, &[xid79(2, 101)])).unwrap();
    pair.decide();
    // It goes on where it was, and this hub can tell.
    pair.restarts();
    assert!(pair.deliver(&owner, 1).is_empty(), "nobody has looked yet");
    pair.faults(&owner, &batch("s", 3, &[xid79(3, 102)])).unwrap();
    pair.decide();
    let harmful = |pair: &mut Pair, after| pair.holds(after).commands.iter().filter(|line| line.contains(" evict ")).count();
    assert_eq!(harmful(&mut pair, "a run that nobody knows"), 2, "nor is anything issued");
    assert_eq!(pair.look("old", &mut old), Recognised::GoesOn);
    // The rate lets a third node out in a moment.
    pair.elapse(3);
    pair.decide();
    assert_eq!(harmful(&mut pair, "a run that goes on"), 3);
    assert!(pair.deliver(&owner, 1).len() >= 2);
    // Who has seen nothing cannot tell.
    pair.restarts();
    assert!(matches!(pair.look("new", &mut new), Recognised::MayHaveLost { term: 2, .. }));
    assert_eq!(pair.look("new", &mut new), Recognised::Known);
    assert_eq!(pair.look("old", &mut old), Recognised::Known);
    pair.faults(&owner, &batch("s", 4, &[xid79(4, 103)])).unwrap();
    pair.decide();
    assert_eq!(harmful(&mut pair, "a new epoch"), 3, "no state of the cluster has come under it");
    // What a hub has left is not there any more, whoever has recognised the run: it is raised once for that.
    assert_eq!(pair.look("old", &mut old.clone()), Recognised::Known);
    assert_eq!(pair.look("new", &mut new.clone()), Recognised::Known);
    assert!(matches!(pair.look("old", &mut old), Recognised::MayHaveLost { term: 3, .. }));
    assert_eq!(pair.look("new", &mut new), Recognised::Known, "the epoch has risen since");
    pair.holds("looks");
}

/// Failure table, row 18.
#[test]
fn whose_end_nobody_told_is_asked_for_once_in_a_session_and_again_when_it_was_assumed() {
    let (mut pair, owner) = commanded();
    assert_eq!(pair.unheard(&owner, 1), 0, "it is on its way in this session");
    let (owner, ..) = pair.attach(&hello("spoke-0", &["s"])).unwrap();
    pair.deliver(&owner, 1);
    assert_eq!((pair.unheard(&owner, 1), pair.unheard(&owner, 1)), (1, 0), "its session is over");
    pair.settle(&c1(), 1, &status(1, Wire::Received));
    assert_eq!(pair.unheard(&owner, 1), 0, "it was asked for, and goes on");
    pair.elapse(20_000);
    assert!(pair.sweep() > 0);
    assert_eq!((pair.unheard(&owner, 1), pair.unheard(&owner, 1)), (1, 0), "what it became was assumed");
    let (owner, ..) = pair.attach(&hello("spoke-0", &["s"])).unwrap();
    assert_eq!(pair.unheard(&owner, 1), 1, "a database that was restored has forgotten that it was told");
    pair.settle(&c1(), 1, &status(3, Wire::Succeeded));
    let (owner, ..) = pair.attach(&hello("spoke-0", &["s"])).unwrap();
    assert_eq!(pair.unheard(&owner, 1), 0, "its end was told");
    pair.holds("asked");
}

/// Whoever has not seen a fault sees nothing end.
#[test]
fn a_leader_is_asked_now_and_then_how_faults_stand_of_which_it_has_told_nothing() {
    let (mut pair, owner) = healing();
    let faults = [xid79(1, 100), xid79(2, 100)];
    let keys = |asked: Vec<v1::FaultAsked>| asked.into_iter().map(|asked| asked.fault.unwrap().fault_key).collect::<Vec<_>>();
    let key = |n: usize| faults[n].key.to_string();
    assert_eq!(pair.faults(&owner, &batch("s", 1, &faults)), Ok(2));
    pair.elapse(100);
    assert_eq!(keys(pair.untold(&owner, 1)), [""; 0], "it has told of them itself");
    let follows = |pair: &mut Pair| pair.attach(&Hello { lease_transitions: Some(2), ..hello("spoke-1", &["t"]) }).unwrap().0;
    let next = follows(&mut pair);
    pair.evidence(&c1(), &[evidence(&faults[0], v1::EvidenceState::Seen)]);
    assert_eq!(keys(pair.untold(&next, 2)), [""; 0], "it has had no time to tell");
    pair.elapse(61);
    assert_eq!(keys(pair.untold(&owner, 1)), [""; 0], "who leads no more is not asked");
    assert_eq!((keys(pair.untold(&next, 2)), keys(pair.untold(&next, 2))), (vec![key(1)], vec![]), "once");
    let next = follows(&mut pair);
    pair.elapse(61);
    let mut both = [key(0), key(1)];
    both.sort();
    assert_eq!(keys(pair.untold(&next, 2)), both, "of another session nobody knows what arrived");
    pair.evidence(&c1(), &[evidence(&faults[1], v1::EvidenceState::Clear)]);
    let next = follows(&mut pair);
    pair.elapse(61);
    assert_eq!(keys(pair.untold(&next, 2)), [key(0)], "what is clear has an end");
    // An alert told it to the other replica.
    let alerted = xid79(1, 200);
    assert_eq!(pair.faults(&next, &batch("t", 1, std::slice::from_ref(&alerted))), Ok(1));
    pair.elapse(400);
    assert_eq!(
        (keys(pair.untold(&next, 2)), keys(pair.untold(&next, 2))),
        (vec![key(0)], vec![]),
        "nothing was heard of it for long"
    );
    let other = xid79(3, 200);
    assert_eq!(pair.faults(&next, &batch("t", 2, std::slice::from_ref(&other))), Ok(2));
    pair.elapse(290);
    assert_eq!(keys(pair.untold(&next, 2)), [""; 0], "it may yet be told");
    pair.elapse(20);
    let mut again = [key(0), other.key.to_string()];
    again.sort();
    assert_eq!(keys(pair.untold(&next, 2)), again, "nothing was heard of the other either since it was asked for");
    pair.holds("faults asked for");
}

#[test]
fn nobody_asks_for_what_no_cluster_has_on_record_any_more() {
    let (mut pair, _) = commanded();
    pair.elapse(400);
    pair.sweep();
    let (owner, ..) = pair.attach(&hello("spoke-0", &["s"])).unwrap();
    assert_eq!(pair.unheard(&owner, 1), 1);
    pair.elapse(2 * 86_400);
    let (owner, ..) = pair.attach(&hello("spoke-0", &["s"])).unwrap();
    assert_eq!(pair.unheard(&owner, 1), 0);
}

/// Failure table, row 18.
#[test]
fn what_harms_and_was_issued_before_the_epoch_rose_is_not_sent_and_expires() {
    let (mut pair, _) = commanded();
    let mut welcomed = hello("spoke-0", &["s"]);
    welcomed.seen.term_heard = 5;
    let (owner, ..) = pair.attach(&welcomed).unwrap();
    assert!(pair.deliver(&owner, 1).is_empty(), "nobody knows what the lost commits had out when it was decided");
    pair.elapse(400);
    pair.sweep();
    let held = pair.holds("expired");
    assert!(held.commands.iter().any(|command| command.contains("EXPIRED")), "{:?}", held.commands);
}

#[test]
fn a_session_that_another_outranks_is_sent_nothing() {
    let (mut pair, owner) = healing();
    pair.faults(&owner, &batch("s", 1, &[xid79(1, 100)])).unwrap();
    pair.decide();
    let mut second = hello("spoke-1", &[]);
    second.lease_transitions = Some(2);
    let (second, ..) = pair.attach(&second).unwrap();
    assert!(pair.deliver(&owner, 1).is_empty());
    assert_eq!(pair.deliver(&second, 2), ["c1 command"]);
    pair.detach(&second);
    assert!(pair.deliver(&owner, 1).is_empty(), "it was sent, and this session is older");
    pair.lead(&owner, Some(3)).unwrap();
    assert_eq!(pair.deliver(&owner, 3), ["c1 command"], "it began to lead after that");
}

#[test]
fn not_now_sends_the_same_bytes_again_after_a_pause() {
    let (mut pair, owner) = commanded();
    let busy = v1::CommandStatus { refusal: v1::RefusalCode::NotLeader.into(), ..status(0, Wire::NotNow) };
    pair.settle(&c1(), 1, &busy);
    pair.elapse(2);
    assert_eq!(pair.deliver(&owner, 1), ["c1 command"]);
    pair.holds("a not now");
}

#[test]
fn a_status_is_taken_once_and_one_that_comes_late_is_a_correction() {
    let (mut pair, _) = commanded();
    pair.settle(&c1(), 1, &status(1, Wire::Received));
    pair.settle(&c1(), 1, &status(1, Wire::Received));
    pair.elapse(7200);
    assert_eq!(pair.sweep(), 1);
    assert_eq!(pair.sweep(), 0);
    pair.holds("unknown");
    assert!(pair.settle(&c1(), 1, &done(3, &["notify", "mark", "drain"])));
    pair.decide();
    let held = pair.holds("a correction");
    assert!(held.commands[0].contains("SUCCEEDED") && held.commands[0].contains("corrections 1"), "{:?}", held.commands);
}

#[test]
fn what_nobody_took_expires_and_its_place_comes_back_only_after_a_state_past_start_by() {
    let (mut pair, _) = commanded();
    pair.elapse(361);
    assert_eq!(pair.sweep(), 1);
    pair.decide();
    assert_eq!(pair.holds("expired").out.len(), 2, "nobody has looked yet");
    pair.state(&c1(), 1, 2, snapshot((0..10).map(node).collect()));
    pair.elapse(30);
    pair.decide();
    pair.holds("a look");
}

#[test]
fn a_node_that_was_healed_is_released_once_its_own_source_says_clear_for_the_soak() {
    let (mut pair, owner) = commanded();
    pair.settle(&c1(), 1, &done(2, &["notify", "mark", "drain"]));
    let mut nodes: Vec<_> = (0..10).filter(|n| *n != 1).map(node).collect();
    nodes.push(marked(1, 1));
    pair.state(&c1(), 1, 2, snapshot(nodes));
    pair.decide();
    pair.evidence(&c1(), &[evidence(&xid79(1, 100), EvidenceState::Clear)]);
    pair.decide();
    assert!(pair.deliver(&owner, 1).is_empty());
    pair.elapse(601);
    pair.decide();
    assert!(pair.deliver(&owner, 1).is_empty(), "the cluster was not heard of since");
    pair.elapse(80);
    let quiet = || v1::cluster_state::Body::Delta(v1::StateDelta::default());
    pair.state(&c1(), 1, 3, quiet());
    pair.state(&c1(), 1, 4, quiet());
    // One that cannot say up to when all was told, while what was said before is too old.
    pair.elapse(95);
    pair.state(&c1(), 1, 5, quiet());
    pair.decide();
    assert!(pair.deliver(&owner, 1).is_empty(), "it was heard of, and nobody said that all was told");
    pair.state(&c1(), 1, 6, quiet());
    pair.elapse(31);
    pair.decide();
    assert_eq!(pair.deliver(&owner, 1), ["c1 command"], "the release");
    pair.settle(&c1(), 2, &done(2, &["release"]));
    pair.state(&c1(), 1, 7, snapshot((0..10).map(|n| v1::NodeState { plan_revision: u64::from(n == 1) * 2, ..node(n) }).collect()));
    pair.decide();
    let held = pair.holds("a release");
    assert!(held.out.is_empty() && held.incidents[0].ends_with("closed"), "{held:?}");
    // The very edge that is known is not new; a later one is.
    pair.faults(&owner, &batch("s", 2, &[xid79(1, 100)])).unwrap();
    pair.faults(&owner, &batch("s", 3, &[xid79(1, 900)])).unwrap();
    pair.decide();
    assert_eq!(pair.holds("a new episode").faults.len(), 2);
}

#[test]
fn silence_releases_nothing() {
    let (mut pair, _) = commanded();
    pair.settle(&c1(), 1, &done(2, &["notify", "mark", "drain"]));
    pair.evidence(&c1(), &[evidence(&xid79(1, 100), EvidenceState::Stale)]);
    pair.elapse(7200);
    pair.decide();
    assert!(pair.holds("silence").incidents[0].ends_with("open"));
}

#[test]
fn a_mark_that_no_incident_knows_is_taken_over_and_its_revision_raises_the_term() {
    let (mut pair, _) = healing();
    let mut nodes: Vec<_> = (1..10).map(node).collect();
    nodes.push(marked(0, 7));
    pair.state(&c1(), 1, 2, snapshot(nodes));
    pair.decide();
    let held = pair.holds("an orphan");
    assert_eq!((held.hub_term, held.out.len(), held.incidents.len()), (2, 2, 1));
}

#[test]
fn a_hello_that_has_seen_more_than_this_database_raises_its_term_above_all_that_was_seen() {
    let (mut pair, _) = healing();
    let mut seen = hello("spoke-0", &[]);
    (seen.seen.term, seen.seen.cmd_seq) = (4, 9);
    assert!(pair.attach(&seen).unwrap().1);
    assert!(!pair.attach(&hello("spoke-0", &[])).unwrap().1);
    let (owner, ..) = pair.attach(&hello("spoke-0", &["s"])).unwrap();
    pair.faults(&owner, &batch("s", 1, &[xid79(1, 100)])).unwrap();
    pair.decide();
    assert_eq!(pair.holds("a regression").commands.len(), 0, "nothing new begins where not all is known");
    pair.state(&c1(), 1, 2, snapshot((0..10).map(node).collect()));
    pair.decide();
    let held = pair.holds("a regression, and all that the cluster has");
    assert_eq!(held.hub_term, 5);
    assert!(held.commands[0].starts_with("c1 10 "), "numbers go on above what was seen: {:?}", held.commands);
}

#[test]
fn a_hello_that_has_seen_what_no_hub_can_have_given_out_is_refused_and_moves_nothing() {
    let (mut pair, owner) = healing();
    let before = pair.holds("a fleet");
    for (term, command) in [(u64::MAX, 0), (i64::MAX.unsigned_abs(), 0), (1 << 40, 0), (1, u64::MAX), (1, 1 << 54)] {
        let mut seen = hello("spoke-0", &["s"]);
        (seen.seen.term, seen.seen.cmd_seq) = (term, command);
        assert!(matches!(pair.attach(&seen), Err(Error::Refused(why)) if why.starts_with("implausible")), "{term}, {command}");
    }
    assert!(pair.owned(&owner), "and who is attached stays");
    assert_eq!(pair.holds("what nobody can have seen"), before);
    let far = v1::Gap { stream_id: "s".into(), from_seq: 1, to_seq: u64::MAX, ..Default::default() };
    assert!(pair.gap(&owner, &far).is_err());
    assert!(pair.faults(&owner, &batch("s", u64::MAX, &[xid79(1, 100)])).is_err());
    assert_eq!(pair.faults(&owner, &batch("s", 1, &[xid79(1, 100)])), Ok(1));
}

#[test]
fn a_leader_that_nobody_sees_any_more_keeps_the_next_one_from_its_commands_for_a_minute_and_no_longer() {
    let (mut pair, owner) = healing();
    let mut second = hello("spoke-1", &[]);
    second.lease_transitions = Some(2);
    let (dead, ..) = pair.attach(&second).unwrap();
    pair.faults(&owner, &batch("s", 1, &[xid79(1, 100)])).unwrap();
    pair.decide();
    // Its hub died with its pod: nobody notes that it ended, and the Lease goes back to one whose proof is lower.
    pair.elapse(40);
    assert!(pair.deliver(&owner, 1).is_empty(), "it may be there");
    pair.elapse(40);
    assert_eq!(pair.deliver(&owner, 1), ["c1 command"]);
    assert!(pair.owned(&dead));
}

#[test]
fn a_command_of_before_the_epoch_rose_is_called_off_under_the_epoch_at_hand_and_again_when_that_rises() {
    let (mut pair, _) = commanded();
    let mut seen = hello("spoke-0", &["s"]);
    for (term, at) in [(3, 4), (7, 8)] {
        seen.seen.term = term;
        let (owner, raised, _) = pair.attach(&seen).unwrap();
        assert!(raised);
        pair.stop(Some("a person"));
        pair.decide();
        assert_eq!(pair.deliver(&owner, 1), ["c1 cancel"]);
        assert_eq!(pair.cancel_terms, [at], "a spoke that has seen this epoch takes nothing of an older");
        assert!(pair.deliver(&owner, 1).is_empty(), "once");
    }
}

#[test]
fn a_stop_calls_off_what_is_under_way_and_lets_nothing_new_begin() {
    let (mut pair, owner) = commanded();
    pair.stop(Some("a person"));
    pair.faults(&owner, &batch("s", 2, &[xid79(2, 100)])).unwrap();
    pair.decide();
    assert!(pair.deliver(&owner, 1).contains(&"c1 cancel".to_owned()));
    let held = pair.holds("a stop");
    assert!(held.out.len() == 2 && held.commands.iter().all(|command| !command.contains("n2 evict")), "{held:?}");
    pair.stop(None);
    pair.decide();
    pair.holds("its end");
}

#[test]
fn an_older_leaders_state_and_a_repeated_delta_are_passed_over() {
    let (mut pair, _) = healing();
    let delta = |n: u32| v1::cluster_state::Body::Delta(v1::StateDelta { changed: vec![marked(n, 1)], ..Default::default() });
    pair.state(&c1(), 2, 1, snapshot((0..10).map(node).collect()));
    pair.state(&c1(), 1, 9, delta(3));
    pair.state(&c1(), 2, 1, delta(4));
    assert!(pair.holds("old news").nodes.iter().all(|node| node.contains("marked false")));
    pair.state(&c1(), 2, 2, delta(5));
    assert_eq!(pair.holds("news").nodes.iter().filter(|node| node.contains("marked true")).count(), 1);
}

#[test]
fn a_node_that_is_gone_closes_its_incident_and_frees_its_place() {
    let (mut pair, _) = commanded();
    pair.state(&c1(), 1, 2, snapshot((0..10).filter(|n| *n != 1).map(node).collect()));
    pair.decide();
    let held = pair.holds("a node that went");
    assert!(held.out.is_empty() && held.incidents[0].contains("gone"), "{held:?}");
}

#[test]
fn another_machine_under_the_same_name_is_another_node() {
    let (mut pair, _) = commanded();
    let other = v1::NodeState { uid: "uid-other".into(), ..node(1) };
    let delta = v1::StateDelta { changed: vec![other], gone_uids: vec!["uid-1".into()], ..Default::default() };
    pair.state(&c1(), 1, 2, v1::cluster_state::Body::Delta(delta));
    pair.decide();
    pair.holds("a replacement");
}

#[test]
fn one_number_alone_waits_and_a_second_witness_makes_it_stand() {
    let (mut pair, owner) = healing();
    pair.faults(&owner, &batch("s", 1, &[fault(1, "79", Onset::Standing, Witness::ExporterGauge, 100)])).unwrap();
    pair.decide();
    assert!(pair.holds("one witness").out.is_empty());
    pair.faults(&owner, &batch("s", 2, &[fault(1, "79", Onset::Edge, Witness::Alert, 200)])).unwrap();
    pair.decide();
    assert_eq!(pair.holds("two").out.len(), 2);
}

#[test]
fn a_fault_of_a_node_that_no_state_has_shown_is_kept_and_judged_once_it_is_shown() {
    let (mut pair, owner) = healing();
    pair.faults(&owner, &batch("s", 1, &[xid79(77, 100)])).unwrap();
    pair.decide();
    let unseen = pair.holds("an unknown node");
    assert_eq!((unseen.incidents.len(), unseen.commands.len()), (1, 0));
    let mut nodes: Vec<_> = (0..10).map(node).collect();
    nodes.push(node(77));
    pair.state(&c1(), 1, 2, snapshot(nodes));
    pair.decide();
    assert_eq!(pair.holds("shown").commands.len(), 1);
}

#[test]
fn a_command_that_a_database_lost_is_taken_over_while_it_stands_and_only_as_this_hub_signed_it() {
    let (mut pair, _) = healing();
    let now = pair.now();
    let shown = || snapshot((0..10).map(|n| if n == 1 { marked(1, 7) } else { node(n) }).collect());
    pair.state(&c1(), 1, 2, shown());
    let marks = lost(1, 5, 7, now);
    assert!(!pair.show(&marks, true, &done(3, &["mark"])), "the epoch has risen, and its nodes have not been shown since");
    assert_eq!(pair.holds("one that is to be told again").commands.len(), 0);
    pair.state(&c1(), 1, 4, shown());
    assert!(!pair.show(&marks, false, &done(3, &["mark"])), "somebody else's");
    assert!(!pair.show(&lost(2, 6, 3, now), true, &done(3, &["mark"])), "it is over, and nothing of it is there");
    pair.holds("two that nobody takes over");
    assert!(pair.show(&marks, true, &done(3, &["mark"])), "its undo record is known now");
    assert!(pair.show(&marks, true, &done(3, &["mark"])), "a second time it is known already");
    pair.show(&lost(3, 8, 4, now), true, &status(1, Wire::Started));
    pair.decide();
    let held = pair.holds("two that are taken over");
    assert_eq!(held.commands.len(), 2, "{:?}", held.commands);
    assert_eq!(held.out.len(), 3, "both nodes count as out: {:?}", held.out);
    // A number that was given out again since leaves no room for what bore it.
    pair.show(&lost(4, 8, 4, now), true, &status(1, Wire::Started));
    assert_eq!(pair.holds("one whose number is taken").commands.len(), 2);
}

#[test]
fn a_release_that_a_person_began_and_the_database_lost_is_taken_over_as_theirs() {
    for (overridden, state) in [(true, "overriding"), (false, "releasing")] {
        let (mut pair, _) = healing();
        let now = pair.now();
        let shown = || snapshot((0..10).map(|n| if n == 1 { marked(1, 7) } else { node(n) }).collect());
        pair.state(&c1(), 1, 2, shown());
        pair.state(&c1(), 1, 4, shown());
        let steps = vec![Step::Release { undo: Undo::default(), overridden }];
        pair.show(&Command { steps, ..lost(1, 6, 8, now) }, true, &status(1, Wire::Started));
        let held = pair.holds("a lost release");
        assert_eq!(held.incidents.len(), 1);
        assert!(held.incidents[0].contains(state), "{:?}", held.incidents);
    }
}

#[test]
fn a_change_counts_only_on_the_state_that_it_was_made_for() {
    let (mut pair, _) = healing();
    let empty = || v1::cluster_state::Body::Delta(v1::StateDelta::default());
    for (lease, seq) in [(1, 2), (1, 4), (1, 2), (2, 3), (1, 3), (0, 9)] {
        pair.state(&c1(), lease, seq, empty());
        pair.holds(&format!("change {seq} of leadership {lease}"));
    }
}
