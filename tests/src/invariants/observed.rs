//! Pure: what a cluster's own story of its nodes says about budgets and releases, moment by moment rather than at the end.

use std::collections::BTreeSet;

use crate::observe::NodeChange;

const fn marked(change: &NodeChange) -> bool {
    change.tainted || change.labelled
}

/// The most nodes that carried our marks at one moment.
pub(super) fn most_marked(changes: &[NodeChange]) -> usize {
    let mut out = BTreeSet::new();
    let count = changes.iter().map(|change| {
        if marked(change) {
            out.insert(&change.node);
        } else {
            out.remove(&change.node);
        }
        out.len()
    });
    count.max().unwrap_or_default()
}

/// What a release left otherwise than it was before the node was marked last: our marks, or the cordon.
pub(super) fn unrestored(changes: &[NodeChange]) -> Option<String> {
    let last = changes.last()?;
    if marked(last) {
        return Some("it still carries our marks".to_owned());
    }
    let end = changes.iter().rposition(marked)?;
    let before = changes[..end].iter().rfind(|change| !marked(change))?;
    let cordoned = |change: &NodeChange| if change.cordoned { "cordoned" } else { "not cordoned" };
    (before.cordoned != last.cordoned).then(|| format!("it was {} before and is {} now", cordoned(before), cordoned(last)))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn change(node: &str, marked: bool, cordoned: bool) -> NodeChange {
        NodeChange { at: Instant::now(), node: node.to_owned(), tainted: marked, labelled: marked, cordoned }
    }

    #[test]
    fn nodes_that_were_out_one_after_the_other_count_once() {
        let story = [change("a", true, true), change("a", false, false), change("b", true, true), change("b", false, false)];
        assert_eq!(most_marked(&story), 1);
        assert_eq!(most_marked(&[change("a", true, true), change("b", true, true), change("a", false, false)]), 2);
        assert_eq!(most_marked(&[]), 0);
    }

    #[test]
    fn a_release_that_leaves_our_cordon_or_takes_a_persons_is_seen() {
        let whole = [change("a", false, false), change("a", true, true), change("a", false, false)];
        assert_eq!(unrestored(&whole), None);
        let persons = [change("a", false, true), change("a", true, true), change("a", false, true)];
        assert_eq!(unrestored(&persons), None);
        let ours_left = [change("a", false, false), change("a", true, true), change("a", false, true)];
        assert_eq!(unrestored(&ours_left).as_deref(), Some("it was not cordoned before and is cordoned now"));
        let theirs_gone = [change("a", false, true), change("a", true, true), change("a", false, false)];
        assert!(unrestored(&theirs_gone).is_some());
        assert!(unrestored(&[change("a", false, false), change("a", true, true)]).is_some());
    }
}
