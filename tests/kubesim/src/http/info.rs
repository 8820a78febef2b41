//! Pure: what a path and its query ask for, in the API server's own terms.

use ::http::{Method, Uri};
use axum::extract::Query;

/// A request's target and verb.
#[derive(Debug, Clone, Default)]
pub(crate) struct Info {
    pub(crate) path: String,
    pub(crate) verb: String,
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    query: Vec<(String, String)>,
}

impl Info {
    pub(crate) fn parse(method: &Method, uri: &Uri) -> Self {
        let query = Query::<Vec<(String, String)>>::try_from_uri(uri).map(|query| query.0).unwrap_or_default();
        let mut info = Self { path: uri.path().to_owned(), query, ..Self::default() };
        let segments: Vec<String> = uri.path().split('/').filter(|s| !s.is_empty()).map(decode).collect();
        info.target(&segments);
        info.verb = info.verb_of(method);
        info
    }

    fn target(&mut self, segments: &[String]) {
        let words: Vec<&str> = segments.iter().map(String::as_str).collect();
        let rest = match words.as_slice() {
            ["api", version, rest @ ..] => {
                (*version).clone_into(&mut self.version);
                rest
            }
            ["apis", group, version, rest @ ..] => {
                (*group).clone_into(&mut self.group);
                (*version).clone_into(&mut self.version);
                rest
            }
            _ => return,
        };
        let own = |word: Option<&&str>| word.map(|word| (*word).to_owned()).unwrap_or_default();
        // `/namespaces/x` and its subresources are the namespace itself; anything longer lies inside it.
        let inside = rest.len() >= 3 && rest[0] == "namespaces" && !(rest.len() == 3 && matches!(rest[2], "status" | "finalize"));
        let rest = if inside {
            rest[1].clone_into(&mut self.namespace);
            &rest[2..]
        } else {
            rest
        };
        self.resource = own(rest.first());
        self.name = own(rest.get(1));
        self.subresource = own(rest.get(2));
    }

    fn verb_of(&self, method: &Method) -> String {
        let many = self.name.is_empty();
        let verb = match *method {
            _ if self.resource.is_empty() => return method.as_str().to_lowercase(),
            Method::GET if self.flag("watch") => "watch",
            Method::GET if many => "list",
            Method::GET => "get",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if many => "deletecollection",
            Method::DELETE => "delete",
            _ => return method.as_str().to_lowercase(),
        };
        verb.to_owned()
    }

    /// A query parameter; empty when absent.
    pub(crate) fn param(&self, name: &str) -> &str {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str()).unwrap_or_default()
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        matches!(self.param(name), "true" | "1")
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.param(name).parse().ok()
    }

    pub(crate) fn dry_run(&self) -> bool {
        self.param("dryRun") == "All"
    }

    pub(crate) fn strict(&self) -> bool {
        self.param("fieldValidation") == "Strict"
    }

    /// Paths that need no token.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.path.as_str(), "/healthz" | "/readyz" | "/livez" | "/version")
    }
}

fn decode(segment: &str) -> String {
    let bytes = segment.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).filter(|_| bytes[at] == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: Method, uri: &str) -> Info {
        Info::parse(&method, &uri.parse().unwrap())
    }

    #[test]
    fn paths_say_group_resource_namespace_name_and_subresource() {
        let info = parse(Method::POST, "/api/v1/namespaces/ml/pods/train-0/eviction?dryRun=All");
        assert_eq!((info.verb.as_str(), info.namespace.as_str(), info.resource.as_str()), ("create", "ml", "pods"));
        assert_eq!((info.name.as_str(), info.subresource.as_str(), info.dry_run()), ("train-0", "eviction", true));
        let info = parse(Method::GET, "/apis/apps/v1/deployments?watch=1");
        assert_eq!((info.verb.as_str(), info.group.as_str(), info.resource.as_str()), ("watch", "apps", "deployments"));
    }

    #[test]
    fn a_namespace_is_an_object_and_a_place() {
        assert_eq!(parse(Method::GET, "/api/v1/namespaces/ml").name, "ml");
        let finalize = parse(Method::PUT, "/api/v1/namespaces/ml/finalize");
        assert_eq!((finalize.name.as_str(), finalize.subresource.as_str(), finalize.namespace.as_str()), ("ml", "finalize", ""));
        let list = parse(Method::GET, "/api/v1/namespaces/ml/pods");
        assert_eq!((list.verb.as_str(), list.namespace.as_str()), ("list", "ml"));
    }
}
