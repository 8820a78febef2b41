//! The shipped catalogue of Xids: what each code is, our level for it, and whether it is the application's own fault.
//! The table is data (`data/xid-catalogue.tsv`); a policy's `levels` overrides any row of it.

use std::{collections::BTreeMap, sync::LazyLock};

use gpuheal_proto::words::Level;

const TABLE: &str = include_str!("../data/xid-catalogue.tsv");

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xid {
    /// Its name.
    pub name: &'static str,
    /// Its level.
    pub level: XidLevel,
    /// What NVIDIA recommends.
    pub action: &'static str,
    /// The application's own fault: never by itself a reason to quarantine.
    pub user_app: bool,
}

impl Xid {
    /// What happened, in the words of people: `GPU has fallen off the bus`. Codes of old are known by their name alone.
    #[must_use]
    pub fn meaning(&self) -> &'static str {
        let (symbol, words) = self.name.split_once(" (").unwrap_or((self.name, ""));
        let words = words.strip_suffix(')').unwrap_or(words);
        let words = words.split(" -- ").next().unwrap_or(words);
        if words.is_empty() || words.starts_with("unused") { symbol } else { words }
    }
}

/// What the table says of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XidLevel {
    /// This one.
    Fixed(Level),
    /// The sub-code in the line decides (NVLink 5: 144 to 150).
    ByDecode,
    /// The recovery action in the line decides (154).
    ByAction,
}

static XIDS: LazyLock<BTreeMap<u32, Xid>> = LazyLock::new(|| TABLE.lines().skip(1).filter_map(row).collect());

fn row(line: &'static str) -> Option<(u32, Xid)> {
    let mut cells = line.split('\t');
    let code = cells.next()?.parse().ok()?;
    let (name, _category) = (cells.next()?, cells.next()?);
    let level = match cells.next()? {
        "by_decode" => XidLevel::ByDecode,
        "by_action" => XidLevel::ByAction,
        word => XidLevel::Fixed(Level::parse(word)?),
    };
    let (action, user_app) = (cells.next()?, cells.next()? == "yes");
    Some((code, Xid { name, level, action, user_app }))
}

/// The row of a code, or nothing when nobody knows it.
#[must_use]
pub fn xid(code: &str) -> Option<&'static Xid> {
    XIDS.get(&code.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_is_read() {
        assert_eq!(XIDS.len(), TABLE.lines().count() - 1);
        assert_eq!(XIDS.len(), 173);
    }

    #[test]
    fn the_codes_that_everybody_knows_have_their_levels() {
        for code in ["48", "79", "95", "119"] {
            assert_eq!(xid(code).unwrap().level, XidLevel::Fixed(Level::P0), "{code}");
        }
        for code in ["13", "31", "43", "45"] {
            let xid = xid(code).unwrap();
            assert!(xid.user_app && xid.level == XidLevel::Fixed(Level::P2), "{code}");
        }
        assert_eq!(xid("94").unwrap().level, XidLevel::Fixed(Level::P1));
        assert_eq!(xid("145").unwrap().level, XidLevel::ByDecode);
        assert_eq!(xid("154").unwrap().level, XidLevel::ByAction);
    }

    #[test]
    fn a_code_is_told_in_the_words_of_people() {
        for (code, words) in [
            ("79", "GPU has fallen off the bus"),
            ("45", "Preemptive cleanup, due to previous errors"),
            ("1", "ROBUST_CHANNEL_FIFO_ERROR_FIFO_METHOD"),
        ] {
            assert_eq!(xid(code).unwrap().meaning(), words);
        }
        assert!(XIDS.values().all(|xid| !xid.meaning().is_empty()));
    }

    #[test]
    fn what_is_no_code_of_the_table_is_unknown() {
        for code in ["0", "174", "999", "", "79x", "-1"] {
            assert_eq!(xid(code), None, "{code}");
        }
    }
}
