//! One page over HTTP. Stops reading at the largest page that is ever parsed: what came until then is still used.

use std::time::Duration;

use gpuheal_spoke_core::scrape::exposition::EXPOSITION_BYTES_MAX;

/// Connecting within a cluster.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Connections kept for the next scrape: none. Each would hold a read buffer as large as its page, 64 KiB of memory for
/// eight GPUs, and 1,000 exporters several times what the rest of a spoke needs; opening one costs a round trip.
const IDLE_CONNECTIONS: usize = 0;

/// A page as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// It was longer than is read, or broke off.
    pub cut: bool,
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Nobody listens there.
    #[error("exporter cannot be reached")]
    Connect(#[source] reqwest::Error),
    /// Too slow.
    #[error("exporter did not answer in time")]
    Timeout,
    /// Something broke on the way before any byte of the page.
    #[error("exporter's answer broke off")]
    Broken(#[source] reqwest::Error),
    /// An error page: driver or DCGM trouble, mostly.
    #[error("exporter answered {status}")]
    Status {
        /// Its status.
        status: u16,
    },
    /// A page without a byte: a reload, or an exporter started before its driver.
    #[error("exporter's page is empty")]
    Empty,
}

impl Failure {
    /// In one word, for metrics.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect",
            Self::Timeout => "timeout",
            Self::Broken(_) => "broken",
            Self::Status { .. } => "status",
            Self::Empty => "empty",
        }
    }
}

/// The HTTP client. Cheap to clone.
#[derive(Clone)]
pub struct Fetcher {
    client: reqwest::Client,
}

impl Fetcher {
    /// A client that follows no redirect and takes no proxy: pods are reached as they are.
    #[must_use]
    pub fn new() -> Self {
        // A second call changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .user_agent(concat!("gpuheal-spoke/", env!("CARGO_PKG_VERSION")))
            .build()
            .expect("a TLS provider is installed and nothing else can fail");
        Self { client }
    }

    /// One page.
    ///
    /// # Errors
    /// When no byte of a page came.
    pub async fn get(&self, url: &str, timeout: Duration) -> Result<Page, Failure> {
        let mut page = Page { bytes: Vec::new(), cut: false };
        let ended = tokio::time::timeout(timeout, self.read(url, &mut page)).await;
        let failure = match ended {
            Ok(Ok(())) => None,
            Ok(Err(failure)) => Some(failure),
            Err(_) => Some(Failure::Timeout),
        };
        match failure {
            // Its good rows are still good.
            Some(_) if !page.bytes.is_empty() => Ok(Page { cut: true, ..page }),
            Some(failure) => Err(failure),
            None if page.bytes.iter().all(u8::is_ascii_whitespace) => Err(Failure::Empty),
            None => Ok(page),
        }
    }

    async fn read(&self, url: &str, page: &mut Page) -> Result<(), Failure> {
        let request = self.client.get(url).header("accept", "text/plain;version=0.0.4").header("connection", "close");
        let mut response = request.send().await.map_err(failure)?;
        if !response.status().is_success() {
            return Err(Failure::Status { status: response.status().as_u16() });
        }
        while let Some(chunk) = response.chunk().await.map_err(failure)? {
            let room = EXPOSITION_BYTES_MAX - page.bytes.len();
            if chunk.len() > room {
                page.bytes.extend_from_slice(&chunk[..room]);
                page.cut = true;
                return Ok(());
            }
            page.bytes.extend_from_slice(&chunk);
        }
        Ok(())
    }
}

impl Default for Fetcher {
    fn default() -> Self {
        Self::new()
    }
}

fn failure(error: reqwest::Error) -> Failure {
    if error.is_timeout() {
        Failure::Timeout
    } else if error.is_connect() {
        Failure::Connect(error)
    } else {
        Failure::Broken(error)
    }
}
