//! Workloads that can be restarted by their template, as people and plans name them: `kind/namespace/name`, with `/uid` behind where
//! that one is meant and no other of its name. Read here alone, by the hub before it plans and by the spoke before it acts.

use std::fmt;

use crate::bytes_text::clip;

/// A namespace: a DNS label.
const NAMESPACE_BYTES_MAX: usize = 63;
/// A name: a DNS subdomain.
const NAME_BYTES_MAX: usize = 253;
/// A UID as the API server makes it: 36 characters.
const UID_BYTES_MAX: usize = 36;

crate::words::words!(
    /// The kinds that have a pod template and a controller that rolls it out.
    WorkloadKind {
        /// Of apps/v1.
        Deployment = "deployment",
        /// Of apps/v1.
        StatefulSet = "statefulset",
        /// Of apps/v1.
        DaemonSet = "daemonset",
    }
);

/// One workload.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Workload {
    kind: WorkloadKind,
    namespace: String,
    name: String,
    uid: Option<String>,
}

/// A text that names none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Of another shape, or with a part that Kubernetes takes for no name.
    #[error("{text:?} is not kind/namespace/name")]
    Shape {
        /// What was given.
        text: String,
    },
    /// A kind that has no template which its controller rolls out.
    #[error("{text} cannot be restarted by its template: a deployment, a statefulset or a daemonset can")]
    Kind {
        /// What was given.
        text: String,
    },
}

impl Workload {
    /// From `kind/namespace/name` or `kind/namespace/name/uid`; the kind in letters of any case.
    ///
    /// # Errors
    /// When it names nothing that can be restarted.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let shape = || Error::Shape { text: clip(text, NAME_BYTES_MAX).to_owned() };
        let parts: Vec<&str> = text.split('/').collect();
        let (kind, namespace, name, uid) = match parts[..] {
            [kind, namespace, name] => (kind, namespace, name, None),
            [kind, namespace, name, uid] => (kind, namespace, name, Some(uid)),
            _ => return Err(shape()),
        };
        let named = is_name(namespace, NAMESPACE_BYTES_MAX) && is_name(name, NAME_BYTES_MAX);
        if kind.is_empty() || !named || !uid.is_none_or(|uid| is_name(uid, UID_BYTES_MAX)) {
            return Err(shape());
        }
        let Some(kind) = WorkloadKind::parse(&kind.to_ascii_lowercase()) else {
            return Err(Error::Kind { text: clip(text, NAME_BYTES_MAX).to_owned() });
        };
        Ok(Self { kind, namespace: namespace.to_owned(), name: name.to_owned(), uid: uid.map(str::to_owned) })
    }

    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> WorkloadKind {
        self.kind
    }

    /// Where it is.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The one that is meant, and no other of its name.
    #[must_use]
    pub fn uid(&self) -> Option<&str> {
        self.uid.as_deref()
    }
}

/// What may be part of a path and is no more: no letter of it can lead out of the collection.
fn is_name(text: &str, bytes_max: usize) -> bool {
    let letters = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    let ends = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    ends && text.len() <= bytes_max && text.bytes().all(letters)
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.kind, self.namespace, self.name)?;
        self.uid.as_ref().map_or(Ok(()), |uid| write!(f, "/{uid}"))
    }
}

impl std::str::FromStr for Workload {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text)
    }
}

impl TryFrom<String> for Workload {
    type Error = Error;
    fn try_from(text: String) -> Result<Self, Error> {
        Self::parse(&text)
    }
}

impl From<Workload> for String {
    fn from(workload: Workload) -> Self {
        workload.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_is_kind_namespace_and_name_and_may_say_which_of_that_name() {
        let workload = Workload::parse("Deployment/ml/web").unwrap();
        assert_eq!((workload.to_string().as_str(), workload.uid()), ("deployment/ml/web", None));
        let meant = Workload::parse("statefulset/ml/db.a/0c5c7a3e").unwrap();
        assert_eq!((meant.to_string().as_str(), meant.uid()), ("statefulset/ml/db.a/0c5c7a3e", Some("0c5c7a3e")));
        let long = format!("deployment/{}/web", "n".repeat(64));
        for wrong in [
            "",
            "web",
            "ml/web",
            "deployment//web",
            "deployment/ml/web/",
            "deployment/ml/web/u1/x",
            "deployment/../web",
            "/ml/web",
            &long,
        ] {
            assert!(matches!(Workload::parse(wrong), Err(Error::Shape { .. })), "{wrong:?}");
        }
    }

    #[test]
    fn a_kind_without_a_rollout_is_named_as_one() {
        let error = Workload::parse("job/ml/train").unwrap_err();
        assert!(error.to_string().starts_with("job/ml/train cannot be restarted by its template"), "{error}");
    }
}
