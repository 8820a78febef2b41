//! What a cluster weighs: figures that scale runs count on.

use kubesim::build;

use crate::client::still;

/// A thousand nodes: 2 kB of text each.
const NODES_BYTES_MAX: usize = 2_500_000;

#[tokio::test]
async fn a_thousand_nodes_take_a_few_megabytes() {
    let (sim, client) = still().await;
    for number in 0..1_000 {
        sim.store().create(build::gpu_node(&format!("gpu-{number:04}"), 8, "H100")).unwrap();
    }
    let (objects, window) = sim.store().bytes();
    assert!(objects < NODES_BYTES_MAX && window < NODES_BYTES_MAX, "{objects} {window}");
    assert_eq!(client.get("/api/v1/nodes").await.body["items"].as_array().unwrap().len(), 1_000);
}
