//! Lines to events: several lines of one event count once, old lines of the ring buffer not at all.
//!
//! The first line of an event is given out at once; its followers within [`GROUP_SPAN`] of kernel time are counted.
//! Only a lost GPU told in three lines waits for its third. Held state is small and bounded, and journaled as [`Cursor`].

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::slot::PciSlot;
use super::{KmsgRecord, Line, Sxid, Xid, XidDetail, parse_line};

/// How long followers belong to the first line. The lines of one event are written by one call of the driver, within a
/// millisecond; a second leaves room for a slow serial console. An Xid that comes again later is an event of its own.
pub const GROUP_SPAN: Duration = Duration::from_secs(1);

/// Most events whose followers are awaited: 16 GPUs with 16 codes each. Beyond, the oldest is forgotten.
const GROUPS_MAX: usize = 256;

/// How far a node's log has been read. A new boot begins anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The kernel's boot id.
    pub boot_id: String,
    /// The next record not yet taken.
    pub next_sequence: u64,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelEvent {
    /// An Xid.
    Xid(Xid),
    /// An NVSwitch error.
    Sxid(Sxid),
    /// A GPU fell off the bus.
    GpuLost(PciSlot),
}

/// What taking one record came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// What it says that is new.
    pub events: Vec<KernelEvent>,
    /// Lines that belong to an event given out before.
    pub followers: u32,
    /// Records that were overwritten before we read them.
    pub lost_records: u64,
    /// The record was read before, in this boot.
    pub replayed: bool,
    /// User space wrote a line that looks like the driver's: refused, and worth telling.
    pub forged: bool,
}

/// Reads the log of one boot of one node.
#[derive(Clone, Debug, Default)]
pub struct Assembler {
    cursor: Cursor,
    started: bool,
    /// When the first line of each event was written.
    groups: BTreeMap<Group, u64>,
    /// A GPU named by the first of three lines, and when.
    losing: Option<(PciSlot, u64)>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Xid(PciSlot, u16, Option<u32>),
    Sxid(PciSlot, u32),
    Lost(PciSlot),
}

impl Assembler {
    /// Goes on where a cursor stands; in another boot than the cursor's, from the beginning.
    pub fn resume(cursor: Cursor, boot_id: &str) -> Self {
        if cursor.boot_id == boot_id {
            return Self { cursor, started: true, ..Self::default() };
        }
        Self { cursor: Cursor { boot_id: boot_id.to_owned(), next_sequence: 0 }, ..Self::default() }
    }

    /// What to journal.
    pub fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// Takes the next record of the log.
    pub fn take(&mut self, record: &KmsgRecord) -> Taken {
        let mut out = Taken::default();
        if record.sequence < self.cursor.next_sequence {
            out.replayed = true;
            return out;
        }
        // The ring buffer of a boot that was never read may begin anywhere: that is age, not loss.
        if self.started {
            out.lost_records = record.sequence - self.cursor.next_sequence;
        }
        self.started = true;
        self.cursor.next_sequence = record.sequence.saturating_add(1);
        for line in record.text.lines() {
            let line = parse_line(line);
            if !record.is_kernel() {
                out.forged |= line != Line::Other;
            } else {
                self.take_line(line, record.monotonic_us, &mut out);
            }
        }
        out
    }

    fn take_line(&mut self, line: Line, at_us: u64, out: &mut Taken) {
        let event = match line {
            Line::Xid(xid) => KernelEvent::Xid(xid),
            Line::Sxid(sxid) => KernelEvent::Sxid(sxid),
            Line::GpuLost(slot) => KernelEvent::GpuLost(slot),
            Line::LostNames(slot) => {
                self.losing = Some((slot, at_us));
                return;
            }
            Line::LostEnds => match self.losing.take() {
                Some((slot, since_us)) if within_span(since_us, at_us) => KernelEvent::GpuLost(slot),
                _ => return,
            },
            Line::LostMiddle | Line::Other => return,
        };
        if self.is_first(group(&event), at_us) {
            out.events.push(event);
        } else {
            out.followers += 1;
        }
    }

    fn is_first(&mut self, group: Group, at_us: u64) -> bool {
        if self.groups.get(&group).is_some_and(|&since_us| within_span(since_us, at_us)) {
            return false;
        }
        if self.groups.len() >= GROUPS_MAX {
            self.groups.retain(|_, &mut since_us| within_span(since_us, at_us));
        }
        if self.groups.len() >= GROUPS_MAX
            && let Some(oldest) = self.groups.iter().min_by_key(|(_, since_us)| **since_us).map(|(group, _)| group.clone())
        {
            self.groups.remove(&oldest);
        }
        self.groups.insert(group, at_us);
        true
    }
}

fn group(event: &KernelEvent) -> Group {
    match event {
        // A changed recovery action is news each time: reset wanted, then none wanted. So is each link of an NVLink event.
        KernelEvent::Xid(xid) => Group::Xid(xid.slot, xid.code, part(&xid.detail)),
        KernelEvent::Sxid(sxid) => Group::Sxid(sxid.slot, sxid.code),
        KernelEvent::GpuLost(slot) => Group::Lost(*slot),
    }
}

fn part(detail: &XidDetail) -> Option<u32> {
    match detail {
        XidDetail::Recovery(super::RecoveryAction::Other(number)) => Some(*number),
        XidDetail::Recovery(action) => Some(match action {
            super::RecoveryAction::None => 0,
            super::RecoveryAction::ResetGpu => 1,
            super::RecoveryAction::RebootNode => 2,
            super::RecoveryAction::DrainP2p => 3,
            super::RecoveryAction::DrainAndReset | super::RecoveryAction::Other(_) => 4,
        }),
        XidDetail::Nvlink5(event) => event.link.map(u32::from),
        XidDetail::None | XidDetail::CausedBy(_) | XidDetail::Unit { .. } => None,
    }
}

fn within_span(since_us: u64, at_us: u64) -> bool {
    u128::from(at_us.saturating_sub(since_us)) <= GROUP_SPAN.as_micros()
}
