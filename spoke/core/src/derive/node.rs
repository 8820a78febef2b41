//! A node object: conditions that stay bad for their hold time, and GPUs that are held back from allocation.
//!
//! How long a condition has been bad is counted here by its type, since reasons alternate and agents reset the times. A
//! smaller allocatable must last; while the device plugin restarts or after the GPUs were laid out anew it means nothing,
//! and nothing offered at all is a plugin that is gone. Nothing here proves a repair: a restart restores all of it.

use gpuheal_proto::{
    fault::{FaultClass, Onset, Witness},
    time::Timestamp,
};

use super::NodeView;
use super::held::{HeldOffer, NodePart};
use super::known::{Context, Found};
use super::outcome::{EvidenceState, Skip};
use crate::scrape::{
    allocatable::{Offer, RESOURCES_MAX, Standing, is_relayout},
    conditions::{Bad, CONDITIONS_MAX, Condition, Reading, Topic},
};

/// Code of a source fault: nothing of a resource is offered.
const PLUGIN_GONE: &str = "device_plugin_gone";
/// For people.
const SOURCE: &str = "node object";

pub(super) fn take(part: &mut NodePart, view: &NodeView<'_>, context: &mut Context<'_>) {
    if context.settings.conditions_off {
        context.out.skip(Skip::SourceOff);
    } else {
        for condition in view.conditions {
            take_condition(part, condition, context);
        }
    }
    if context.settings.allocatable_off {
        context.out.skip(Skip::SourceOff);
    } else {
        take_offers(part, view, context);
    }
}

fn take_condition(part: &mut NodePart, condition: &Condition<'_>, context: &mut Context<'_>) {
    let Some(reading) = context.settings.conditions.read(condition) else { return };
    let kind = condition.kind;
    let lasted = part.object.first_bad.observe(kind, &reading, context.now);
    match &reading {
        Reading::Unknown => {}
        Reading::NotBad => {
            if part.object.good.len() < CONDITIONS_MAX && !part.object.good.contains(kind) {
                part.object.good.insert(kind.to_owned());
                context.out.changed = true;
            }
            for class in [FaultClass::NodeCondition, FaultClass::Source] {
                clear_all(part, class, kind, context);
            }
        }
        Reading::Bad(bad) if bad.named.action_none => context.out.skip(Skip::ConditionActionNone),
        Reading::Bad(bad) => {
            let hold = context.settings.hold_of(kind);
            if lasted.is_some_and(|lasted| lasted >= hold) {
                report_condition(part, condition, bad, hold.as_secs_f64(), lasted.unwrap_or_default().as_secs_f64(), context);
            }
        }
    }
}

fn report_condition(
    part: &mut NodePart,
    condition: &Condition<'_>,
    bad: &Bad,
    hold_s: f64,
    lasted_s: f64,
    context: &mut Context<'_>,
) {
    let slot = bad.named.slot.map(Into::into);
    // A blind monitor says nothing of the GPU that it names.
    let (class, gpu) = match bad.topic {
        Topic::Source => (FaultClass::Source, None),
        _ => (FaultClass::NodeCondition, part.named(bad.named.uuid.as_deref(), slot.as_ref())),
    };
    let onset = if part.object.good.contains(condition.kind) { Onset::Edge } else { Onset::Standing };
    let xids: Vec<String> = bad.named.xids.iter().map(ToString::to_string).collect();
    let xids = if xids.is_empty() { String::new() } else { format!(", xid {}", xids.join(" ")) };
    let found = Found {
        class,
        code: condition.kind,
        gpu: gpu.as_ref(),
        onset,
        witness: Witness::NodeCondition,
        value: lasted_s,
        threshold: hold_s,
        count: Some(1),
        source: SOURCE,
        detail: &format!("{}{xids}", condition.reason),
        workload: "",
    };
    part.known.report(&part.node, &found, context);
}

/// A condition may have named one GPU and then another: its end is the end of all.
fn clear_all(part: &mut NodePart, class: FaultClass, code: &str, context: &mut Context<'_>) {
    for known in part.known.iter_mut().filter(|known| known.class == class && known.code == code) {
        known.turn(Witness::NodeCondition, EvidenceState::Clear, context);
    }
}

fn take_offers(part: &mut NodePart, view: &NodeView<'_>, context: &mut Context<'_>) {
    let now = context.now;
    let before: Vec<Offer> = part.object.offers.iter().map(HeldOffer::as_full).collect();
    if !before.is_empty() && is_relayout(&before, view.offers) {
        part.object.relayout_until = Some(now.after(context.settings.allocatable_debounce));
        context.out.changed = true;
    }
    for offer in view.offers.iter().take(RESOURCES_MAX) {
        take_offer(part, offer, view.plugin_started_at, context);
    }
    // A resource that is gone says nothing: what is held of it stays, within bounds.
    let gone = part.object.offers.len().saturating_sub(RESOURCES_MAX);
    part.object.offers.drain(..gone);
}

fn take_offer(part: &mut NodePart, offer: &Offer, plugin_started_at: Option<Timestamp>, context: &mut Context<'_>) {
    let (now, debounce) = (context.now, context.settings.allocatable_debounce);
    let at = match part.object.offers.iter().position(|held| held.resource == offer.resource) {
        Some(at) => at,
        None => {
            part.object.offers.push(HeldOffer::new(offer));
            part.object.offers.len() - 1
        }
    };
    let held = &mut part.object.offers[at];
    held.capacity = offer.capacity.or(held.capacity);
    let missing = match offer.standing() {
        Standing::Unreadable => return,
        Standing::Full => {
            (held.low_since, held.was_full) = (None, true);
            part.known.unseen(FaultClass::Allocatable, &offer.resource, None, Witness::Allocatable, EvidenceState::Clear, context);
            part.known.unseen(FaultClass::Source, PLUGIN_GONE, None, Witness::Allocatable, EvidenceState::Clear, context);
            return;
        }
        Standing::Short { missing } => missing,
        Standing::NoneOffered => offer.capacity.unwrap_or_default(),
    };
    let since = *held.low_since.get_or_insert(now);
    let onset = if held.was_full { Onset::Edge } else { Onset::Standing };
    if part.object.relayout_until.is_some_and(|until| now < until) {
        context.out.skip(Skip::AllocatableRelayout);
        return;
    }
    if plugin_started_at.is_some_and(|started| now.since(started) < debounce) {
        context.out.skip(Skip::AllocatablePluginRestart);
        return;
    }
    let none_offered = offer.standing() == Standing::NoneOffered;
    let limit = if none_offered { context.settings.broken_after.max(debounce) } else { debounce };
    if now.since(since) < limit {
        return;
    }
    let (class, code) =
        if none_offered { (FaultClass::Source, PLUGIN_GONE) } else { (FaultClass::Allocatable, offer.resource.as_str()) };
    let found = Found {
        class,
        code,
        gpu: None,
        onset,
        witness: Witness::Allocatable,
        value: offer.allocatable.unwrap_or_default() as f64,
        threshold: offer.capacity.unwrap_or_default() as f64,
        count: Some(if offer.counts_gpus { u32::try_from(missing).unwrap_or(u32::MAX) } else { 0 }),
        source: SOURCE,
        detail: &format!("{missing} of {} {} are not allocatable", offer.capacity.unwrap_or_default(), offer.resource),
        workload: "",
    };
    part.known.report(&part.node, &found, context);
}

impl HeldOffer {
    fn new(offer: &Offer) -> Self {
        Self { resource: offer.resource.clone(), capacity: offer.capacity, low_since: None, was_full: false }
    }

    /// The layout alone, as [`is_relayout`] compares it.
    fn as_full(&self) -> Offer {
        Offer { resource: self.resource.clone(), counts_gpus: false, capacity: self.capacity, allocatable: self.capacity }
    }
}
