//! The network of a chaos run: a TCP proxy that passes bytes through as they are (TLS stays end to end) and can be told to
//! stall, to swallow, to refuse, to delay, and to reset what is open. One for each wire, so that one can be ill alone.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::watch,
    task::JoinHandle,
};

/// Bytes carried at once: a TLS record.
const PIECE_BYTES: usize = 16 * 1024;
/// How long somebody behind the proxy may take to accept: on this machine it is there or it is not.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// How the network is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// Bytes pass.
    Clear,
    /// Every packet is lost: nothing passes, and what was sent arrives when the weather clears.
    Stalled,
    /// What is open is forgotten on the way: its bytes are swallowed, nobody is told, and it never recovers. New
    /// connections are accepted and swallowed too.
    HalfOpen,
    /// Nobody listens.
    Refused,
    /// Each piece waits.
    Slow(Duration),
}

/// One wire.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    weather: watch::Sender<Weather>,
    /// How often everything open was forgotten on the way.
    forgotten: AtomicU64,
    /// How often everything open was reset.
    resets: watch::Sender<u64>,
    behind: Mutex<Vec<SocketAddr>>,
    turn: AtomicUsize,
}

impl Proxy {
    /// Listens on a free port; carries to `behind`, in turns when there are several.
    pub async fn start(behind: Vec<SocketAddr>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            weather: watch::channel(Weather::Clear).0,
            forgotten: AtomicU64::new(0),
            resets: watch::channel(0).0,
            behind: Mutex::new(behind),
            turn: AtomicUsize::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, accepting })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes where new connections are carried to.
    pub fn lead_to(&self, behind: Vec<SocketAddr>) {
        *self.shared.behind() = behind;
    }

    /// Changes the weather, for what is open and for what comes.
    pub fn set(&self, weather: Weather) {
        if weather == Weather::HalfOpen {
            self.shared.forgotten.fetch_add(1, Ordering::SeqCst);
        }
        self.shared.weather.send_replace(weather);
    }

    /// Resets whatever is open.
    pub fn reset(&self) {
        self.shared.resets.send_modify(|count| *count += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.reset();
    }
}

impl Shared {
    fn behind(&self) -> MutexGuard<'_, Vec<SocketAddr>> {
        self.behind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody behind the proxy who accepts, beginning with the next in turn.
    async fn reach(&self) -> Option<TcpStream> {
        let all = self.behind().clone();
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        for offset in 0..all.len() {
            let to = all[(first + offset) % all.len()];
            if let Ok(Ok(stream)) = tokio::time::timeout(CONNECT_WITHIN, TcpStream::connect(to)).await {
                return Some(stream);
            }
        }
        None
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        // Out of descriptors for a moment: the next one may be let in.
        let Ok((client, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let resets = shared.resets.subscribe();
        tokio::spawn(carry(client, Arc::clone(&shared), resets));
    }
}

async fn carry(mut client: TcpStream, shared: Arc<Shared>, mut resets: watch::Receiver<u64>) {
    let born = shared.forgotten.load(Ordering::SeqCst);
    let mut weather = shared.weather.subscribe();
    let now = match weather.wait_for(|now| *now != Weather::Stalled).await {
        Ok(now) => *now,
        Err(_) => return,
    };
    let reached = if now == Weather::Refused { None } else { shared.reach().await };
    let Some(mut server) = reached else {
        let _already_gone = client.set_zero_linger();
        return;
    };
    // Both ends turn Nagle off; a proxy that did not would be a slow network of its own.
    let _best_effort = (client.set_nodelay(true), server.set_nodelay(true));
    let reset = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let wire = Wire { shared: &shared, lost: now == Weather::HalfOpen, born };
        let carried = async {
            tokio::join!(pump(from_client, to_server, weather.clone(), wire), pump(from_server, to_client, weather.clone(), wire))
        };
        tokio::select! {
            _ = resets.changed() => true,
            _ = carried => false,
        }
    };
    if reset {
        let _already_gone = (client.set_zero_linger(), server.set_zero_linger());
    }
}

/// One connection on its way.
#[derive(Clone, Copy)]
struct Wire<'a> {
    shared: &'a Shared,
    lost: bool,
    born: u64,
}

impl Wire<'_> {
    /// Forgotten on the way, at its birth or since.
    fn lost(&self) -> bool {
        self.lost || self.shared.forgotten.load(Ordering::SeqCst) != self.born
    }
}

/// Carries one direction to its end. Once lost, it reads on and delivers nothing, not even the end.
async fn pump(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, mut weather: watch::Receiver<Weather>, wire: Wire<'_>) {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let read = from.read(&mut piece).await;
        if !wire.lost() && weather.wait_for(|now| *now != Weather::Stalled).await.is_err() {
            return;
        }
        let Ok(bytes @ 1..) = read else {
            if !wire.lost() {
                let _already_gone = to.shutdown().await;
            }
            return;
        };
        if wire.lost() {
            continue;
        }
        let now = *weather.borrow();
        if let Weather::Slow(wait) = now {
            tokio::time::sleep(wait).await;
        }
        if to.write_all(&piece[..bytes]).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long a test waits for what must come: far beyond what the slowest machine needs.
    const WITHIN: Duration = Duration::from_secs(120);

    /// A server that says back what it hears.
    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    let _until_it_ends = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        address
    }

    async fn asks(stream: &mut TcpStream, word: &[u8]) -> std::io::Result<Vec<u8>> {
        stream.write_all(word).await?;
        hears(stream, word.len()).await
    }

    async fn hears(stream: &mut TcpStream, bytes: usize) -> std::io::Result<Vec<u8>> {
        let mut heard = vec![0; bytes];
        tokio::time::timeout(WITHIN, stream.read_exact(&mut heard)).await.expect("an answer or an end")?;
        Ok(heard)
    }

    #[tokio::test]
    async fn what_stalls_arrives_once_the_weather_clears() {
        let proxy = Proxy::start(vec![echo().await]).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(asks(&mut stream, b"one").await.unwrap(), b"one");
        proxy.set(Weather::Stalled);
        stream.write_all(b"two").await.unwrap();
        proxy.set(Weather::Slow(Duration::from_millis(1)));
        assert_eq!(hears(&mut stream, 3).await.unwrap(), b"two");
        proxy.set(Weather::Clear);
        assert_eq!(asks(&mut stream, b"three").await.unwrap(), b"three");
    }

    #[tokio::test]
    async fn what_was_half_open_never_recovers_and_what_comes_after_it_passes() {
        let proxy = Proxy::start(vec![echo().await]).await.unwrap();
        let mut old = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(asks(&mut old, b"one").await.unwrap(), b"one");
        proxy.set(Weather::HalfOpen);
        let mut swallowed = TcpStream::connect(proxy.address()).await.unwrap();
        swallowed.write_all(b"lost").await.unwrap();
        old.write_all(b"lost").await.unwrap();
        proxy.set(Weather::Clear);
        let mut new = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(asks(&mut new, b"two").await.unwrap(), b"two");
        proxy.reset();
        assert!(hears(&mut old, 1).await.is_err(), "a swallowed byte came back");
    }

    #[tokio::test]
    async fn a_reset_ends_what_is_open_and_nobody_is_reached_while_refused() {
        let proxy = Proxy::start(vec![echo().await]).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(asks(&mut stream, b"one").await.unwrap(), b"one");
        proxy.reset();
        assert!(hears(&mut stream, 1).await.is_err());
        proxy.set(Weather::Refused);
        let mut refused = TcpStream::connect(proxy.address()).await.unwrap();
        assert!(asks(&mut refused, b"two").await.is_err());
    }

    #[tokio::test]
    async fn whoever_is_away_is_passed_over() {
        let away = {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            listener.local_addr().unwrap()
        };
        let proxy = Proxy::start(vec![away, echo().await]).await.unwrap();
        for _ in 0..3 {
            let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
            assert_eq!(asks(&mut stream, b"one").await.unwrap(), b"one");
        }
    }
}
