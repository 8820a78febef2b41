//! A cluster owner's own settings, laid over the fleet's: each only in its careful direction. What would widen is left
//! out without a word here; `explain` shows the settings that hold.

use gpuheal_proto::words::Mode;

use super::{Narrowing, Problem, Settings};

impl Narrowing {
    /// A cluster owner's settings as they count, and what is wrong with them. What a text that cannot be read was meant to
    /// forbid is not known: until it is mended, nothing but notifying is done in that cluster.
    #[must_use]
    pub fn in_force(text: &str) -> (Option<Self>, Vec<Problem>) {
        if text.is_empty() {
            return (None, Vec::new());
        }
        match Self::parse(text) {
            Ok(narrowing) => (Some(narrowing), Vec::new()),
            Err(problems) => (Some(Self { notify_only: true, ..Self::default() }), problems),
        }
    }

    /// Whether a cluster owner's text stops their spoke: `ceiling.stop`, which the spoke itself obeys. For whoever shows it.
    #[must_use]
    pub fn stops(text: &str) -> bool {
        let read = serde_saphyr::from_str::<serde_json::Value>(text).ok();
        read.and_then(|read| read.pointer("/ceiling/stop")?.as_bool()).unwrap_or(false)
    }

    /// Makes `settings` at most as daring as both.
    pub fn apply(&self, settings: &mut Settings) {
        if let Some(cooldown) = self.cooldown {
            settings.cooldown = settings.cooldown.max(cooldown);
        }
        if let Some(level) = self.alert_level {
            settings.act_from = settings.act_from.max(level);
        }
        if self.notify_only {
            settings.mode = settings.mode.min(Mode::Notify);
        }
        let detection = &mut settings.detection;
        if let Some(count) = self.xid_errors {
            detection.xid_errors = detection.xid_errors.max(count);
        }
        for thermal in std::iter::once(&mut detection.thermal).chain(detection.thermal_by_model.values_mut()) {
            if let Some(high) = self.gpu_temp_high {
                thermal.high_celsius = thermal.high_celsius.max(high);
            }
            if let Some(warn) = self.gpu_temp_warn {
                thermal.warn_celsius = thermal.warn_celsius.max(warn);
            }
            // A raised warning never overtakes the threshold of P0: it would leave a gap in which nothing is said.
            thermal.high_celsius = thermal.high_celsius.max(thermal.warn_celsius);
        }
        settings.response.evict &= !self.evict_off;
        settings.response.taint &= !self.taint_off;
        settings.response.notify &= !self.notify_off;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gpuheal_proto::words::Level;

    use super::*;

    #[test]
    fn each_key_narrows_and_none_widens() {
        let daring = Narrowing {
            cooldown: Some(Duration::from_secs(1)),
            alert_level: Some(Level::P2),
            xid_errors: Some(1),
            gpu_temp_high: Some(10.0),
            gpu_temp_warn: Some(5.0),
            ..Narrowing::default()
        };
        let mut settings = Settings::default();
        daring.apply(&mut settings);
        assert_eq!(settings, Settings::default(), "nothing of it is more careful");

        let careful = Narrowing {
            cooldown: Some(Duration::from_secs(1800)),
            alert_level: Some(Level::P0),
            notify_only: true,
            xid_errors: Some(9),
            gpu_temp_high: Some(90.0),
            gpu_temp_warn: Some(88.0),
            evict_off: true,
            taint_off: true,
            notify_off: true,
        };
        let mut settings = Settings { mode: Mode::Heal, ..Settings::default() };
        careful.apply(&mut settings);
        assert_eq!((settings.mode, settings.act_from), (Mode::Notify, Level::P0));
        assert_eq!(settings.cooldown, Duration::from_secs(1800));
        assert_eq!(settings.detection.xid_errors, 9);
        assert_eq!((settings.detection.thermal.high_celsius, settings.detection.thermal.warn_celsius), (90.0, 88.0));
        assert!(!settings.response.evict && !settings.response.taint && !settings.response.notify);
    }

    #[test]
    fn a_clusters_own_stop_is_seen_where_the_spoke_sees_it() {
        assert!(Narrowing::stops("alertLevel: P0\nceiling:\n  stop: true\n"));
        for text in ["", "ceiling: {nodesOut: 1}", "ceiling: {stop: false}", "stop: true", "]["] {
            assert!(!Narrowing::stops(text), "{text}");
        }
    }
}
