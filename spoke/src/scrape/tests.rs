//! Fetching over real HTTP from exporters that behave and exporters that do not.

use std::time::Duration;

use axum::{Router, body::Body, http::StatusCode, routing::get};
use gpuheal_spoke_core::scrape::exposition::EXPOSITION_BYTES_MAX;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::testing::TestCluster;

async fn serve(app: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    format!("http://{address}")
}

async fn fetch(url: &str) -> Result<fetch::Page, Failure> {
    Fetcher::new().get(url, Duration::from_secs(120)).await
}

#[tokio::test]
async fn a_page_of_a_hundred_megabytes_costs_no_more_than_the_limit() {
    let endless = || async {
        let chunk = bytes::Bytes::from(vec![b'#'; 1 << 20]);
        Body::from_stream(futures::stream::iter((0..100).map(move |_| Ok::<_, std::io::Error>(chunk.clone()))))
    };
    let base = serve(Router::new().route("/metrics", get(endless))).await;
    let page = fetch(&format!("{base}/metrics")).await.unwrap();
    assert!(page.cut);
    assert_eq!(page.bytes.len(), EXPOSITION_BYTES_MAX);
}

#[tokio::test]
async fn an_empty_page_an_error_page_and_no_exporter_are_told_apart() {
    let app = Router::new()
        .route("/empty", get(|| async { "" }))
        .route("/error", get(|| async { (StatusCode::INTERNAL_SERVER_ERROR, "DCGM is away") }))
        .route("/slow", get(|| async { std::future::pending::<&'static str>().await }));
    let base = serve(app).await;
    assert_eq!(fetch(&format!("{base}/empty")).await.unwrap_err().word(), "empty");
    assert_eq!(fetch(&format!("{base}/error")).await.unwrap_err().word(), "status");
    let slow = Fetcher::new().get(&format!("{base}/slow"), Duration::from_millis(50)).await;
    assert_eq!(slow.unwrap_err().word(), "timeout");
    assert_eq!(fetch("http://127.0.0.1:9/metrics").await.unwrap_err().word(), "connect");
}

#[tokio::test]
async fn rows_that_came_before_a_page_broke_off_are_kept() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/metrics", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = [0; 512];
        let _ = socket.read(&mut request).await.unwrap();
        // More is promised than ever comes.
        socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\nDCGM_FI_DEV_GPU_TEMP 41\n").await.unwrap();
    });
    let page = fetch(&url).await.unwrap();
    assert!(page.cut && page.bytes.starts_with(b"DCGM_FI_DEV_GPU_TEMP 41\n"), "{page:?}");
}

#[tokio::test]
async fn an_exporters_loop_that_panics_ends_the_scraper_and_holds_no_release_for_ever() {
    let cluster = TestCluster::new().await;
    let rounds = Rounds::new();
    // Whoever notes from now on that an exporter was asked panics, as at a bug of ours.
    let breaks = Arc::clone(&rounds);
    let broken = std::thread::spawn(move || breaks.expect(std::iter::from_fn(|| panic!("on purpose"))));
    broken.join().unwrap_err();
    let (_changed, changes) = watch::channel(0);
    let deps = Deps {
        exporters: ServicePods::default(),
        changes,
        fixed: ["http://127.0.0.1:9=n1".parse().unwrap()].into(),
        port: 9400,
        settings: Arc::clone(&cluster.settings),
        leadership: cluster.leadership.subscribe(),
        derive: Arc::clone(&cluster.derive),
        rounds,
        metrics: Arc::clone(&cluster.metrics),
    };
    let scraper = tokio::spawn(run(deps, CancellationToken::new()));
    let ended = tokio::time::timeout(Duration::from_secs(120), scraper).await.expect("it goes on without one of its loops");
    assert!(ended.unwrap_err().is_panic(), "whoever waits for it is told");
}
