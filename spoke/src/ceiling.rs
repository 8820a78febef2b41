//! The cluster owner's ConfigMap, hot: each change that parses takes effect at once, one that does not is logged with
//! every fault and its place while the last good settings stay. A spoke that starts with a broken one only observes. One that
//! is not there any more lifts nothing.

pub(crate) mod remembered;

use std::{sync::Arc, time::Duration};

use gpuheal_proto::words::{Level, Mode};
use gpuheal_spoke_core::ceiling::{Ceiling, Config, parse};
use tokio::sync::watch;

use crate::{ports::LocalConfig, watch::Nodes};

/// What the spoke's flags say: the same narrowings as the ConfigMap's short form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `--cooldown`.
    pub cooldown: Option<Duration>,
    /// `--level`.
    pub level: Option<Level>,
    /// `--notify-only`.
    pub notify_only: bool,
}

impl Flags {
    /// The settings narrowed by the flags: the longer cooldown, the higher level, notify only if either says so.
    #[must_use]
    pub fn narrow(self, mut config: Config) -> Config {
        config.cooldown = config.cooldown.max(self.cooldown);
        config.alert_level = config.alert_level.max(self.level);
        config.notify_only |= self.notify_only;
        config
    }
}

/// Follows the ConfigMap. The receiver always holds the last good settings; the task ends with its source.
#[must_use]
pub fn follow(mut source: watch::Receiver<LocalConfig>, flags: Flags) -> watch::Receiver<Arc<Config>> {
    let first = read(&source.borrow_and_update(), flags).unwrap_or_else(observing);
    let (sender, receiver) = watch::channel(Arc::new(first));
    tokio::spawn(async move {
        while source.changed().await.is_ok() {
            let local = source.borrow_and_update().clone();
            if let Some(config) = read(&local, flags) {
                tracing::info!(
                    config.resource_version = local.resource_version,
                    ceiling.stop = config.ceiling.stop,
                    "ceiling in force"
                );
                sender.send_replace(Arc::new(config));
            }
        }
    });
    receiver
}

/// A limit that nobody can read may be any limit: nothing but releases passes.
fn observing() -> Config {
    Config { ceiling: Ceiling { mode: Mode::Observe, ..Ceiling::default() }, ..Config::default() }
}

/// Nothing where it is of no use, and the last good one stays.
fn read(local: &LocalConfig, flags: Flags) -> Option<Config> {
    if let Some(lost) = local.lost {
        tracing::error!(%lost, config.resource_version = local.resource_version, "ceiling is lost");
        if !lost.was_read() {
            return Some(observing());
        }
    }
    match parse(&local.yaml) {
        Ok(config) => Some(flags.narrow(config)),
        Err(errors) => {
            for error in &errors {
                tracing::error!(%error, config.resource_version = local.resource_version, "ceiling not taken, last good one stays");
            }
            None
        }
    }
}

/// The ConfigMap as first read, once nodes are known too: before that no ceiling can be judged. Then its changes. Waits for
/// ever where its watch is gone, which ends the process elsewhere.
pub async fn judged(mut config: watch::Receiver<Option<LocalConfig>>, nodes: &Nodes) -> watch::Receiver<LocalConfig> {
    nodes.ready().await;
    let first = match config.wait_for(Option::is_some).await.map(|first| first.clone()) {
        Ok(Some(first)) => first,
        Ok(None) | Err(_) => std::future::pending().await,
    };
    let (to, local) = watch::channel(first);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                changed = config.changed() => if changed.is_err() {
                    return;
                },
                () = to.closed() => return,
            }
            if let Some(config) = config.borrow_and_update().clone() {
                to.send_if_modified(|known| std::mem::replace(known, config.clone()) != config);
            }
        }
    });
    local
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::Lost;

    fn local(yaml: &str) -> LocalConfig {
        LocalConfig { resource_version: "1".into(), yaml: yaml.into(), lost: None }
    }

    #[tokio::test]
    async fn a_broken_change_keeps_the_last_good_ceiling() {
        let (sender, source) = watch::channel(local("ceiling: {nodesOut: 2}"));
        let mut config = follow(source, Flags::default());
        assert_eq!(config.borrow_and_update().ceiling.nodes_out, Some(2));
        sender.send_replace(local("ceiling: {nodesOut: many}"));
        sender.send_replace(local("ceiling: {stop: true}"));
        config.changed().await.unwrap();
        assert!(config.borrow_and_update().ceiling.stop);
        sender.send_replace(local("ceiling: [broken"));
        tokio::task::yield_now().await;
        assert!(config.borrow().ceiling.stop);
    }

    #[tokio::test]
    async fn a_spoke_that_starts_with_a_broken_ceiling_only_observes() {
        let (_sender, source) = watch::channel(local("ceiling: {stop: maybe}"));
        assert_eq!(follow(source, Flags::default()).borrow().mode(), Mode::Observe);
    }

    #[tokio::test]
    async fn a_ceiling_that_is_lost_stays_and_is_lifted_by_an_empty_document_alone() {
        let lost = |yaml: &str, lost| LocalConfig { lost: Some(lost), ..local(yaml) };
        let (sender, source) = watch::channel(local("ceiling: {stop: true}"));
        let mut config = follow(source, Flags::default());
        for how in [Lost::Object, Lost::Key] {
            sender.send_replace(lost("ceiling: {stop: true}", how));
            config.changed().await.unwrap();
            assert!(config.borrow_and_update().ceiling.stop, "{how:?}");
        }
        sender.send_replace(local(""));
        config.changed().await.unwrap();
        assert_eq!(*config.borrow_and_update().as_ref(), Config::default());
        for how in [Lost::ObjectUnread, Lost::KeyUnread] {
            let (_sender, source) = watch::channel(lost("", how));
            assert_eq!(follow(source, Flags::default()).borrow().mode(), Mode::Observe, "{how:?}");
            sender.send_replace(lost("", how));
            config.changed().await.unwrap();
            assert_eq!(config.borrow_and_update().mode(), Mode::Observe, "{how:?}, not as it was");
        }
        // What it said last could not be read either.
        let (_sender, source) = watch::channel(lost("ceiling: [", Lost::Object));
        assert_eq!(follow(source, Flags::default()).borrow().mode(), Mode::Observe);
    }

    #[test]
    fn flags_and_config_map_narrow_each_other() {
        let flags = Flags { cooldown: Some(Duration::from_secs(3600)), level: Some(Level::P0), notify_only: false };
        let config = flags.narrow(parse("cooldown: 5m\nalertLevel: P1\nnotifyOnly: true").unwrap());
        assert_eq!(config.cooldown(), Duration::from_secs(3600));
        assert_eq!(config.alert_level, Some(Level::P0));
        assert!(config.notify_only);
    }
}
