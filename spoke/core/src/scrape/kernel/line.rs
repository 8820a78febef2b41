//! One line of the kernel log, read by itself.

use super::super::slot::{PciSlot, strip_prefix_any_case};
use super::nvlink5::Nvlink5;
use super::{RecoveryAction, Severity, Sxid, Xid, XidDetail};

/// What a line is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// An Xid.
    Xid(Xid),
    /// A line of an NVSwitch event.
    Sxid(Sxid),
    /// A GPU fell off the bus, said in one line.
    GpuLost(PciSlot),
    /// First of three lines that say so: it names the GPU.
    LostNames(PciSlot),
    /// Second of the three.
    LostMiddle,
    /// Third of the three: only now it is said.
    LostEnds,
    /// Anything else.
    Other,
}

/// Reads a line of the kernel's own.
pub fn parse_line(line: &str) -> Line {
    let line = without_time(line.trim());
    let driver = strip_prefix_any_case(line, "NVRM:");
    if driver.len() < line.len() {
        return of_driver(driver.trim_start());
    }
    sxid(line).map_or(Line::Other, Line::Sxid)
}

/// `[171167.621162] `, as dmesg puts in front.
fn without_time(line: &str) -> &str {
    let Some((time, rest)) = line.strip_prefix('[').and_then(|line| line.split_once(']')) else {
        return line;
    };
    let is_time = !time.is_empty() && time.bytes().all(|b| b.is_ascii_digit() || b == b'.' || b == b' ');
    if is_time { rest.trim_start() } else { line }
}

fn of_driver(text: &str) -> Line {
    let xid_text = strip_prefix_any_case(text, "Xid");
    if xid_text.len() < text.len() {
        return xid(xid_text).map_or(Line::Other, Line::Xid);
    }
    let lower = text.to_ascii_lowercase();
    if lower.starts_with("fallen off the bus") {
        return Line::LostEnds;
    }
    if lower.starts_with("(pci id:") && lower.contains("installed in this system") && !lower.contains("fallen off") {
        return Line::LostMiddle;
    }
    let named = strip_prefix_any_case(text, "The NVIDIA GPU ");
    let named = if named.len() < text.len() { named } else { strip_prefix_any_case(text, "GPU ") };
    let slot = named.split_whitespace().next().and_then(|word| PciSlot::parse(word.trim_end_matches(':')).ok());
    match slot {
        Some(slot) if named.len() < text.len() && lower.contains("fallen off the bus") => Line::GpuLost(slot),
        Some(slot) if lower.starts_with("the nvidia gpu ") => Line::LostNames(slot),
        _ => Line::Other,
    }
}

/// ` (PCI:0000:3b:00): 79, pid=1, name=x, text`
fn xid(text: &str) -> Option<Xid> {
    let (slot, code, rest) = slot_and_code(text)?;
    let (pid, process, text) = process(rest);
    let code = u16::try_from(code).ok()?;
    Some(Xid { slot, code, pid, process, detail: detail(code, text), text: text.to_owned() })
}

/// `nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 62 LTSSM Fault Up`
fn sxid(line: &str) -> Option<Sxid> {
    let rest = line.strip_prefix("nvidia-nvswitch")?;
    let (switch, rest) = rest.split_once(": SXid")?;
    let (slot, code, text) = slot_and_code(rest)?;
    let severity = text.split(',').next().and_then(severity);
    Some(Sxid { switch: switch.parse().ok()?, slot, code, severity, link: number_after(text, "Link "), text: text.to_owned() })
}

/// Reads ` (<slot>): <number>` and gives back what follows, without its comma.
fn slot_and_code(text: &str) -> Option<(PciSlot, u32, &str)> {
    let (slot, rest) = text.trim_start().strip_prefix('(')?.split_once("):")?;
    let rest = rest.trim_start();
    let end = rest.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(rest.len());
    let (code, rest) = rest.split_at(end);
    // A number that runs into letters is none; a line may be cut off right behind it.
    if !(rest.is_empty() || rest.starts_with([',', ' '])) {
        return None;
    }
    Some((PciSlot::parse(slot).ok()?, code.parse().ok()?, rest.trim_start_matches([',', ' '])))
}

/// `pid=<number or '<unknown>'>, name=<name>, ` in front of the text. A name may hold brackets, dots and blanks.
fn process(text: &str) -> (Option<u32>, Option<String>, &str) {
    let Some(rest) = text.strip_prefix("pid=") else {
        return (None, None, text);
    };
    let (pid, rest) = rest.split_once(',').unwrap_or((rest, ""));
    let rest = rest.trim_start();
    let (name, rest) = match rest.strip_prefix("name=") {
        Some(rest) => rest.split_once(", ").unwrap_or((rest, "")),
        None => ("", rest),
    };
    let name = (!name.is_empty() && !name.contains("<unknown>")).then(|| name.to_owned());
    (pid.parse().ok(), name, rest.trim_start())
}

fn detail(code: u16, text: &str) -> XidDetail {
    let read = match code {
        154 => recovery(text).map(XidDetail::Recovery),
        144..=150 => Nvlink5::parse(text).map(XidDetail::Nvlink5),
        13 => unit(text),
        _ => number_after(text, "caused by previous Xid ").map(XidDetail::CausedBy),
    };
    read.unwrap_or_default()
}

/// `… changed from 0x0 (None) to 0x4 (Drain and Reset)`: the second number.
fn recovery(text: &str) -> Option<RecoveryAction> {
    let lower = text.to_ascii_lowercase();
    let (_, to) = lower.split_once(" to 0x")?;
    let end = to.bytes().position(|b| !b.is_ascii_hexdigit()).unwrap_or(to.len());
    u32::from_str_radix(&to[..end], 16).ok().map(RecoveryAction::from_number)
}

/// `(GPC 7, TPC 7, SM 0)`
fn unit(text: &str) -> Option<XidDetail> {
    let part = |name| number_after(text, name);
    Some(XidDetail::Unit { gpc: part("(GPC ")?, tpc: part(", TPC ")?, sm: part(", SM ")? })
}

pub(super) fn severity(word: &str) -> Option<Severity> {
    let word = word.trim();
    match word.to_ascii_lowercase().as_str() {
        "fatal" => Some(Severity::Fatal),
        "non-fatal" | "nonfatal" => Some(Severity::NonFatal),
        _ => None,
    }
}

pub(super) fn number_after(text: &str, words: &str) -> Option<u16> {
    let (_, rest) = text.split_once(words)?;
    let end = rest.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}
