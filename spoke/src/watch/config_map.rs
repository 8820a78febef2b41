//! The cluster owner's ConfigMap, as it was read last. One that was here and is not any more, or that has lost its key, still
//! limits: a deletion is no word of its owner's that everything is allowed.

use gpuheal_proto::kubernetes::CONFIG_KEY;
use tokio::sync::watch;

use super::{follow::Keep, wire::ConfigMapSeen};
use crate::ports::{LocalConfig, Lost};

/// Keeps the one ConfigMap; nothing is told before it was listed once.
pub(super) struct KeepConfig {
    told: watch::Sender<Option<LocalConfig>>,
    /// What the list that goes on has brought.
    found: Option<ConfigMapSeen>,
    lists: bool,
}

impl KeepConfig {
    /// A keeper, and where it tells what it keeps.
    pub(super) fn new() -> (Self, watch::Receiver<Option<LocalConfig>>) {
        let (told, config) = watch::channel(None);
        (Self { told, found: None, lists: false }, config)
    }

    fn take(&self, seen: Option<ConfigMapSeen>) {
        self.told.send_if_modified(|known| {
            let next = next(known.as_ref(), seen);
            known.replace(next.clone()) != Some(next)
        });
    }
}

/// What is to be told, after what was told last. Of what was read once the text stays.
fn next(known: Option<&LocalConfig>, seen: Option<ConfigMapSeen>) -> LocalConfig {
    let there = seen.is_some();
    let resource_version = seen.as_ref().and_then(|seen| seen.metadata.resource_version.clone()).unwrap_or_default();
    if let Some(yaml) = seen.and_then(|seen| seen.data?.remove(CONFIG_KEY)) {
        return LocalConfig { resource_version, yaml, lost: None };
    }
    let known = known.filter(|known| known.was_there());
    let read = known.is_some_and(|known| known.lost.is_none_or(Lost::was_read));
    let lost = match (there, read) {
        (false, true) => Some(Lost::Object),
        (true, true) => Some(Lost::Key),
        (false, false) => known.map(|_| Lost::ObjectUnread),
        (true, false) => Some(Lost::KeyUnread),
    };
    let yaml = known.map(|known| known.yaml.clone()).unwrap_or_default();
    LocalConfig { resource_version, yaml, lost }
}

impl Keep<ConfigMapSeen> for KeepConfig {
    fn begin(&mut self) {
        (self.found, self.lists) = (None, true);
    }

    fn put(&mut self, seen: ConfigMapSeen) {
        if self.lists {
            self.found = Some(seen);
        } else {
            self.take(Some(seen));
        }
    }

    fn remove(&mut self, _: ConfigMapSeen) {
        self.take(None);
    }

    fn end(&mut self) {
        self.lists = false;
        let found = self.found.take();
        self.take(found);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn map(version: &str, data: Value) -> ConfigMapSeen {
        serde_json::from_value(json!({"metadata": {"resourceVersion": version}, "data": data})).unwrap()
    }

    fn stop(version: &str) -> ConfigMapSeen {
        map(version, json!({"config.yaml": "ceiling: {stop: true}"}))
    }

    fn list(keep: &mut KeepConfig, found: Option<ConfigMapSeen>) {
        keep.begin();
        found.into_iter().for_each(|found| keep.put(found));
        keep.end();
    }

    fn told(config: &watch::Receiver<Option<LocalConfig>>) -> (String, String, Option<Lost>) {
        let told = config.borrow().clone().unwrap();
        (told.resource_version, told.yaml, told.lost)
    }

    #[test]
    fn what_a_config_map_said_last_stays_when_it_or_its_key_goes_however_that_is_seen() {
        let text = || "ceiling: {stop: true}".to_owned();
        let gone = || (String::new(), text(), Some(Lost::Object));
        let mistyped = |version: &str| map(version, json!({"config.yml": ""}));
        let (mut keep, config) = KeepConfig::new();
        list(&mut keep, Some(stop("1")));
        keep.remove(stop("2"));
        assert_eq!(told(&config), gone());
        list(&mut keep, None);
        assert_eq!(told(&config), gone(), "by a list too");
        keep.put(mistyped("3"));
        assert_eq!(told(&config), ("3".into(), text(), Some(Lost::Key)));
        keep.put(map("4", Value::Null));
        assert_eq!(told(&config), ("4".into(), text(), Some(Lost::Key)));
        list(&mut keep, Some(mistyped("5")));
        assert_eq!(told(&config), ("5".into(), text(), Some(Lost::Key)));
        keep.remove(mistyped("6"));
        assert_eq!(told(&config), gone());
        keep.put(map("7", json!({"config.yaml": ""})));
        assert_eq!(told(&config), ("7".into(), String::new(), None), "an empty document lifts it");
        keep.remove(mistyped("8"));
        assert_eq!(told(&config), (String::new(), String::new(), Some(Lost::Object)), "which is what stays then");
    }

    #[test]
    fn no_config_map_at_all_narrows_nothing_and_one_that_never_had_its_key_is_not_taken_for_none() {
        let (mut keep, config) = KeepConfig::new();
        assert_eq!(*config.borrow(), None, "not before it was listed");
        list(&mut keep, None);
        assert_eq!(told(&config), (String::new(), String::new(), None));
        keep.put(map("1", json!({"config.yml": "ceiling: {stop: true}"})));
        assert_eq!(told(&config), ("1".into(), String::new(), Some(Lost::KeyUnread)));
        keep.remove(map("2", Value::Null));
        assert_eq!(told(&config), (String::new(), String::new(), Some(Lost::ObjectUnread)));
        keep.put(stop("3"));
        assert_eq!(told(&config).2, None);
    }
}
