//! Where a GPU sits: its PCI slot, written the same way whatever the source.
//!
//! The exporter writes `00000000:5D:00.0`, the kernel `0000:5d:00`; the slot joins the two. The function digit is left
//! out: a GPU that the driver names is always function 0, and the kernel does not print it.

use std::fmt;
use std::str::FromStr;

use gpuheal_proto::ids::GpuSlot;

/// One PCI slot, without its function. Shown as `0000:5d:00`: lower case, four domain digits where they suffice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciSlot {
    domain: u32,
    bus: u8,
    device: u8,
}

/// The text is no PCI slot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a PCI slot such as 0000:5d:00.0")]
pub struct Malformed;

impl PciSlot {
    /// Reads `[PCI:][domain:]bus:device[.function]` in hex of either case.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let text = strip_prefix_any_case(text.trim(), "PCI:");
        let mut parts = text.split(':');
        let (first, second, third) = (parts.next(), parts.next(), parts.next());
        if parts.next().is_some() {
            return Err(Malformed);
        }
        let (domain, bus, device) = match (first, second, third) {
            (Some(domain), Some(bus), Some(device)) => (hex(domain, 8)?, bus, device),
            (Some(bus), Some(device), None) => (0, bus, device),
            _ => return Err(Malformed),
        };
        let device = match device.split_once('.') {
            None => device,
            Some((device, function)) if hex(function, 1)? < 8 => device,
            Some(_) => return Err(Malformed),
        };
        // Very old drivers write the bus with four digits (`0003:00`); what matters is that it fits.
        let bus = u8::try_from(hex(bus, 4)?).map_err(|_| Malformed)?;
        let device = u8::try_from(hex(device, 2)?).map_err(|_| Malformed)?;
        // PCI has 32 devices on a bus.
        if device >= 32 { Err(Malformed) } else { Ok(Self { domain, bus, device }) }
    }
}

impl From<PciSlot> for GpuSlot {
    fn from(slot: PciSlot) -> Self {
        GpuSlot::normalise(&slot.to_string()).expect("a slot is shown the way ids want it")
    }
}

impl FromStr for PciSlot {
    type Err = Malformed;
    fn from_str(text: &str) -> Result<Self, Malformed> {
        Self::parse(text)
    }
}

impl fmt::Display for PciSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}", self.domain, self.bus, self.device)
    }
}

fn hex(digits: &str, digits_max: usize) -> Result<u32, Malformed> {
    // from_str_radix would take a sign.
    if digits.is_empty() || digits.len() > digits_max || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(Malformed);
    }
    u32::from_str_radix(digits, 16).map_err(|_| Malformed)
}

pub(crate) fn strip_prefix_any_case<'a>(text: &'a str, prefix: &str) -> &'a str {
    match text.get(..prefix.len()) {
        Some(head) if head.eq_ignore_ascii_case(prefix) => &text[prefix.len()..],
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exporter_and_kernel_name_the_same_slot_alike() {
        let table = [
            ("00000000:5D:00.0", "0000:5d:00"),
            ("0000:5d:00", "0000:5d:00"),
            ("PCI:0000:5d:00", "0000:5d:00"),
            ("5D:00.0", "0000:5d:00"),
            ("0009:01:00", "0009:01:00"),
            ("00010000:01:00.0", "10000:01:00"),
            ("0003:00", "0000:03:00"),
        ];
        for (text, want) in table {
            assert_eq!(PciSlot::parse(text).unwrap().to_string(), want, "{text}");
            assert_eq!(GpuSlot::from(PciSlot::parse(text).unwrap()).as_str(), want, "{text}");
        }
    }

    #[test]
    fn what_is_no_slot_is_refused() {
        for text in ["", ":", "0000", "0000:5d:00.8", "0000:5d:20", "0000:zz:00", "+000:5d:00", "1:2:3:4", "0000:15d:00", "ü:ü"] {
            assert!(PciSlot::parse(text).is_err(), "{text}");
        }
    }
}
