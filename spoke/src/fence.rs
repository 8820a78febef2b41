//! The fence object: one ConfigMap that holds the highest key epoch, hub term and trust version ever seen here. Written
//! by compare-and-swap only when one of them rises, before the first intent under it. What cannot be read is never taken
//! for zero: without the fence nothing is executed. It also remembers that the cluster's owner has had a ConfigMap here, which a
//! process that begins without one could not know.

use std::collections::BTreeMap;

use gpuheal_proto::kubernetes::{FENCE, FIELD_MANAGER};
use gpuheal_spoke_core::verify::Fence;
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, api::PostParams};

use crate::execute::api::{self, Kube};

/// Attempts at a raise: each lost one means that another writer has raised it meanwhile.
const ATTEMPTS_MAX: u32 = 5;

/// The fence in the cluster.
#[derive(Clone, Debug)]
pub struct FenceStore {
    kube: Kube,
    namespace: String,
}

impl FenceStore {
    /// In this namespace.
    #[must_use]
    pub const fn new(kube: Kube, namespace: String) -> Self {
        Self { kube, namespace }
    }

    /// Reads it. One that was never written is zero.
    ///
    /// # Errors
    /// When it cannot be read, or holds what is no number.
    pub async fn read(&self) -> Result<Fence, Error> {
        self.get().await.map(|(fence, _)| fence)
    }

    /// Raises it to at least `wanted`, and returns what then stands.
    ///
    /// # Errors
    /// When it cannot be written.
    pub async fn raise(&self, wanted: Fence) -> Result<Fence, Error> {
        for _ in 0..ATTEMPTS_MAX {
            let (stands, map) = self.get().await?;
            let next = Fence {
                key_epoch: stands.key_epoch.max(wanted.key_epoch),
                hub_term: stands.hub_term.max(wanted.hub_term),
                trust_version: stands.trust_version.max(wanted.trust_version),
            };
            if next == stands {
                return Ok(stands);
            }
            match self.put(next, map).await {
                Ok(()) => return Ok(next),
                Err(error) if error.conflict() => {}
                Err(error) => return Err(Error::Api(error)),
            }
        }
        Err(Error::Contended)
    }

    /// Whether a ConfigMap of the owner's was ever seen here.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn ceiling_seen(&self) -> Result<bool, Error> {
        Ok(self.map().await?.is_some_and(|map| says_seen(map.data.as_ref())))
    }

    /// Remembers that one was; writes once in a cluster's life.
    ///
    /// # Errors
    /// When it cannot be written, and where the object is not there: it ships with the account.
    pub async fn note_ceiling(&self) -> Result<(), Error> {
        for _ in 0..ATTEMPTS_MAX {
            let mut map = self.map().await?.ok_or(Error::Missing)?;
            if says_seen(map.data.as_ref()) {
                return Ok(());
            }
            map.data.get_or_insert_default().insert(CEILING_SEEN.to_owned(), SEEN.to_owned());
            match self.kube.call("note ceiling", self.api().replace(FENCE, &put_params(), &map)).await {
                Ok(_) => return Ok(()),
                Err(error) if error.conflict() => {}
                Err(error) => return Err(Error::Api(error)),
            }
        }
        Err(Error::Contended)
    }

    fn api(&self) -> Api<ConfigMap> {
        Api::namespaced(self.kube.client(), &self.namespace)
    }

    async fn get(&self) -> Result<(Fence, Option<ConfigMap>), Error> {
        let map = self.map().await?;
        let fence = match &map {
            Some(map) => parse(map.data.as_ref().unwrap_or(&BTreeMap::new()))?,
            None => Fence::default(),
        };
        Ok((fence, map))
    }

    async fn map(&self) -> Result<Option<ConfigMap>, api::Error> {
        self.kube.call("get fence", self.api().get_opt(FENCE)).await
    }

    async fn put(&self, fence: Fence, map: Option<ConfigMap>) -> Result<(), api::Error> {
        let params = put_params();
        let fresh = map.is_none();
        let mut map = map.unwrap_or_else(|| ConfigMap {
            metadata: ObjectMeta { name: Some(FENCE.to_owned()), namespace: Some(self.namespace.clone()), ..ObjectMeta::default() },
            ..ConfigMap::default()
        });
        let data = map.data.get_or_insert_default();
        for (key, value) in KEYS.iter().zip([fence.key_epoch, fence.hub_term, fence.trust_version]) {
            data.insert((*key).to_owned(), value.to_string());
        }
        if fresh {
            self.kube.call("create fence", self.api().create(&params, &map)).await.map(drop)
        } else {
            self.kube.call("raise fence", self.api().replace(FENCE, &params, &map)).await.map(drop)
        }
    }
}

const KEYS: [&str; 3] = ["keyEpoch", "hubTerm", "trustVersion"];
/// There once the cluster's owner has had a ConfigMap.
pub const CEILING_SEEN: &str = "ceilingSeen";
const SEEN: &str = "true";

/// Any word but none: who wrote another by hand did not mean that there is no ceiling.
pub(crate) fn says_seen(data: Option<&BTreeMap<String, String>>) -> bool {
    data.is_some_and(|data| data.contains_key(CEILING_SEEN))
}

fn put_params() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

/// The numbers in its data.
pub(crate) fn parse(data: &BTreeMap<String, String>) -> Result<Fence, Error> {
    let number = |key: &'static str| match data.get(key) {
        None => Ok(0),
        Some(text) => text.parse().map_err(|_| Error::Number { key, text: text.clone() }),
    };
    Ok(Fence { key_epoch: number(KEYS[0])?, hub_term: number(KEYS[1])?, trust_version: number(KEYS[2])? })
}

/// Why there is no fence to go by.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The call failed.
    #[error(transparent)]
    Api(#[from] api::Error),
    /// It was changed by hand into something else.
    #[error("fence ConfigMap has {key}: {text:?}, which is no number")]
    Number {
        /// The key.
        key: &'static str,
        /// Its text.
        text: String,
    },
    /// It was deleted, or the account's files were not applied.
    #[error("fence ConfigMap is not there")]
    Missing,
    /// Somebody else writes it all the time.
    #[error("fence ConfigMap was changed by others {ATTEMPTS_MAX} times in a row")]
    Contended,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_that_holds_no_number_is_an_error_and_never_zero() {
        assert!(parse(&BTreeMap::from([("hubTerm".to_owned(), "x".to_owned())])).is_err());
        let fence = parse(&BTreeMap::from([("hubTerm".to_owned(), "7".to_owned())])).unwrap();
        assert_eq!(fence, Fence { hub_term: 7, ..Fence::default() });
    }
}
