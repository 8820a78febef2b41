//! What the reason and the message of a condition name: an Xid, a GPU, what the agent itself recommends.
//!
//! These are machine texts of several agents, not sentences; what is not found is left out, never guessed.

use super::super::slot::PciSlot;
use super::TEXT_BYTES_MAX;

/// Everything found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// Xids, in the order of the text.
    pub xids: Vec<u16>,
    /// `GPU-…`.
    pub uuid: Option<String>,
    /// The GPU's slot.
    pub slot: Option<PciSlot>,
    /// The GPU's index: a hint.
    pub index_hint: Option<u16>,
    /// The agent's code, such as `DCGM_FR_IMEX_UNHEALTHY` or `DCGMHealthCode101`.
    pub code: Option<String>,
    /// The agent says that nothing is to be done, as with an application's page fault.
    pub action_none: bool,
}

/// Most Xids of one condition: GKE lists each once.
const XIDS_MAX: usize = 16;

/// Looks through both texts.
pub fn named_in(reason: &str, message: &str) -> Named {
    let (reason, message) = (clipped(reason), clipped(message));
    let action = after(message, "Recommended Action=").map(|text| word(text, |b| b.is_ascii_alphanumeric() || b == b'_'));
    let uuid = message.find("GPU-").map(|at| word(&message[at..], |b| b.is_ascii_alphanumeric() || b == b'-'));
    let code = after(message, "ErrorCode:").map(|text| word(text, |b| b.is_ascii_alphanumeric() || b == b'_'));
    let code = code.or_else(|| reason.starts_with("DCGM").then_some(reason)).filter(|code| !code.is_empty());
    Named {
        xids: xids(reason, message),
        uuid: uuid.filter(|uuid| uuid.len() > 8).map(str::to_owned),
        slot: after(message, "PCI:")
            .and_then(|text| PciSlot::parse(word(text, |b| b.is_ascii_hexdigit() || b == b':' || b == b'.')).ok()),
        index_hint: after(message, "GPU:").and_then(number),
        code: code.map(str::to_owned),
        action_none: action == Some("NONE"),
    }
}

/// Reasons that say that the monitor cannot see, rather than that it saw something.
pub(super) fn monitor_is_blind(reason: &str) -> bool {
    matches!(reason, "DCGMError" | "NvidiaDCGMError" | "GpuDcgmConnectivityFailureIsNotHealthy" | "GpuDcgmUnresponsiveIsNotHealthy")
        || reason.starts_with("DCGMFieldError")
}

fn xids(reason: &str, message: &str) -> Vec<u16> {
    // NvidiaXID79Error, {"79":true}, "Detected XID 31 for GPU 4".
    if let Some(code) = after(reason, "NvidiaXID").and_then(number) {
        return vec![code];
    }
    if let Ok(serde_json::Value::Object(codes)) = serde_json::from_str(reason) {
        let set = codes.iter().filter(|(_, set)| set.as_bool() != Some(false));
        return set.filter_map(|(code, _)| code.parse().ok()).take(XIDS_MAX).collect();
    }
    let told = after(message, "XID ").or_else(|| after(message, "Xid "));
    told.and_then(number).into_iter().collect()
}

fn after<'a>(text: &'a str, words: &str) -> Option<&'a str> {
    text.split_once(words).map(|(_, rest)| rest)
}

fn word(text: &str, belongs: fn(u8) -> bool) -> &str {
    let end = text.bytes().position(|b| !belongs(b)).unwrap_or(text.len());
    &text[..end]
}

fn number(text: &str) -> Option<u16> {
    word(text, |b| b.is_ascii_digit()).parse().ok()
}

fn clipped(text: &str) -> &str {
    let end = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or_default()]
}
