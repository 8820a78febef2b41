//! Kernel lines to GPU events: Xid, SXid, and the GPU that fell off the bus.
//!
//! Takes records of /dev/kmsg only, and of these only facility 0: user space can write into the log, also text that
//! begins with `NVRM:`, but cannot give it that facility. `parse_line` reads one line and remembers nothing;
//! [`Assembler`] joins the lines of one event and skips what was read before. Reads no file and no clock.

mod assemble;
mod kmsg;
mod line;
mod nvlink5;

pub use assemble::{Assembler, Cursor, GROUP_SPAN, KernelEvent, Taken};
pub use kmsg::{KmsgError, KmsgRecord, RECORD_BYTES_MAX};
pub use line::{Line, parse_line};
pub use nvlink5::{Decode, Nvlink5, Nvlink5Action};

use super::slot::PciSlot;

/// One Xid line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xid {
    /// The GPU.
    pub slot: PciSlot,
    /// The Xid.
    pub code: u16,
    /// The process, where the driver names it.
    pub pid: Option<u32>,
    /// Its name, where the driver names it.
    pub process: Option<String>,
    /// What the line says beyond that.
    pub detail: XidDetail,
    /// The driver's own words. Free text: not to leave the node unless asked for.
    pub text: String,
}

/// What the words of some Xids mean.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum XidDetail {
    /// Nothing more.
    #[default]
    None,
    /// Xid 154: what the driver wants done.
    Recovery(RecoveryAction),
    /// Xid 144 to 150.
    Nvlink5(Nvlink5),
    /// Xid 45 and others: the consequence of another Xid.
    CausedBy(u16),
    /// Xid 13: where on the chip. The same place twice points to hardware.
    Unit {
        /// Graphics processing cluster.
        gpc: u16,
        /// Texture processing cluster.
        tpc: u16,
        /// Streaming multiprocessor.
        sm: u16,
    },
}

/// The driver's recovery action by its number; the words beside the number differ between drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecoveryAction {
    /// 0: nothing, which is a sign of recovery.
    None,
    /// 1.
    ResetGpu,
    /// 2.
    RebootNode,
    /// 3.
    DrainP2p,
    /// 4.
    DrainAndReset,
    /// A number that drivers known to us do not use.
    Other(u32),
}

impl RecoveryAction {
    /// By number.
    pub fn from_number(number: u32) -> Self {
        match number {
            0 => Self::None,
            1 => Self::ResetGpu,
            2 => Self::RebootNode,
            3 => Self::DrainP2p,
            4 => Self::DrainAndReset,
            other => Self::Other(other),
        }
    }
}

/// One event of an NVSwitch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sxid {
    /// The switch's number.
    pub switch: u16,
    /// Where it sits.
    pub slot: PciSlot,
    /// The SXid.
    pub code: u32,
    /// As the line says; some say nothing.
    pub severity: Option<Severity>,
    /// The link, where named.
    pub link: Option<u16>,
    /// The driver's own words.
    pub text: String,
}

/// How bad, in the driver's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// `Non-fatal` or `Nonfatal`.
    NonFatal,
    /// `Fatal`.
    Fatal,
}

#[cfg(test)]
mod tests;
