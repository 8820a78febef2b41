//! The short form: the handful of keys that one cluster needs. As a policy it expands to the long form; in a cluster's own
//! ConfigMap it narrows the fleet's policy, and `ceiling`, which is the spoke's, may stand beside it.

use std::time::Duration;

use gpuheal_proto::words::{Level, Mode};

use super::{
    Narrowing, Settings,
    read::{Problems, Section},
};

/// Longest cooldown that a document may ask for: who wants a node left alone for longer than a week opts it out.
const COOLDOWN_MAX: Duration = Duration::from_secs(7 * 86_400);
const CELSIUS: std::ops::RangeInclusive<f64> = 20.0..=150.0;

/// The keys as they stand in the text.
#[derive(Debug, Default)]
pub(super) struct Short {
    pub(super) cooldown: Option<Duration>,
    pub(super) alert_level: Option<Level>,
    pub(super) notify_only: Option<bool>,
    pub(super) xid_errors: Option<u32>,
    pub(super) gpu_temp_high: Option<f64>,
    pub(super) gpu_temp_warn: Option<f64>,
    pub(super) evict: Option<bool>,
    pub(super) taint: Option<bool>,
    pub(super) notify: Option<bool>,
}

/// Keys that mark a document as the short form.
pub(super) const KEYS: &[&str] = &["cooldown", "alertLevel", "notifyOnly", "thresholds", "actions"];

/// Reads the keys and leaves the section to be closed by the caller.
pub(super) fn read(section: &mut Section<'_>, problems: &mut Problems) -> Short {
    let mut short = Short {
        cooldown: section.span("cooldown", Duration::ZERO..=COOLDOWN_MAX, problems),
        alert_level: section.word("alertLevel", Level::ALL, problems),
        notify_only: section.flag("notifyOnly", problems),
        ..Short::default()
    };
    if let Some(mut thresholds) = section.section("thresholds", problems) {
        short.xid_errors = thresholds.number("xidErrors", 1..=100_000, problems);
        short.gpu_temp_high = thresholds.real("gpuTempHigh", CELSIUS, problems);
        short.gpu_temp_warn = thresholds.real("gpuTempWarn", CELSIUS, problems);
        thresholds.close(problems);
    }
    if let Some(mut actions) = section.section("actions", problems) {
        short.evict = actions.flag("evict", problems);
        short.taint = actions.flag("taint", problems);
        short.notify = actions.flag("notify", problems);
        actions.close(problems);
    }
    short
}

impl Short {
    /// As a policy of its own. What says nothing of `notifyOnly` observes: only a person's word goes further.
    pub(super) fn expand(&self, section: &Section<'_>, problems: &mut Problems) -> Settings {
        let mut settings = Settings::default();
        settings.mode = match self.notify_only {
            None => Mode::Observe,
            Some(true) => Mode::Notify,
            Some(false) if self.evict == Some(false) => Mode::Mark,
            Some(false) => Mode::Heal,
        };
        settings.act_from = self.alert_level.unwrap_or(Level::P0);
        settings.cooldown = self.cooldown.unwrap_or(settings.cooldown);
        let detection = &mut settings.detection;
        detection.xid_errors = self.xid_errors.unwrap_or(detection.xid_errors);
        detection.thermal.high_celsius = self.gpu_temp_high.unwrap_or(detection.thermal.high_celsius);
        detection.thermal.warn_celsius = self.gpu_temp_warn.unwrap_or(detection.thermal.warn_celsius);
        if detection.thermal.warn_celsius > detection.thermal.high_celsius {
            let (warn, high) = (detection.thermal.warn_celsius, detection.thermal.high_celsius);
            let message = format!("gpuTempWarn {warn} is above gpuTempHigh {high}");
            problems.add(section.place_of("thresholds"), "thresholds", message);
        }
        settings.response.evict = self.evict.unwrap_or(true);
        settings.response.taint = self.taint.unwrap_or(true);
        settings.response.notify = self.notify.unwrap_or(true);
        settings
    }

    /// As a cluster owner's wish: what it takes away.
    pub(super) fn narrowing(&self) -> Narrowing {
        Narrowing {
            cooldown: self.cooldown,
            alert_level: self.alert_level,
            notify_only: self.notify_only == Some(true),
            xid_errors: self.xid_errors,
            gpu_temp_high: self.gpu_temp_high,
            gpu_temp_warn: self.gpu_temp_warn,
            evict_off: self.evict == Some(false),
            taint_off: self.taint == Some(false),
            notify_off: self.notify == Some(false),
        }
    }
}
