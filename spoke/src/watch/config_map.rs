//! The cluster owner's ConfigMap, as it was read last.

use gpuheal_proto::kubernetes::CONFIG_KEY;
use tokio::sync::watch;

use super::{follow::Keep, wire::ConfigMapSeen};
use crate::ports::LocalConfig;

/// Keeps the one ConfigMap; nothing is told before it was listed once.
pub(super) struct KeepConfig {
    told: watch::Sender<Option<LocalConfig>>,
    /// What the list that goes on has brought.
    found: Option<LocalConfig>,
    lists: bool,
}

impl KeepConfig {
    /// A keeper, and where it tells what it keeps.
    pub(super) fn new() -> (Self, watch::Receiver<Option<LocalConfig>>) {
        let (told, config) = watch::channel(None);
        (Self { told, found: None, lists: false }, config)
    }

    fn tell(&self, config: LocalConfig) {
        self.told.send_if_modified(|known| known.replace(config.clone()) != Some(config));
    }
}

impl Keep<ConfigMapSeen> for KeepConfig {
    fn begin(&mut self) {
        (self.found, self.lists) = (None, true);
    }

    fn put(&mut self, seen: ConfigMapSeen) {
        let config = LocalConfig {
            resource_version: seen.metadata.resource_version.unwrap_or_default(),
            yaml: seen.data.and_then(|mut data| data.remove(CONFIG_KEY)).unwrap_or_default(),
        };
        if self.lists {
            self.found = Some(config);
        } else {
            self.tell(config);
        }
    }

    fn remove(&mut self, _: ConfigMapSeen) {
        self.tell(LocalConfig::default());
    }

    fn end(&mut self) {
        self.lists = false;
        let found = self.found.take();
        self.tell(found.unwrap_or_default());
    }
}
