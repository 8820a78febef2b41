//! What an API server says when admission is against a request: which webhook or policy, and whether it said no or could
//! not be asked at all. A webhook answers with any status and reason it likes, 404, 409 and 429 among them, so that only the
//! sentence which the API server itself puts before the webhook's words tells it from an answer of its own. Kubernetes has
//! written these sentences since 1.9 (webhooks) and 1.26 (policies); one that is written otherwise is not found here, and is
//! then judged by its status.

/// Before a webhook's own words when it says no.
const WEBHOOK_DENIED: (&str, &str) = ("admission webhook \"", "\" denied the request");
/// Before the reason why a webhook could not be asked, and its failure policy is Fail.
const WEBHOOK_FAILED: (&str, &str) = ("failed calling webhook \"", "\"");
/// Before a ValidatingAdmissionPolicy's message.
const POLICY_DENIED: (&str, &str) = ("ValidatingAdmissionPolicy '", "' with binding '");

/// Who is against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Against<'a> {
    /// The webhook's or the policy's name.
    pub name: &'a str,
    /// What it is and did.
    pub how: How,
    /// Its own words, or what went wrong on the way to it.
    pub text: &'a str,
}

/// In which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// A webhook said no.
    Denied,
    /// A webhook could not be asked: it is down, slow or wrongly set up.
    NotReached,
    /// A policy in the cluster says no.
    Policy,
}

/// Reads a Status' message; nothing when admission has no part in it.
#[must_use]
pub fn against(message: &str) -> Option<Against<'_>> {
    let find = |how, (before, after): (&str, &str)| {
        let (_, rest) = message.split_once(before)?;
        let (name, text) = rest.split_once(after)?;
        Some(Against { name, how, text: text.trim_start_matches([':', ' ']) })
    };
    find(How::Denied, WEBHOOK_DENIED)
        .or_else(|| find(How::NotReached, WEBHOOK_FAILED))
        .or_else(|| find(How::Policy, POLICY_DENIED).map(|policy| Against { text: after_binding(policy.text), ..policy }))
}

/// The policy's message without its binding's name.
fn after_binding(text: &str) -> &str {
    text.split_once("denied request: ").map_or(text, |(_, message)| message)
}

impl std::fmt::Display for Against<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, text, .. } = self;
        match self.how {
            How::Denied => write!(f, "the admission webhook {name} says no: {text}"),
            How::NotReached => write!(f, "the admission webhook {name} could not be asked: {text}"),
            How::Policy => write!(f, "the admission policy {name} says no: {text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_against_it_is_read_from_the_api_servers_own_sentence() {
        let words = |message| against(message).map(|against| against.to_string());
        let cases = [
            (
                r#"admission webhook "evict.kubevirt.io" denied the request: Eviction triggered evacuation of VMI "ml/vm""#,
                r#"the admission webhook evict.kubevirt.io says no: Eviction triggered evacuation of VMI "ml/vm""#,
            ),
            (
                r#"admission webhook "quiet.example.com" denied the request without explanation"#,
                "the admission webhook quiet.example.com says no: without explanation",
            ),
            (
                r#"Internal error occurred: failed calling webhook "guard.example.com": failed to call webhook: Post "https://127.0.0.1:1/?timeout=10s": dial tcp 127.0.0.1:1: connect: connection refused"#,
                r#"the admission webhook guard.example.com could not be asked: failed to call webhook: Post "https://127.0.0.1:1/?timeout=10s": dial tcp 127.0.0.1:1: connect: connection refused"#,
            ),
            (
                r#"pods "a" is forbidden: ValidatingAdmissionPolicy 'no-evictions' with binding 'all' denied request: ask first"#,
                "the admission policy no-evictions says no: ask first",
            ),
        ];
        for (message, told) in cases {
            assert_eq!(words(message).as_deref(), Some(told));
        }
        for none in ["", "etcdserver: request timed out", "This pod has more than one PodDisruptionBudget, which …", "webhook"] {
            assert_eq!(words(none), None, "{none}");
        }
    }
}
