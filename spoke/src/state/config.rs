//! The owner's ConfigMap as the hub is told it: as it is, and narrowed by what the spoke's flags say. Pure.

use gpuheal_proto::{bytes_text::clip, limits, words::Level};
use gpuheal_spoke_core::ceiling::parse_duration;
use serde_json::{Map, Value};

use crate::{ceiling::Flags, ports::LocalConfig};

/// What is in force where nobody knows what the owner's ConfigMap said.
const OBSERVING: &str = "ceiling: {mode: observe}";

/// What is in force as far as it can be told by a text, and what is wrong with it: `errors_max` faults of it at most.
pub(super) fn told(local: &LocalConfig, flags: Flags, errors_max: usize) -> (String, Vec<String>) {
    let text = if local.lost.is_some_and(|lost| !lost.was_read()) { OBSERVING } else { local.yaml.as_str() };
    let faults = gpuheal_spoke_core::ceiling::parse(text).err().unwrap_or_default();
    let lost = local.lost.map(|lost| lost.to_string());
    let errors = lost.into_iter().chain(faults.iter().map(ToString::to_string)).take(errors_max);
    let errors = errors.map(|error| clip(&error, limits::REASON_BYTES_MAX).to_owned()).collect();
    (narrowed(text, flags), errors)
}

/// The text of `config.yaml` with the flags in it, each where it is the more careful of the two. Without flags, or when
/// nobody can read it, the text as it is. What is written is JSON, which is YAML.
fn narrowed(yaml: &str, flags: Flags) -> String {
    if flags == Flags::default() {
        return yaml.to_owned();
    }
    let parsed: Result<Option<Map<String, Value>>, _> = serde_saphyr::from_str(yaml);
    let Ok(config) = parsed else { return yaml.to_owned() };
    let mut config = config.unwrap_or_default();
    if let Some(cooldown) = flags.cooldown {
        let own = config.get("cooldown").and_then(Value::as_str).and_then(parse_duration);
        if own.is_none_or(|own| own < cooldown) {
            config.insert("cooldown".to_owned(), format!("{}s", cooldown.as_secs()).into());
        }
    }
    if let Some(level) = flags.level {
        let own = config.get("alertLevel").and_then(Value::as_str).and_then(Level::parse);
        if own.is_none_or(|own| own < level) {
            config.insert("alertLevel".to_owned(), level.as_str().into());
        }
    }
    if flags.notify_only {
        config.insert("notifyOnly".to_owned(), true.into());
    }
    Value::Object(config).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gpuheal_spoke_core::ceiling::parse;

    use super::*;
    use crate::ports::Lost;

    #[test]
    fn a_ceiling_that_is_lost_is_told_as_what_is_in_force_with_words() {
        let local = |lost| LocalConfig { yaml: "ceiling: {stop: true}".to_owned(), lost, ..LocalConfig::default() };
        assert_eq!(told(&local(None), Flags::default(), 9), ("ceiling: {stop: true}".to_owned(), vec![]));
        for (lost, text, words) in [
            (Lost::Object, "ceiling: {stop: true}", "is gone: what it said last stays in force"),
            (Lost::Key, "ceiling: {stop: true}", "has no key config.yaml: what it said last"),
            (Lost::ObjectUnread, OBSERVING, "is gone: nothing but releases is done"),
            (Lost::KeyUnread, OBSERVING, "has no key config.yaml: nothing but releases"),
        ] {
            let (yaml, errors) = told(&local(Some(lost)), Flags::default(), 9);
            assert_eq!(yaml, text, "{lost:?}");
            assert!(matches!(&errors[..], [error] if error.contains(words) && error.contains("empty document")), "{errors:?}");
        }
    }

    #[test]
    fn without_flags_the_text_is_told_as_it_is() {
        assert_eq!(narrowed("cooldown: 15m # ours\n", Flags::default()), "cooldown: 15m # ours\n");
    }

    #[test]
    fn a_flag_only_ever_narrows() {
        let flags = Flags { cooldown: Some(Duration::from_secs(1200)), level: Some(Level::P0), notify_only: true };
        for (yaml, cooldown) in
            [("", 1200), ("cooldown: 15m\nalertLevel: P1\n", 1200), ("cooldown: 30m\nceiling:\n  nodesOut: 2\n", 1800)]
        {
            let config = parse(&narrowed(yaml, flags)).unwrap();
            assert_eq!(config.cooldown, Some(Duration::from_secs(cooldown)), "{yaml}");
            assert_eq!((config.alert_level, config.notify_only), (Some(Level::P0), true), "{yaml}");
        }
        assert_eq!(parse(&narrowed("ceiling:\n  nodesOut: 2\n", flags)).unwrap().ceiling.nodes_out, Some(2));
    }
}
