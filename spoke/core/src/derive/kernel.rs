//! Events of the kernel's log. The surest witness: the driver's own words, with the slot. What leaves the node are the
//! parts that mean something, and not the line.

use gpuheal_proto::{
    fault::{FaultClass, Onset, Witness},
    ids::GpuSlot,
};

use super::exporter::LOST;
use super::held::NodePart;
use super::known::{Context, Found};
use super::outcome::{EvidenceState, Skip};
use crate::scrape::kernel::{KernelEvent, Nvlink5, RecoveryAction, Severity, Xid, XidDetail};

pub(super) fn take(part: &mut NodePart, source: &str, events: &[KernelEvent], context: &mut Context<'_>) {
    for event in events {
        match event {
            KernelEvent::Xid(xid) => take_xid(part, source, xid, context),
            KernelEvent::GpuLost(slot) => {
                report(part, source, FaultClass::GpuLost, LOST, Some((*slot).into()), "fallen off the bus", context);
            }
            KernelEvent::Sxid(sxid) => {
                let mut detail = format!("switch {}", sxid.switch);
                if let Some(severity) = sxid.severity {
                    detail += &format!(", {}", word(severity));
                }
                if let Some(link) = sxid.link {
                    detail += &format!(", link {link}");
                }
                // A switch is no GPU: the slot of the fault is the node.
                report(part, source, FaultClass::Nvlink, &format!("sxid_{}", sxid.code), None, &detail, context);
            }
        }
    }
}

fn take_xid(part: &mut NodePart, source: &str, xid: &Xid, context: &mut Context<'_>) {
    let code = xid.code.to_string();
    let slot: GpuSlot = xid.slot.into();
    match &xid.detail {
        XidDetail::Nvlink5(event) if event.injected => context.out.skip(Skip::KernelInjected),
        XidDetail::Recovery(RecoveryAction::None) => {
            context.out.skip(Skip::KernelActionNone);
            let gpu = part.named(None, Some(&slot));
            part.known.unseen(FaultClass::Xid, &code, gpu.as_ref(), Witness::KernelLine, EvidenceState::Clear, context);
        }
        detail => report(part, source, FaultClass::Xid, &code, Some(slot), &words(detail), context),
    }
}

fn report(
    part: &mut NodePart,
    source: &str,
    class: FaultClass,
    code: &str,
    slot: Option<GpuSlot>,
    detail: &str,
    context: &mut Context<'_>,
) {
    let gpu = slot.and_then(|slot| part.named(None, Some(&slot)));
    let found = Found {
        class,
        code,
        gpu: gpu.as_ref(),
        onset: Onset::Edge,
        witness: Witness::KernelLine,
        value: code.parse().unwrap_or(0.0),
        threshold: 0.0,
        count: None,
        source,
        detail,
        workload: "",
    };
    part.known.report(&part.node, &found, context);
}

fn words(detail: &XidDetail) -> String {
    match detail {
        XidDetail::None => String::new(),
        XidDetail::Recovery(action) => format!("recovery action changed to {}", number(*action)),
        XidDetail::Nvlink5(event) => nvlink5(event),
        XidDetail::CausedBy(code) => format!("caused by xid {code}"),
        XidDetail::Unit { gpc, tpc, sm } => format!("GPC {gpc} TPC {tpc} SM {sm}"),
    }
}

/// By its number, as the driver prints it: the words beside it differ between drivers.
fn number(action: RecoveryAction) -> String {
    let number = match action {
        RecoveryAction::None => 0,
        RecoveryAction::ResetGpu => 1,
        RecoveryAction::RebootNode => 2,
        RecoveryAction::DrainP2p => 3,
        RecoveryAction::DrainAndReset => 4,
        RecoveryAction::Other(number) => number,
    };
    format!("{number:#x}")
}

fn nvlink5(event: &Nvlink5) -> String {
    let severity = event.severity.map(|severity| format!(" {}", word(severity))).unwrap_or_default();
    let link = event.link.map(|link| format!(" link {link}")).unwrap_or_default();
    format!("{}{severity}{link} ({:#010x} {:#010x})", event.unit, event.intr_info, event.error_status)
}

const fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Fatal => "Fatal",
        Severity::NonFatal => "Nonfatal",
    }
}
