//! The identity that is used: what the files say now, or, while they cannot be used (half of one is written, the key is
//! another's, one is gone, the certificate is over), the last good ones. Those serve until their own certificate ends: until
//! then whoever writes the files has time to mend them, and nobody is cut off by it. Looked at when the hub is dialled, and
//! when somebody asks whether this spoke is ready.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use gpuheal_proto::{chain::chain, time::Timestamp};

use super::{Error, Identity};
use crate::metrics::{self, Metrics};

/// Keeps the last good identity.
#[derive(Debug)]
pub struct Keeper {
    dir: PathBuf,
    metrics: Arc<Metrics>,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    identity: Identity,
    /// The files could not be used when they were looked at last.
    broken: bool,
}

/// What is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Until when its certificate is good.
    pub not_after: Timestamp,
    /// Why the files as they are now are not what is in force.
    pub unusable: Option<String>,
}

impl Keeper {
    /// Starts with what the directory says.
    ///
    /// # Errors
    /// When it says nothing that can be used: there is no last good one yet.
    pub fn open(dir: &Path, metrics: Arc<Metrics>) -> Result<Arc<Self>, Error> {
        let kept = Mutex::new(Kept { identity: Identity::load(dir)?, broken: false });
        Ok(Arc::new(Self { dir: dir.to_owned(), metrics, kept }))
    }

    /// What to dial the hub with. One that has expired by our clock is still tried while the files say nothing else: it is the
    /// hub who judges, and our clock may be wrong.
    ///
    /// # Errors
    /// When the files cannot be used and the last good certificate has expired.
    pub fn identity(&self, now: Timestamp) -> Result<Identity, Error> {
        match self.look(now) {
            (kept, Some(error)) if kept.not_after <= now => Err(error),
            (kept, _) => Ok(kept),
        }
    }

    /// What is in force. Reads files: blocks.
    #[must_use]
    pub fn standing(&self, now: Timestamp) -> Standing {
        let (kept, error) = self.look(now);
        Standing { not_after: kept.not_after, unusable: error.map(|error| chain(&error).to_string()) }
    }

    fn look(&self, now: Timestamp) -> (Identity, Option<Error>) {
        let read = Identity::load(&self.dir);
        let mut kept = self.kept.lock().expect("no holder of this lock panics");
        let error = match read {
            Ok(same) if same.digest == kept.identity.digest => None,
            Ok(read) if read.cluster != kept.identity.cluster => {
                Some(Error::OtherCluster { got: read.cluster, want: kept.identity.cluster.clone() })
            }
            Ok(read) if read.not_after <= now && kept.identity.not_after > now => {
                Some(Error::Expired { not_after: read.not_after })
            }
            Ok(read) => {
                self.metrics.inc(metrics::TLS_RELOADS, &[("outcome", "ok")]);
                tracing::info!(not_after = %read.not_after, "identity files changed, the next attach uses them");
                kept.identity = read;
                None
            }
            Err(error) => Some(error),
        };
        if let Some(error) = &error {
            self.metrics.inc(metrics::TLS_RELOADS, &[("outcome", "failed")]);
            // Said once for each time that they break: the counter goes on.
            if !kept.broken {
                let good_until = kept.identity.not_after;
                tracing::error!(error = %chain(error), %good_until, "identity files are not usable, the last good ones stay in force");
            }
        }
        kept.broken = error.is_some();
        (kept.identity.clone(), error)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing::identity_into;

    const URI: &str = "spiffe://dev.gpuheal/cluster/c1/spoke";

    fn year(year: i64) -> Timestamp {
        // Close enough: a year of days since 1970.
        Timestamp::from_unix_ms((year - 1970) * 365 * 86_400_000)
    }

    fn keeper(ends: i32) -> (tempfile::TempDir, Arc<Keeper>, Arc<Metrics>) {
        let (dir, metrics) = (tempfile::tempdir().unwrap(), Metrics::new());
        identity_into(dir.path(), URI, ends);
        let keeper = Keeper::open(dir.path(), Arc::clone(&metrics)).unwrap();
        (dir, keeper, metrics)
    }

    #[test]
    fn whatever_is_wrong_with_the_files_the_last_good_ones_serve_until_their_certificate_ends() {
        let (dir, keeper, metrics) = keeper(2030);
        let good = keeper.identity(year(2026)).unwrap();
        let path = |name: &str| dir.path().join(name);
        let whole = |name: &str| fs::read(path(name)).unwrap();
        let half = |name: &str| whole(name)[..whole(name).len() / 2].to_vec();
        let other = tempfile::tempdir().unwrap();
        identity_into(other.path(), URI, 2030);
        let others_key = fs::read(other.path().join("tls.key")).unwrap();
        identity_into(other.path(), "spiffe://dev.gpuheal/cluster/c2/spoke", 2030);
        let broken: Vec<(&str, Option<Vec<u8>>)> = vec![
            ("tls.crt", Some(half("tls.crt"))),
            ("tls.key", Some(half("tls.key"))),
            ("tls.key", Some(others_key)),
            ("ca.crt", Some(Vec::new())),
            ("trust.json", Some(half("trust.json"))),
            ("tls.key", None),
            ("trust.json", None),
        ];
        let mut failed = 0.0;
        for (name, bytes) in broken {
            let before = whole(name);
            match bytes {
                Some(bytes) => fs::write(path(name), bytes).unwrap(),
                None => fs::remove_file(path(name)).unwrap(),
            }
            assert_eq!(keeper.identity(year(2026)).unwrap().digest, good.digest, "{name}");
            failed += 1.0;
            assert_eq!(metrics.get(metrics::TLS_RELOADS, &[("outcome", "failed")]), Some(failed), "{name}");
            assert!(keeper.identity(year(2031)).is_err(), "{name}: the last good one has expired");
            let standing = keeper.standing(year(2031));
            assert!(standing.not_after < year(2031) && standing.unusable.is_some(), "{name}: {standing:?}");
            failed += 2.0;
            fs::write(path(name), before).unwrap();
        }
        for name in ["tls.crt", "tls.key", "ca.crt", "trust.json"] {
            fs::copy(other.path().join(name), path(name)).unwrap();
        }
        assert!(keeper.standing(year(2026)).unusable.unwrap().contains("c2"), "a running spoke changes no cluster");
    }

    #[test]
    fn new_files_are_taken_up_and_expired_ones_only_when_there_are_no_better() {
        let (dir, keeper, metrics) = keeper(2030);
        identity_into(dir.path(), URI, 2020);
        assert_eq!(keeper.identity(year(2026)).unwrap().not_after, Timestamp::from_unix_ms(1_893_456_000_000));
        assert!(keeper.standing(year(2026)).unusable.unwrap().contains("expired at 2020"));
        assert!(keeper.identity(year(2031)).is_ok(), "both are over, and the hub may see it otherwise");
        identity_into(dir.path(), URI, 2040);
        let standing = keeper.standing(year(2031));
        assert!(standing.not_after > year(2031) && standing.unusable.is_none(), "{standing:?}");
        assert_eq!(metrics.get(metrics::TLS_RELOADS, &[("outcome", "ok")]), Some(2.0));
    }
}
