//! Which exporters there are, and on which node each sits. Pure. A page's own labels never tell the node: they name a
//! pod, a container or nothing, depending on the exporter's version.

use std::{collections::BTreeMap, net::IpAddr, str::FromStr};

use crate::watch::ServicePod;

/// One exporter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The node whose GPUs it tells about.
    pub node: String,
    /// Where its page is.
    pub url: String,
    /// Tells one start of its process from the next: the pod's UID and its restarts; empty when nobody knows.
    pub start: String,
}

impl Target {
    /// Host and port, for people.
    #[must_use]
    pub fn address(&self) -> &str {
        let rest = self.url.split_once("://").map_or(self.url.as_str(), |(_, rest)| rest);
        rest.split('/').next().unwrap_or(rest)
    }
}

/// An exporter given by hand: `URL=NODE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticTarget(pub Target);

impl FromStr for StaticTarget {
    type Err = ParseTargetError;

    fn from_str(text: &str) -> Result<Self, ParseTargetError> {
        let malformed = || ParseTargetError { text: text.to_owned() };
        let (url, node) = text.rsplit_once('=').ok_or_else(malformed)?;
        let uri: http::Uri = url.parse().map_err(|_| malformed())?;
        if node.is_empty() || uri.host().is_none() || !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(malformed());
        }
        let path = if matches!(uri.path(), "" | "/") { "/metrics" } else { "" };
        Ok(Self(Target { node: node.to_owned(), url: format!("{}{path}", url.trim_end_matches('/')), start: String::new() }))
    }
}

/// Not an exporter's place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not URL=NODE like http://10.0.0.7:9400=node-7")]
pub struct ParseTargetError {
    text: String,
}

/// Every exporter: those given by hand, and pods that run on a node and have an address. One per node: what is given by
/// hand wins, then the pod that comes first by name.
pub(crate) fn all(pods: &mut dyn Iterator<Item = &ServicePod>, fixed: &[StaticTarget], port: u16) -> Vec<Target> {
    let mut pods: Vec<_> = pods.collect();
    pods.sort_by(|a, b| a.name.cmp(&b.name));
    let found = pods.into_iter().filter_map(|pod| of_pod(pod, port));
    let mut by_node = BTreeMap::new();
    for target in fixed.iter().map(|target| target.0.clone()).chain(found) {
        by_node.entry(target.node.clone()).or_insert(target);
    }
    by_node.into_values().collect()
}

fn of_pod(pod: &ServicePod, port: u16) -> Option<Target> {
    let ip = pod.ip.filter(|_| pod.runs && !pod.node.is_empty())?;
    let port = pod.port.unwrap_or(port);
    let host = match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    };
    Some(Target { node: pod.node.to_string(), url: format!("http://{host}:{port}/metrics"), start: pod.start.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, node: &str, ip: &str, port: Option<u16>) -> ServicePod {
        ServicePod { name: name.into(), node: node.into(), ip: ip.parse().ok(), port, runs: true, start: "uid/0".into() }
    }

    fn urls(targets: &[Target]) -> Vec<(&str, &str)> {
        targets.iter().map(|target| (target.node.as_str(), target.url.as_str())).collect()
    }

    #[test]
    fn a_pods_own_port_wins_and_its_node_is_where_it_runs() {
        let ended = ServicePod { runs: false, ..pod("d", "n4", "10.0.0.4", None) };
        let pods = [pod("a", "n1", "10.0.0.1", Some(9401)), pod("b", "n2", "fd00::2", None), pod("c", "n3", "", None), ended];
        let targets = all(&mut pods.iter(), &[], 9400);
        assert_eq!(urls(&targets), [("n1", "http://10.0.0.1:9401/metrics"), ("n2", "http://[fd00::2]:9400/metrics")]);
        assert_eq!(targets[1].address(), "[fd00::2]:9400");
    }

    #[test]
    fn an_exporter_given_by_hand_stands_before_a_pod_of_its_node() {
        let fixed = ["http://127.0.0.1:9/metrics=n1".parse().unwrap()];
        let pods = [pod("a", "n1", "10.0.0.1", None)];
        assert_eq!(urls(&all(&mut pods.iter(), &fixed, 9400)), [("n1", "http://127.0.0.1:9/metrics")]);
    }

    #[test]
    fn only_url_and_node_make_an_exporter() {
        assert_eq!("http://h:1=n".parse::<StaticTarget>().unwrap().0.url, "http://h:1/metrics");
        assert_eq!("http://h:1/x?a=b=n".parse::<StaticTarget>().unwrap().0.url, "http://h:1/x?a=b");
        for text in ["", "http://h:1", "http://h:1=", "h:1=n", "ftp://h=n"] {
            assert!(text.parse::<StaticTarget>().is_err(), "{text}");
        }
    }
}
