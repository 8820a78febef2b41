//! Pure: whether two processes take turns as one replica. A process that starts again has a boot id that nobody has seen;
//! one that was replaced never comes back. Two that keep coming back are copies of one identity.

use std::time::Duration;

use gpuheal_proto::time::Timestamp;

/// Within which turns count. Two copies that attach with full jitter of 30 s take a turn each 30 s at the slowest.
pub const TURNS_WITHIN: Duration = Duration::from_secs(5 * 60);
/// So many turns may be an unlucky restart: the old process's last attach came late, and its successor's came again.
pub const TURNS_MAX: usize = 3;

/// Whether boot ids that took over from each other, in order and each with its moment, alternate too often.
#[must_use]
pub fn alternates(boots: &[(String, Timestamp)], now: Timestamp) -> bool {
    let recent: Vec<&str> = boots.iter().filter(|(_, at)| now.since(*at) <= TURNS_WITHIN).map(|(boot, _)| boot.as_str()).collect();
    let came_back = |at: &usize| recent[..*at].contains(&recent[*at]);
    // The first change of each pair is a restart as far as anybody can tell, and a turn if the other comes back.
    let returns = (1..recent.len()).filter(came_back).count();
    returns > 0 && returns + 1 > TURNS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(boots: &str, every_s: i64) -> bool {
        let at = |n: usize| Timestamp::from_unix_ms(i64::try_from(n).unwrap() * every_s * 1000);
        let seen: Vec<_> = boots.chars().enumerate().map(|(n, boot)| (boot.to_string(), at(n))).collect();
        alternates(&seen, at(seen.len().saturating_sub(1)))
    }

    #[test]
    fn more_than_three_turns_of_two_boot_ids_in_five_minutes_are_a_clone() {
        assert!(!turns("abab", 10), "three turns");
        assert!(turns("ababa", 10), "four turns");
        assert!(turns("ababa", 75), "just within five minutes");
        assert!(!turns("ababa", 80), "too slow to be one");
    }

    #[test]
    fn a_process_that_keeps_crashing_is_no_clone() {
        assert!(!turns("abcdefghijklmnop", 1));
        assert!(!turns("", 1));
    }

    #[test]
    fn three_copies_are_found_as_two_are() {
        assert!(turns("abcabc", 10));
    }
}
