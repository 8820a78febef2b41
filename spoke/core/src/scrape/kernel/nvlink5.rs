//! Xid 144 to 150: the words of the line, and what NVIDIA's table says about them.
//!
//! The first hex word (IntrInfo) holds the unit, at other bits before and from driver 575 on; the second is the unit's
//! ErrorStatus. The table is `data/xid-nvlink5-decode.tsv`. What the table does not know stays undecoded: no level is
//! guessed from the words alone.

use std::sync::LazyLock;

use super::Severity;
use super::line::severity;

/// From this driver on, the bits of the newer column hold.
const DRIVER_OF_NEWER_BITS: u32 = 575;

/// What the line itself says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nvlink5 {
    /// Such as `NETIR_LINK_EVT`.
    pub unit: String,
    /// In the driver's words. DCGM may say fatal where this line says nonfatal; the line is right.
    pub severity: Option<Severity>,
    /// `i1`: injected by a person for a test, no fault.
    pub injected: bool,
    /// The link; `Link -1` is none.
    pub link: Option<u16>,
    /// First hex word.
    pub intr_info: u32,
    /// Second hex word.
    pub error_status: u32,
}

/// What is to be done at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Nvlink5Action {
    /// Nothing.
    Ignore,
    /// Whatever the Xid 154 that follows says.
    FollowXid154,
    /// Reset the GPU.
    ResetGpu,
}

/// One row of the table, as far as it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decode {
    /// The unit by its full name.
    pub unit: &'static str,
    /// What to do.
    pub action: Nvlink5Action,
    /// What to look into afterwards, in NVIDIA's words.
    pub investigate: &'static str,
    /// The table's own severity; see [`Nvlink5::severity`] for the line's.
    pub severity: &'static str,
}

#[derive(Debug)]
struct Entry {
    xid: u16,
    older: Bits,
    newer: Bits,
    status: Option<u32>,
    /// Only known by the newer bits: the table's second decoding of one row.
    newer_only: bool,
    decode: Decode,
}

#[derive(Clone, Copy, Debug)]
struct Bits {
    mask: u32,
    want: u32,
}

static TABLE: LazyLock<Vec<Entry>> =
    LazyLock::new(|| include_str!("../../../data/xid-nvlink5-decode.tsv").lines().skip(1).flat_map(entries).collect());

impl Nvlink5 {
    /// `NETIR_LINK_EVT  Fatal   XC0 i0 Link 00 (0x026001c6 0x00000000 …)`
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (words, numbers) = text.split_once('(')?;
        let mut numbers = numbers.split([' ', ')']).filter_map(|word| hex(word.trim_end_matches(',')));
        let words: Vec<_> = words.split_whitespace().collect();
        let link = words.iter().position(|word| *word == "Link").and_then(|at| words.get(at + 1));
        Some(Self {
            unit: words.first().copied().unwrap_or_default().to_owned(),
            severity: words.iter().find_map(|word| severity(word)),
            injected: words.contains(&"i1"),
            link: link.and_then(|link| link.parse().ok()),
            intr_info: numbers.next()?,
            error_status: numbers.next()?,
        })
    }

    /// Looks the words up. Without the driver's version both layouts are tried, and an answer is given only where all
    /// rows that fit agree on the action.
    pub fn decode(&self, xid: u16, driver_major: Option<u32>) -> Option<&'static Decode> {
        let by_unit = |entry: &&Entry| self.unit.is_empty() || names_unit(entry.decode.unit, &self.unit);
        let fits = |entry: &&Entry| entry.xid == xid && entry.fits(self.intr_info, driver_major);
        let rows: Vec<_> = TABLE.iter().filter(fits).collect();
        // Names in lines and table differ for some units; the bits decide, the name only narrows.
        let named: Vec<_> = rows.iter().copied().filter(by_unit).collect();
        let rows = if named.is_empty() { rows } else { named };
        let exact: Vec<_> = rows.iter().filter(|entry| entry.status.is_none_or(|status| status == self.error_status)).collect();
        if exact.is_empty() {
            // Several bits at once: the worst of them counts.
            let bit =
                |entry: &&&Entry| entry.status.is_some_and(|status| status.is_power_of_two() && status & self.error_status != 0);
            return rows.iter().filter(bit).map(|entry| &entry.decode).max_by_key(|decode| decode.action);
        }
        let first = &exact[0].decode;
        exact.iter().all(|entry| entry.decode.action == first.action).then_some(first)
    }
}

impl Entry {
    fn fits(&self, intr_info: u32, driver_major: Option<u32>) -> bool {
        let older = !self.newer_only && self.older.fit(intr_info);
        let newer = self.newer.fit(intr_info);
        match driver_major {
            Some(major) if major < DRIVER_OF_NEWER_BITS => older,
            Some(_) => newer,
            None => older || newer,
        }
    }
}

impl Bits {
    /// 32 characters from bit 31 down: `0`, `1`, or `-` for any.
    fn parse(pattern: &str) -> Option<Self> {
        let bits = pattern.bytes().try_fold(Self { mask: 0, want: 0 }, |bits, byte| {
            let (mask, want) = (bits.mask << 1, bits.want << 1);
            match byte {
                b'-' => Some(Self { mask, want }),
                b'0' => Some(Self { mask: mask | 1, want }),
                b'1' => Some(Self { mask: mask | 1, want: want | 1 }),
                _ => None,
            }
        });
        bits.filter(|_| pattern.len() == 32)
    }

    fn fit(self, word: u32) -> bool {
        word & self.mask == self.want
    }
}

/// The entries of one row; none if it cannot be read, which a test forbids.
fn entries(row: &'static str) -> Vec<Entry> {
    let columns: Vec<_> = row.split('\t').collect();
    let [xid, unit, older, newer, statuses, action, newer_too, action_too, investigate, severity, ..] = columns[..] else {
        return Vec::new();
    };
    let (Ok(xid), Some(older), Some(newer)) = (xid.parse(), Bits::parse(older), Bits::parse(newer)) else {
        return Vec::new();
    };
    let mut out = Vec::new();
    for status in statuses.split('/').map(hex) {
        let mut entry = |newer, action, newer_only| {
            let decode = Decode { unit, action, investigate, severity };
            out.push(Entry { xid, older, newer, status, newer_only, decode });
        };
        if let Some(action) = action_named(action) {
            entry(newer, action, false);
        }
        if let (Some(newer), Some(action)) = (Bits::parse(newer_too), action_named(action_too)) {
            entry(newer, action, true);
        }
    }
    out
}

fn action_named(name: &str) -> Option<Nvlink5Action> {
    match name {
        "IGNORE" => Some(Nvlink5Action::Ignore),
        "XID_154_EVAL" => Some(Nvlink5Action::FollowXid154),
        "RESET_GPU" => Some(Nvlink5Action::ResetGpu),
        _ => None,
    }
}

fn names_unit(in_table: &str, in_line: &str) -> bool {
    in_table.split('/').any(|name| name.eq_ignore_ascii_case(in_line))
}

fn hex(word: &str) -> Option<u32> {
    u32::from_str_radix(word.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_is_read() {
        let rows = include_str!("../../../data/xid-nvlink5-decode.tsv").lines().skip(1);
        assert_eq!(rows.clone().count(), 95);
        for row in rows {
            assert!(!entries(row).is_empty(), "{row}");
        }
    }

    #[test]
    fn a_real_line_is_decoded_with_and_without_the_driver_version() {
        let event = Nvlink5::parse(
            "NETIR_LINK_EVT  Fatal   XC0 i0 Link 00 (0x026001c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
        )
        .unwrap();
        assert_eq!((event.severity, event.injected, event.link), (Some(Severity::Fatal), false, Some(0)));
        for driver in [None, Some(570)] {
            let decode = event.decode(149, driver).unwrap();
            assert_eq!((decode.action, decode.investigate), (Nvlink5Action::Ignore, "INVESTIGATE_SW/USER"));
        }
        assert_eq!(event.decode(149, Some(580)), None);
    }

    #[test]
    fn the_line_says_nonfatal_whatever_dcgm_says() {
        let event = Nvlink5::parse("RLW_REMAP  Nonfatal XC1 i0 Link -1 (0x00000082 0x00000004 0x0)").unwrap();
        assert_eq!((event.severity, event.link), (Some(Severity::NonFatal), None));
        assert_eq!(event.decode(145, Some(570)).unwrap().action, Nvlink5Action::FollowXid154);
    }

    #[test]
    fn i1_marks_an_injected_event_and_no_instance() {
        assert!(Nvlink5::parse("SAW_MVB Fatal XC0 i1 Link 03 (0x00000021 0x00000002)").unwrap().injected);
    }

    #[test]
    fn of_several_status_bits_the_worst_counts() {
        let event = Nvlink5::parse("SAW_MVB Fatal XC0 i0 Link 03 (0x00000021 0x00000003)").unwrap();
        assert_eq!(event.decode(144, Some(570)).unwrap().action, Nvlink5Action::ResetGpu);
    }

    #[test]
    fn the_second_decoding_of_a_row_needs_the_newer_driver() {
        let event = Nvlink5::parse("RLW_RXPIPE Nonfatal XC0 i0 Link 03 (0x00000086 0x00000001)").unwrap();
        assert_eq!(event.decode(145, Some(580)).unwrap().action, Nvlink5Action::ResetGpu);
        let event = Nvlink5::parse("RLW_RXPIPE Nonfatal XC0 i0 Link 03 (0x00000006 0x00000001)").unwrap();
        assert_eq!(event.decode(145, Some(580)).unwrap().action, Nvlink5Action::Ignore);
    }

    #[test]
    fn words_that_the_table_does_not_know_stay_undecoded() {
        let event = Nvlink5::parse("NEW_UNIT Fatal XC0 i0 Link 03 (0xffffffff 0xffffffff)").unwrap();
        assert_eq!(event.decode(149, None), None);
        assert_eq!(Nvlink5::parse("NETIR_LINK_EVT Fatal"), None);
    }
}
