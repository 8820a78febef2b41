//! The oracle bites: with one guard taken away, an invariant breaks within a few seeds. Each test is named for the guard.

use gpuheal_sim::{
    mutation::{Mutation, Mutations},
    world::{Options, run},
};

/// The first seed that breaks without this guard, and what breaks.
fn breaks(without: Mutation, seeds: u64) -> Option<(u64, &'static str)> {
    let options = Options { mutations: Mutations::only(without), trace: false };
    (1..=seeds).find_map(|seed| run(seed, options).broken.map(|broken| (seed, broken.invariant)))
}

macro_rules! guards {
    ($($name:ident: $mutation:ident within $seeds:literal),+ $(,)?) => {
        $(#[test]
        fn $name() {
            let broken = breaks(Mutation::$mutation, $seeds);
            println!("{:?}: {broken:?}", Mutation::$mutation);
            assert!(broken.is_some(), "nothing broke within {} seeds", $seeds);
        })+
    };
}

guards!(
    an_ack_before_the_commit_loses_faults: AckBeforeCommit within 40,
    without_the_audit_something_is_done_that_nobody_can_read: NoAudit within 10,
    without_the_budgets_guard_too_many_nodes_are_out: BudgetUnguarded within 40,
    without_the_lease_two_leaders_act: AnyLeader within 40,
    an_act_before_its_intent_has_no_record: ActBeforeIntent within 10,
    an_undo_record_after_the_patch_leaves_our_mark: UndoAfterPatch within 60,
    without_the_ceiling_more_nodes_are_out_than_the_owner_allows: NoCeiling within 60,
    a_silent_source_that_counts_as_clear_releases_what_is_ill: SilenceIsHealth within 60,
);
