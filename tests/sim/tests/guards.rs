//! The oracle bites: with one guard taken away an invariant breaks, at a seed whose run is whole with it. Each test is
//! named for the guard.

use gpuheal_sim::{
    mutation::{Mutation, Mutations},
    world::{Options, run},
};

/// Seeds that are tried from the one that is known to break: after a change of the world it may be another.
const TRIED: u64 = 150;

/// A seed that breaks without this guard and holds with it, and what breaks.
fn breaks(without: Mutation, from: u64) -> Option<(u64, &'static str)> {
    let options = Options { mutations: Mutations::only(without), trace: false };
    (from..from + TRIED)
        .filter_map(|seed| run(seed, options).broken.map(|broken| (seed, broken.invariant)))
        .find(|(seed, _)| run(*seed, Options::default()).broken.is_none())
}

macro_rules! guards {
    ($($name:ident: $mutation:ident at $seed:literal),+ $(,)?) => {
        $(#[test]
        fn $name() {
            let broken = breaks(Mutation::$mutation, $seed);
            println!("{:?}: {broken:?}", Mutation::$mutation);
            assert!(broken.is_some(), "nothing broke from seed {} to {}", $seed, $seed + TRIED - 1);
        })+

        /// The guards that have a test here.
        const SHOWN: &[Mutation] = &[$(Mutation::$mutation),+];
    };
}

guards!(
    a_session_that_was_taken_over_would_commit: AnyGeneration at 4,
    an_ack_before_the_commit_loses_faults: AckBeforeCommit at 1,
    without_its_deadline_a_command_is_sent_late: ResendAfterExpiry at 14,
    without_the_term_what_is_lost_is_not_missed: TermNeverRises at 82,
    without_the_budgets_guard_too_many_nodes_are_out: BudgetUnguarded at 5,
    a_place_given_back_unseen_lets_too_many_out: HoldFreedBlind at 106,
    without_the_audit_something_is_done_that_nobody_can_read: NoAudit at 1,
    without_a_tombstone_what_was_refused_is_done: NoTombstone at 73,
    without_the_time_a_command_is_begun_late: AnyTime at 23,
    without_the_lease_two_leaders_act: AnyLeader at 3,
    without_the_version_what_somebody_else_wrote_is_lost: AnyVersion at 26,
    an_act_before_its_intent_has_no_record: ActBeforeIntent at 1,
    an_undo_record_after_the_patch_leaves_our_mark: UndoAfterPatch at 57,
    a_stream_that_goes_on_after_a_crash_loses_faults: StreamReused at 15,
    a_silent_source_that_counts_as_clear_releases_what_is_ill: SilenceIsHealth at 47,
    without_the_ceiling_more_nodes_are_out_than_the_owner_allows: NoCeiling at 14,
    an_intent_that_nobody_takes_up_never_ends: NobodyResumes at 29,
    a_word_that_is_told_once_may_never_be_heard: ToldOnce at 220,
    without_the_sweep_a_command_never_ends: NoSweep at 10,
    without_the_signature_anybody_commands: AnySignature at 18,
    a_hub_that_thinks_it_was_told_all_releases_what_is_ill: ToldBlind at 1902,
    a_drain_that_counts_for_every_gpu_leaves_the_users_of_the_next: AnyDrainIsAll at 105,
    whose_end_nobody_asks_for_stays_unknown: NobodyIsAsked at 29,
    a_server_started_anew_that_is_taken_for_the_old_one_forgets_who_is_out: AnyServer at 615,
    a_fault_whose_finder_is_gone_is_never_over: FindersAlone at 2,
    without_a_judge_who_is_ill_stays_in_its_place: NobodyJudges at 8,
    a_release_that_nobody_commands_leaves_a_healthy_node_out: NobodyReleases at 1,
    a_hub_that_serves_without_its_database_commands_by_what_it_last_saw: ServesWithoutDatabase at 60,
    a_leader_that_proves_itself_unseen_is_commanded_by_a_hub_that_lost_commits: ProvesUnseen at 227,
);

#[test]
fn every_guard_that_can_be_taken_away_is_shown_here() {
    let missing: Vec<_> = Mutation::ALL.iter().filter(|mutation| !SHOWN.contains(mutation)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
