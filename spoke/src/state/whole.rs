//! Whether the hub has, for certain, all that it asked for beside the snapshot: how everything stands, the faults that stand as the
//! journal has them anew, and every command on record. Pure.

/// See the module. `A` is who is told: another reign, session or request begins anew.
#[derive(Debug)]
pub struct Whole<A> {
    audience: Option<A>,
    /// How many faults had been found when all was told: once these are acked the hub has it.
    found: Option<u64>,
    is: bool,
    /// It was said in a message.
    pub said: bool,
}

impl<A> Default for Whole<A> {
    fn default() -> Self {
        Self { audience: None, found: None, is: false, said: false }
    }
}

impl<A: PartialEq> Whole<A> {
    /// `told`: all was told to this audience, and acked but for the `unacked` last of the `found` faults.
    pub fn look(&mut self, audience: Option<A>, told: bool, found: u64, unacked: u64) -> bool {
        if self.audience != audience {
            *self = Self { audience, ..Self::default() };
        }
        if told && self.audience.is_some() {
            let mark = *self.found.get_or_insert(found);
            self.is |= found.saturating_sub(unacked) >= mark;
        }
        self.is
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_there_once_it_was_told_and_every_fault_that_was_found_by_then_is_acked() {
        let mut whole = Whole::default();
        assert!(!whole.look(None, true, 0, 0), "nobody was told");
        assert!(!whole.look(Some(1), false, 3, 0));
        assert!(!whole.look(Some(1), true, 5, 2), "two are on their way");
        assert!(!whole.look(Some(1), true, 7, 3));
        assert!(whole.look(Some(1), true, 7, 2), "what came since is another matter");
        assert!(whole.look(Some(1), false, 9, 9), "and it stays so");
        assert!(!whole.look(Some(2), false, 9, 0), "for that session and request alone");
    }
}
