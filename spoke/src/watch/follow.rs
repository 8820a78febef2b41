//! One watch, followed for ever: each object trimmed before it is stored, errors counted, age told, listed from scratch
//! now and then. A failed read deletes nothing: only an event or a full list does.

use std::{fmt::Debug, sync::Arc, time::Duration};

use futures::StreamExt as _;
use kube::{
    Api, Resource,
    runtime::{
        WatchStreamExt as _,
        reflector::store::Writer,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::{self, Metrics};

/// How often the age of the last event is told.
const AGE_EVERY: Duration = Duration::from_secs(5);

/// What every watch shares.
pub(super) struct Follow {
    pub(super) resync: Duration,
    pub(super) metrics: Arc<Metrics>,
    pub(super) cancel: CancellationToken,
}

impl Follow {
    /// Until cancelled. `trim` shrinks an object and tells whether it is kept at all; `seen` is called once it is stored.
    pub(super) async fn run<K>(
        self,
        kind: &'static str,
        api: Api<K>,
        config: watcher::Config,
        mut writer: Writer<K>,
        trim: impl Fn(&mut K) -> bool + Send,
        seen: impl Fn(&Event<K>) + Send,
    ) where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let mut last = Instant::now();
        let mut age = tokio::time::interval(AGE_EVERY);
        loop {
            let mut events = watcher(api.clone(), config.clone()).default_backoff().boxed();
            let resync = tokio::time::sleep(self.resync.mul_f64(0.9 + 0.2 * chance()));
            tokio::pin!(resync);
            loop {
                let event = tokio::select! {
                    () = self.cancel.cancelled() => return,
                    () = &mut resync => break,
                    _ = age.tick() => {
                        self.metrics.set(metrics::WATCH_AGE, &[("kind", kind)], last.elapsed().as_secs_f64());
                        continue;
                    }
                    event = events.next() => event,
                };
                match event {
                    None => break,
                    Some(Err(error)) => {
                        tracing::warn!(kind, error = %crate::link::chain(&error), "watch failed, it is tried again");
                        self.metrics.inc(metrics::WATCH_ERRORS, &[("kind", kind)]);
                    }
                    Some(Ok(event)) => {
                        last = Instant::now();
                        if let Some(event) = trimmed(event, &trim) {
                            writer.apply_watcher_event(&event);
                            seen(&event);
                        }
                    }
                }
            }
        }
    }
}

fn trimmed<K>(mut event: Event<K>, trim: impl Fn(&mut K) -> bool) -> Option<Event<K>> {
    let keep = match &mut event {
        Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) => trim(object),
        Event::Init | Event::InitDone => true,
    };
    keep.then_some(event)
}

fn chance() -> f64 {
    getrandom::u32().map_or(0.5, |n| f64::from(n) / f64::from(u32::MAX))
}
