//! Looks at a cluster: every list in pages, every call with a bound, nothing written. Reviews of access are created, as the
//! API has it, and stored by nobody. What may not be looked at is told with the API server's words.

mod access;
mod around;
mod mutators;
mod objects;
mod running;

use std::time::Duration;

use gpuheal_proto::chain::chain;
use gpuheal_spoke_core::gpu_resources::GpuResources;
use kube::{Api, Client, api::ListParams, client::Body};
use serde::{Deserialize, de::DeserializeOwned};

use super::facts::{Facts, Seen, Server};
use crate::{
    args::Doctor,
    clock,
    execute::{DRA_GROUP, dates::date_ms},
    kube_client,
};

/// Longest call.
const API_WITHIN: Duration = Duration::from_secs(15);
/// Objects in one page.
const PAGE: u32 = 500;
/// Largest answer of `/version`: it has some ten short lines.
const VERSION_BYTES_MAX: usize = 64 << 10;

/// Everything that is judged.
///
/// # Errors
/// Where there is no client to ask with.
pub async fn look(args: &Doctor) -> Result<Facts, kube_client::Error> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    // The one that does not retry: who asks wants to know how it is now.
    let client = kube_client::connect(args.kubeconfig.as_deref()).await?.act;
    let namespace = args.namespace.as_str();
    let server = server(&client).await;
    let home = objects::is_there(&client, namespace);
    let gpus = GpuResources::of(&args.sources.gpu_resources);
    let gpu_pods = around::pods(&client, args, &gpus);
    let (home, (pods, exporter_pods)) = tokio::join!(home, gpu_pods);
    let account = access::account(&client, args, pods.as_ref().map_or(&[], Vec::as_slice)).await;
    let stateful = pods.as_ref().is_ok_and(|pods| pods.iter().any(|pod| !pod.claims.is_empty()));
    let (plugins, spokes, actions, snapshots) = tokio::join!(
        running::plugins(&client, &args.sources.device_plugin_selectors),
        running::spokes(&client, namespace),
        running::actions(&client, namespace),
        running::snapshots(&client, stateful),
    );
    let (budgets, allowed, local_claims, exporters) = tokio::join!(
        around::budgets(&client, &pods),
        around::allowed(&client, &pods),
        around::local_claims(&client, &pods),
        around::exporters(exporter_pods, args),
    );
    Ok(Facts {
        namespace: namespace.to_owned(),
        mode: args.mode,
        namespaces: args.namespaces.clone(),
        server,
        account,
        home,
        crd: objects::crd(&client).await,
        policies: objects::policies(&client, namespace).await,
        mutators: mutators::mutators(&client).await,
        lease: objects::lease(&client, namespace).await,
        fence: objects::fence(&client, namespace).await,
        config: objects::config(&client, namespace).await,
        nodes: around::nodes(&client, &gpus).await,
        exporters,
        webhook: around::webhook(args).await,
        dra: objects::versions(&client, DRA_GROUP).await,
        pods,
        budgets,
        allowed,
        local_claims,
        plugins,
        spokes,
        actions,
        snapshots,
    })
}

/// One call, bounded.
async fn call<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Seen<T> {
    said(tokio::time::timeout(API_WITHIN, call).await)
}

type Answer<T> = Result<Result<T, kube::Error>, tokio::time::error::Elapsed>;

/// What was answered, in the API server's own words where it says no.
fn said<T>(answer: Answer<T>) -> Seen<T> {
    match answer {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(kube::Error::Api(status))) if !status.message.is_empty() => Err(status.message.clone()),
        Ok(Err(error)) => Err(chain(&error).to_string()),
        Err(_) => Err(format!("no answer within {} s", API_WITHIN.as_secs())),
    }
}

/// One call about an object that may not be there.
async fn get<K>(api: &Api<K>, name: &str) -> Seen<Option<K>>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    call(api.get_opt(name)).await
}

/// All objects, page by page; each is made small at once.
async fn all<K, T>(api: &Api<K>, params: ListParams, small: impl Fn(K) -> Option<T>) -> Seen<Vec<T>>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    served(api, params, small).await?.ok_or_else(|| "the API server does not know this kind".to_owned())
}

/// The same; nothing where the API server does not know the kind.
async fn served<K, T>(api: &Api<K>, mut params: ListParams, small: impl Fn(K) -> Option<T>) -> Seen<Option<Vec<T>>>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    params = params.limit(PAGE);
    let mut kept = Vec::new();
    loop {
        let answer = tokio::time::timeout(API_WITHIN, api.list(&params)).await;
        if matches!(&answer, Ok(Err(kube::Error::Api(status))) if status.code == 404) {
            return Ok(None);
        }
        let page = said(answer)?;
        kept.extend(page.items.into_iter().filter_map(&small));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(Some(kept)),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    major: String,
    minor: String,
    git_version: String,
}

/// Its version, and its clock by the `Date` of the same answer.
async fn server(client: &Client) -> Seen<Server> {
    use http_body_util::{BodyExt as _, Limited};
    let before = clock::wall();
    let request = http::Request::get("/version").body(Body::empty()).map_err(|error| error.to_string())?;
    let (parts, body) = call(client.send(request)).await?.into_parts();
    let after = clock::wall();
    if !parts.status.is_success() {
        return Err(format!("/version is answered {}", parts.status));
    }
    let read = tokio::time::timeout(API_WITHIN, Limited::new(body, VERSION_BYTES_MAX).collect()).await;
    let bytes = read.map_err(|_| "the answer broke off".to_owned())?.map_err(|error| error.to_string())?.to_bytes();
    let version: Version = serde_json::from_slice(&bytes).map_err(|error| format!("/version is no version: {error}"))?;
    let clock_off = date_ms(&parts.headers).map(|date_ms| apart(date_ms, before.unix_ms(), after.unix_ms()));
    Ok(Server { number: (number(&version.major), number(&version.minor)), version: version.git_version, clock_off })
}

/// Providers write `36+`.
fn number(text: &str) -> u32 {
    text.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0)
}

/// The least that two clocks can be apart: the answer was written in the second of its `Date`, between sending and reading.
fn apart(date_ms: i64, before_ms: i64, after_ms: i64) -> Duration {
    let late = before_ms - (date_ms + 1000);
    let early = date_ms - after_ms;
    Duration::from_millis(late.max(early).max(0).unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_of_a_provider_is_a_version() {
        assert_eq!((number("1"), number("36+"), number("")), (1, 36, 0));
    }

    #[test]
    fn clocks_are_apart_by_no_more_than_the_rounding_and_the_way_leave_sure() {
        assert_eq!(apart(10_000, 10_100, 10_200), Duration::ZERO);
        assert_eq!(apart(10_000, 10_990, 11_900), Duration::ZERO, "a slow answer is no wrong clock");
        assert_eq!(apart(10_000, 71_000, 71_100), Duration::from_secs(60));
        assert_eq!(apart(70_000, 9_900, 10_000), Duration::from_secs(60));
    }
}
