//! Fault -> level, with the rule that spoke and the words why. The policy's own levels come first, the shipped tables
//! after. Nothing here looks at witnesses: whether a level may lead to harm is `corroborate`'s question.

use gpuheal_proto::{fault::FaultClass, words::Level};

use crate::{
    catalogue::{self, XidLevel},
    policy::{LevelOverride, Settings},
    snapshot::KnownFault,
};

/// A fault's level and what comes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classified {
    /// The level.
    pub level: Level,
    /// The rule that gave it, for people and metrics.
    pub rule: String,
    /// In words.
    pub why: String,
    /// The application's own fault: never by itself a reason to quarantine, whatever its count.
    pub user_app: bool,
    /// Worth telling people though it is P2.
    pub notify: bool,
    /// May open an incident when it is alone.
    pub opens: bool,
    /// The line itself names the recovery action: it needs no second witness.
    pub says_action: bool,
}

impl Classified {
    fn new(level: Level, rule: &str, why: impl Into<String>) -> Self {
        Self { level, rule: rule.to_owned(), why: why.into(), user_app: false, notify: false, opens: true, says_action: false }
    }

    fn told(self) -> Self {
        Self { notify: true, ..self }
    }
}

/// The level of `fault`. `ruled` is the level that a rule of the policy gives it here, with the rule's name.
#[must_use]
pub fn classify(fault: &KnownFault, settings: &Settings, ruled: Option<(&str, Level)>) -> Classified {
    let shipped = shipped(fault);
    let own = settings
        .levels
        .get(&format!("{}/{}", fault.class, fault.code))
        .or_else(|| settings.levels.get(fault.class.as_str()))
        .copied()
        .unwrap_or(LevelOverride { level: None, user_app: None });
    let user_app = own.user_app.unwrap_or(shipped.user_app);
    let counted = counted(fault, settings, user_app);
    let base = match (own.level, counted) {
        (_, Some(counted)) => counted,
        (Some(level), None) => {
            let why = format!("the policy's levels give it {level}");
            Classified { level, rule: "policy levels".to_owned(), why, ..shipped }
        }
        (None, None) => shipped,
    };
    let base = Classified { user_app, ..base };
    match ruled {
        Some((rule, level)) => {
            Classified { level, rule: format!("rule {rule}"), why: format!("rule {rule} gives it {level}"), ..base }
        }
        None => base,
    }
}

/// A code that nobody knows may be the application's: it is not counted.
fn counted(fault: &KnownFault, settings: &Settings, user_app: bool) -> Option<Classified> {
    let threshold = settings.detection.xid_errors;
    let known = fault.class == FaultClass::Xid && catalogue::xid(&fault.code).is_some();
    (known && !user_app && fault.count >= threshold).then(|| {
        let why = format!("{} times in the window", fault.count);
        Classified::new(Level::P0, XID_COUNT, why)
    })
}

/// The rule's name when an Xid's count alone gave the level.
pub const XID_COUNT: &str = "xid count";

fn shipped(fault: &KnownFault) -> Classified {
    match fault.class {
        FaultClass::Xid => xid(fault),
        FaultClass::Ecc => Classified::new(Level::P0, "ecc", "uncorrectable memory error"),
        // The row is out of use already and the job goes on: a reset can wait for the node's next pause.
        FaultClass::RowRemap if fault.code.contains("pending") => {
            Classified::new(Level::P2, "row remap", "a row remap takes effect with the next reset").told()
        }
        FaultClass::RowRemap => Classified::new(Level::P0, "row remap", "row remapping failed"),
        FaultClass::GpuLost => Classified::new(Level::P0, "gpu lost", "the GPU is no longer there"),
        FaultClass::Thermal if fault.code == "high" => Classified::new(Level::P0, "thermal high", reading(fault)),
        FaultClass::Thermal => Classified::new(Level::P1, "thermal warn", reading(fault)),
        FaultClass::Driver => Classified::new(Level::P1, "driver", "the driver or its probe fails"),
        FaultClass::NodeCondition => Classified::new(Level::P1, "node condition", "told by the node itself"),
        FaultClass::Alert => Classified::new(Level::P1, "alert", "an alert fires"),
        FaultClass::Allocatable => Classified::new(Level::P1, "allocatable", "fewer GPUs allocatable than the node has"),
        FaultClass::HealthWatch if fault.code.to_ascii_lowercase().contains("driver") => {
            Classified::new(Level::P1, "health watch", "DCGM's driver watch fails")
        }
        FaultClass::HealthWatch => Classified::new(Level::P2, "health watch", "DCGM's own watch fails").told(),
        FaultClass::Nvlink => Classified::new(Level::P2, "nvlink", "NVLink trouble; its weight depends on the node").told(),
        FaultClass::Pcie => Classified::new(Level::P2, "pcie", "PCIe trouble").told(),
        FaultClass::Source => Classified::new(Level::P2, "source", "the observer is ill, which says nothing of the GPU").told(),
        FaultClass::Utilisation => Classified::new(Level::P2, "utilisation", "odd utilisation"),
        FaultClass::PodFailure => Classified::new(Level::P2, "pod failure", "a pod failed for its GPU"),
    }
}

fn reading(fault: &KnownFault) -> String {
    let hottest = fault.witnesses.iter().max_by(|a, b| a.value.total_cmp(&b.value));
    hottest.map_or_else(|| format!("temperature {}", fault.code), |seen| format!("{} °C, above {} °C", seen.value, seen.threshold))
}

fn xid(fault: &KnownFault) -> Classified {
    let Some(xid) = catalogue::xid(&fault.code) else {
        return Classified::new(Level::P2, "xid unknown", "in no table of ours").told();
    };
    let classified = match xid.level {
        XidLevel::Fixed(level) => Classified::new(level, "xid catalogue", xid.meaning()),
        XidLevel::ByAction => by_action(fault),
        XidLevel::ByDecode => by_decode(fault),
    };
    let notify = classified.notify || xid.action == "CONTACT_SUPPORT";
    Classified { user_app: xid.user_app, notify, opens: fault.code != "45", ..classified }
}

/// Xid 154 names the driver's own recovery action by a number; the words beside it differ between drivers.
fn by_action(fault: &KnownFault) -> Classified {
    // "changed from 0x0 (None) to 0x1 (GPU Reset Required)": the last number is the one that holds now.
    let action = details(fault).find_map(|detail| detail.rfind("0x").and_then(|at| detail.get(at..at + 3)));
    match action {
        Some("0x0") => Classified::new(Level::P2, "xid 154", "the driver asks for nothing (0x0)"),
        Some(number @ ("0x1" | "0x2" | "0x3" | "0x4")) => {
            let meaning = match number {
                "0x1" => "GPU reset",
                "0x2" => "node reboot",
                "0x3" => "drain P2P",
                _ => "drain and reset",
            };
            let why = format!("the driver itself asks for {meaning} ({number})");
            Classified { says_action: true, ..Classified::new(Level::P0, "xid 154", why) }
        }
        _ => Classified::new(Level::P2, "xid 154", "the driver's recovery action is not in what was seen").told(),
    }
}

/// NVLink 5 errors: the line's own word. Without a line nobody can tell, and P2 says so.
fn by_decode(fault: &KnownFault) -> Classified {
    let lines: Vec<String> = details(fault).map(str::to_ascii_lowercase).collect();
    let says = |word: &str| lines.iter().any(|line| line.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| part == word));
    if says("nonfatal") {
        return Classified::new(Level::P2, "xid nvlink 5", "the line says Nonfatal");
    }
    if says("fatal") {
        return Classified::new(Level::P0, "xid nvlink 5", "the line says Fatal");
    }
    Classified::new(Level::P2, "xid nvlink 5", "it cannot be decoded without its line").told()
}

fn details(fault: &KnownFault) -> impl Iterator<Item = &str> {
    use gpuheal_proto::fault::Witness;
    fault.witnesses.iter().filter(|seen| seen.kind == Witness::KernelLine).map(|seen| seen.detail.as_str())
}

#[cfg(test)]
mod tests;
