//! Claims about the stand-in kubelet, on kubesim without its own and on Kubernetes itself: a plain client
//! is all that it needs.

use kubesim::{Config, Controllers};
use serde_json::{Value, json};
use testkube::seed::{self, Pool};
use testkube::{Kubelet, TestCluster, cluster, kubelet, raw, settled};

/// Each claim is run on both.
async fn clusters() -> Vec<TestCluster> {
    let controllers = Controllers { kubelet: false, ..Controllers::ALL };
    let mut clusters = vec![TestCluster::sim(Config { controllers, ..Config::default() }).await];
    if cluster::real_is_wanted() {
        clusters.push(TestCluster::real().await);
    } else {
        eprintln!("KUBE=off: not proved on Kubernetes itself: the stand-in kubelet");
    }
    clusters
}

struct Bench {
    client: kube::Client,
    pool: Pool,
    machines: Kubelet,
}

impl Bench {
    async fn new(cluster: &TestCluster, name: &str) -> Self {
        let client = cluster.client().await;
        let pool = Pool { namespace: name.to_owned(), name: name.to_owned() };
        cluster.create_namespace(&client, name).await;
        let machines = Kubelet::start(client.clone(), pool.nodes(1, 8)).await.expect("the names are our own");
        Self { client, pool, machines }
    }

    fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods/p", self.pool.namespace)
    }

    async fn pod(&self) -> raw::Answer {
        raw::get(&self.client, &self.path()).await
    }

    /// A pod `p` whose containers need `exit_after_ms`, running.
    async fn running(&self, exit_after_ms: &str) -> Value {
        let mut manifest = self.pool.pod("p", 1);
        manifest["metadata"]["annotations"][kubelet::EXIT_AFTER_MS] = json!(exit_after_ms);
        seed::create(&self.client, &[manifest]).await;
        settled::until("the pod runs", || async {
            let pod = self.pod().await.json;
            (pod["status"]["phase"] == "Running").then_some(pod)
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_pod_goes_once_its_containers_have_exited() {
    for cluster in clusters().await {
        let bench = Bench::new(&cluster, "kubelet-exit").await;
        let pod = bench.running("300").await;
        assert_eq!(pod["status"]["podIP"], "127.0.0.1");
        raw::delete(&bench.client, &bench.path(), None).await.expect(200);
        // Its 300 ms may be over before another request is answered: what was in between is told by the watch.
        let pods = format!("/api/v1/namespaces/{}/pods", bench.pool.namespace);
        raw::told_to_go(&bench.client, &pods, &pod).await;
        settled::is_true("the pod is gone", || async { bench.pod().await.code == 404 }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_kubelet_ends_no_pod_and_its_node_is_not_ready() {
    for cluster in clusters().await {
        let bench = Bench::new(&cluster, "kubelet-dead").await;
        bench.running("0").await;
        let node = "/api/v1/nodes/kubelet-dead-1";
        bench.machines.die("kubelet-dead-1").await.expect("the cluster takes it");
        raw::delete(&bench.client, &bench.path(), Some(&json!({ "gracePeriodSeconds": 1 }))).await.expect(200);
        let ready = raw::get(&bench.client, node).await.expect(200).json["status"]["conditions"].clone();
        let ready = ready.as_array().into_iter().flatten().find(|condition| condition["type"] == "Ready").cloned();
        assert_eq!(ready.unwrap_or_default()["status"], "False");
        assert_eq!(bench.pod().await.expect(200).json["metadata"]["deletionGracePeriodSeconds"], 1);
        // The machine comes back: what was to go is gone with the boot.
        bench.machines.reboot("kubelet-dead-1").await.expect("the cluster takes it");
        settled::is_true("the pod is gone", || async { bench.pod().await.code == 404 }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reboot_starts_the_containers_of_the_same_pod_again() {
    for cluster in clusters().await {
        let bench = Bench::new(&cluster, "kubelet-boot").await;
        let before = bench.running("0").await;
        bench.machines.reboot("kubelet-boot-1").await.expect("the cluster takes it");
        let after = bench.pod().await.expect(200).json;
        assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
        assert_eq!(after["status"]["containerStatuses"][0]["restartCount"], 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn allocatable_gpus_can_fall_below_capacity() {
    for cluster in clusters().await {
        let bench = Bench::new(&cluster, "kubelet-gpus").await;
        bench.machines.set_allocatable_gpus("kubelet-gpus-1", 7).await.expect("the cluster takes it");
        let status = raw::get(&bench.client, "/api/v1/nodes/kubelet-gpus-1").await.expect(200).json["status"].clone();
        assert_eq!((&status["allocatable"]["nvidia.com/gpu"], &status["capacity"]["nvidia.com/gpu"]), (&json!("7"), &json!("8")));
        assert_eq!(status["allocatable"]["cpu"], "64");
    }
}
