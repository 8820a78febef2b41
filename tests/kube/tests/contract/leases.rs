//! Leases: what an elector needs to be sure that nobody else holds the same one.

use serde_json::{Value, json};
use testkube::raw;

use crate::world::World;

testkube::claims![
    a_lease_is_created_once,
    update_with_an_old_resource_version_is_409,
    update_without_a_resource_version_is_422,
    update_with_another_uid_is_409,
    of_many_updates_from_one_version_exactly_one_wins,
    renew_time_keeps_its_microseconds,
    deletion_with_an_old_resource_version_is_409,
];

const LEASES: &str = "coordination.k8s.io/v1";

fn lease(holder: &str) -> Value {
    json!({
        "apiVersion": LEASES, "kind": "Lease", "metadata": { "name": "leader" },
        "spec": {
            "holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 0,
            "acquireTime": "2026-01-01T00:00:00.000001Z", "renewTime": "2026-01-01T00:00:00.123456Z",
        },
    })
}

async fn created(w: &World) -> Value {
    raw::post(&w.client, &w.apis(LEASES, "leases"), &lease("a")).await.expect(201).json
}

async fn a_lease_is_created_once(w: World) {
    created(&w).await;
    let answer = raw::post(&w.client, &w.apis(LEASES, "leases"), &lease("b")).await.expect(409);
    assert_eq!(answer.reason(), "AlreadyExists");
    assert_eq!(w.get(&w.apis(LEASES, "leases/leader")).await["spec"]["holderIdentity"], "a");
}

async fn update_with_an_old_resource_version_is_409(w: World) {
    let mut old = created(&w).await;
    let path = w.apis(LEASES, "leases/leader");
    let mut current = old.clone();
    current["spec"]["holderIdentity"] = json!("b");
    raw::put(&w.client, &path, &current).await.expect(200);
    old["spec"]["holderIdentity"] = json!("c");
    assert_eq!(raw::put(&w.client, &path, &old).await.expect(409).reason(), "Conflict");
    assert_eq!(w.get(&path).await["spec"]["holderIdentity"], "b");
}

async fn update_without_a_resource_version_is_422(w: World) {
    created(&w).await;
    raw::put(&w.client, &w.apis(LEASES, "leases/leader"), &lease("b")).await.expect(422);
}

async fn update_with_another_uid_is_409(w: World) {
    let mut body = created(&w).await;
    body["metadata"]["uid"] = json!("another");
    raw::put(&w.client, &w.apis(LEASES, "leases/leader"), &body).await.expect(409);
}

async fn of_many_updates_from_one_version_exactly_one_wins(w: World) {
    let current = created(&w).await;
    let path = w.apis(LEASES, "leases/leader");
    let bodies: Vec<Value> = (0..6)
        .map(|candidate| {
            let mut body = current.clone();
            body["spec"]["holderIdentity"] = json!(format!("candidate-{candidate}"));
            body
        })
        .collect();
    let attempts = bodies.iter().map(|body| raw::put(&w.client, &path, body));
    let mut codes: Vec<u16> = futures::future::join_all(attempts).await.iter().map(|answer| answer.code).collect();
    codes.sort_unstable();
    assert_eq!(codes, [200, 409, 409, 409, 409, 409]);
}

async fn renew_time_keeps_its_microseconds(w: World) {
    assert_eq!(created(&w).await["spec"]["renewTime"], "2026-01-01T00:00:00.123456Z");
}

async fn deletion_with_an_old_resource_version_is_409(w: World) {
    let old = created(&w).await;
    let path = w.apis(LEASES, "leases/leader");
    w.merge_patch(&path, json!({ "spec": { "holderIdentity": "b" } })).await.expect(200);
    let options = json!({ "preconditions": { "resourceVersion": old["metadata"]["resourceVersion"] } });
    raw::delete(&w.client, &path, Some(&options)).await.expect(409);
    w.get(&path).await;
}
