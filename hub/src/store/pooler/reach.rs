//! Where the pooler is, and TLS on the way to it. TLS is spoken with the pooler's name and chain verified, or not at all, as the
//! URL says; what would encrypt without knowing for whom is refused, and so is a URL that leaves it open.

use std::{fs, io, path::PathBuf, sync::Arc, time::Duration};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

/// How long the way to the pooler may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// SSLRequest: its length, and the number that stands where a version would.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// Both directions of a connection.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Where the pooler is.
pub(super) struct Place {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Place {
    /// Read from the URL, and from what the library made of it.
    pub(super) fn of(url: &str, options: &PgConnectOptions) -> Result<Self, Error> {
        let (host, port) = (options.get_host().to_owned(), options.get_port());
        if options.get_socket().is_some() || host.starts_with('/') {
            return Err(Error::Socket);
        }
        let tls = match options.get_ssl_mode() {
            PgSslMode::Disable => None,
            PgSslMode::VerifyFull => {
                let roots = parameter(url, &["sslrootcert", "ssl-root-cert", "ssl-ca"]).ok_or(Error::NoRoots)?;
                let name = ServerName::try_from(host.clone()).map_err(|_| Error::Name { host: host.clone() })?;
                Some((connector(PathBuf::from(roots))?, name))
            }
            PgSslMode::Allow | PgSslMode::Prefer | PgSslMode::Require | PgSslMode::VerifyCa => return Err(Error::Mode),
        };
        Ok(Self { host, port, tls })
    }

    /// A new connection, before its first message.
    pub(super) async fn connect(&self) -> Result<Box<dyn Duplex>, Error> {
        let unreachable = |source| Error::Unreachable { at: format!("{}:{}", self.host, self.port), source };
        let connected = timeout(CONNECT_WITHIN, self.open()).await;
        connected.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer within 5 s"))).map_err(unreachable)
    }

    async fn open(&self) -> io::Result<Box<dyn Duplex>> {
        let mut tcp = TcpStream::connect((self.host.as_str(), self.port)).await?;
        tcp.set_nodelay(true)?;
        let Some((connector, name)) = &self.tls else { return Ok(Box::new(tcp)) };
        tcp.write_all(&SSL_REQUEST).await?;
        match tcp.read_u8().await? {
            b'S' => Ok(Box::new(connector.connect(name.clone(), tcp).await?)),
            _ => Err(io::Error::other("it speaks no TLS, which sslmode=verify-full asks for")),
        }
    }
}

fn connector(roots: PathBuf) -> Result<TlsConnector, Error> {
    let unusable = |why: String| Error::Roots { path: roots.clone(), why };
    let pem = fs::read(&roots).map_err(|error| unusable(error.to_string()))?;
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        store.add(certificate).map_err(|error| unusable(error.to_string()))?;
    }
    if store.is_empty() {
        return Err(unusable("it holds no certificate".to_owned()));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(error.to_string()))?
        .with_root_certificates(store)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// A parameter of a URL, under any of its names; the last one counts, as with the library.
fn parameter(url: &str, names: &[&str]) -> Option<String> {
    let (_, parameters) = url.split_once('?')?;
    let mut parameters = parameters.split('#').next().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    parameters.rfind(|(name, _)| names.contains(name)).map(|(_, value)| decoded(value))
}

fn decoded(value: &str) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [first, after @ ..] = rest {
        let escaped = if *first == b'%' { after.get(..2).and_then(|two| hex::decode(two).ok()) } else { None };
        match escaped {
            Some(byte) => {
                bytes.extend(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(if *first == b'+' { b' ' } else { *first });
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Why a pooler cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// How safe the way must be is left open, or half.
    #[error(
        "the URL of a pooler must say how it is spoken to: sslmode=verify-full with sslrootcert=FILE, or sslmode=disable where nobody else is on the way"
    )]
    Mode,
    /// Whom to believe is not said.
    #[error("sslmode=verify-full to a pooler needs sslrootcert=FILE with the certificates of its CA")]
    NoRoots,
    /// A file that does not help.
    #[error("cannot use sslrootcert {}: {why}", path.display())]
    Roots {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// A host that no certificate can be for.
    #[error("{host:?} is no name that a certificate could bear")]
    Name {
        /// It.
        host: String,
    },
    /// A socket in the file system.
    #[error("a pooler is named by host and port; a Unix socket is not spoken to")]
    Socket,
    /// No port of our own.
    #[error("cannot listen on the loopback for the relay to the pooler")]
    Listen(#[source] io::Error),
    /// Nobody there.
    #[error("cannot reach the pooler at {at}: {source}")]
    Unreachable {
        /// Host and port.
        at: String,
        /// Why.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use std::str::FromStr as _;

    use gpuheal_ctl::pki::{Authority, Leaf};
    use rustls::{ServerConfig, pki_types::PrivateKeyDer};

    use super::*;

    fn place(url: &str) -> Result<Place, Error> {
        Place::of(url, &PgConnectOptions::from_str(url).unwrap())
    }

    #[test]
    fn a_url_that_leaves_open_how_safe_the_way_is_is_refused() {
        for mode in ["", "?sslmode=prefer", "?sslmode=require", "?sslmode=allow", "?sslmode=verify-ca"] {
            assert!(matches!(place(&format!("postgres://ops@pooler:6432/fleet{mode}")), Err(Error::Mode)), "{mode}");
        }
        assert!(place("postgres://ops@pooler:6432/fleet?sslmode=disable").is_ok());
        assert!(matches!(place("postgres://ops@pooler:6432/fleet?sslmode=verify-full"), Err(Error::NoRoots)));
        assert!(matches!(place("postgres://ops@%2Frun%2Fpgbouncer:6432/fleet?sslmode=disable"), Err(Error::Socket)));
    }

    #[test]
    fn a_parameter_is_read_as_the_library_reads_it() {
        let url = "postgres://h/d?sslmode=disable&sslrootcert=old&ssl-ca=%2Fetc%2Fca+one%zz.crt#x=y";
        assert_eq!(parameter(url, &["sslrootcert", "ssl-ca"]).as_deref(), Some("/etc/ca one%zz.crt"));
        assert_eq!(parameter("postgres://h/d", &["sslrootcert"]), None);
    }

    /// A pooler as far as its TLS goes: answers the request with `answer` and, if that is yes, greets over TLS.
    async fn answering(authority: &Authority, answer: u8) -> u16 {
        let leaf = authority.issue(&Leaf { dns: vec!["localhost".into()], ..Leaf::hub("d") }).unwrap();
        let chain = vec![CertificateDer::from_pem_slice(leaf.cert_pem.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(leaf.key_pem.as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut tcp, _) = listener.accept().await.unwrap();
            let mut asked = [0; 8];
            tcp.read_exact(&mut asked).await.unwrap();
            assert_eq!(asked, SSL_REQUEST);
            tcp.write_all(&[answer]).await.unwrap();
            if let Ok(mut tls) = tokio_rustls::TlsAcceptor::from(Arc::new(config)).accept(tcp).await {
                tls.write_all(b"hello").await.unwrap();
                tls.flush().await.unwrap();
                let _ended = tls.read(&mut asked).await;
            }
        });
        port
    }

    async fn over_tls(trusted: &Authority, host: &str, port: u16) -> Result<Box<dyn Duplex>, Error> {
        let roots = tempfile::NamedTempFile::new().unwrap();
        fs::write(roots.path(), trusted.cert_pem()).unwrap();
        let (path, mode) = (roots.path().display(), "sslmode=verify-full");
        place(&format!("postgres://ops@{host}:{port}/fleet?{mode}&sslrootcert={path}")).unwrap().connect().await
    }

    #[tokio::test]
    async fn tls_is_spoken_with_whom_the_ca_vouches_for_under_that_name_and_with_nobody_else() {
        let now = crate::clock::now();
        let (ours, other) = (Authority::new("d", 30, now).unwrap(), Authority::new("d", 30, now).unwrap());
        let mut greeted = [0; 5];
        let mut server = over_tls(&ours, "localhost", answering(&ours, b'S').await).await.unwrap();
        server.read_exact(&mut greeted).await.unwrap();
        assert_eq!(&greeted, b"hello");
        for (trusted, host, answer, why) in [
            (&other, "localhost", b'S', "certificate"),
            (&ours, "127.0.0.1", b'S', "certificate"),
            (&ours, "localhost", b'N', "it speaks no TLS"),
        ] {
            let Err(error) = over_tls(trusted, host, answering(&ours, answer).await).await else { panic!("{host}: {why}") };
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[tokio::test]
    async fn a_pooler_that_is_away_is_named() {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let Err(error) = place(&format!("postgres://ops@127.0.0.1:{port}/fleet?sslmode=disable")).unwrap().connect().await else {
            panic!("nobody listens there")
        };
        assert!(error.to_string().starts_with(&format!("cannot reach the pooler at 127.0.0.1:{port}: ")), "{error}");
    }
}
