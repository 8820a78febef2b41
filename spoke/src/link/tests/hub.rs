//! A hub for tests: each session is handed to the test, which plays the hub's part.

use std::{path::Path, sync::Arc, sync::atomic::AtomicBool, sync::atomic::Ordering};

use gpuheal_proto::link::v1::{
    self,
    attach_request::Message as Up,
    attach_response::Message as Answer,
    link_service_server::{LinkService, LinkServiceServer},
};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming, transport};

use super::soon;

/// What Welcome says the time is.
pub(super) const SERVER_TIME: i64 = 1_800_000_000_000;

/// A CA of its own.
pub(super) struct Pki {
    issuer: Issuer<'static, KeyPair>,
    ca_pem: String,
}

impl Pki {
    pub(super) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let ca_pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), ca_pem }
    }

    /// Certificate and key for a URI, and for this machine; until that year's first second if one is given.
    fn issue(&self, uri: &str, ends: Option<i32>) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        params.subject_alt_names.push(SanType::URI(uri.try_into().unwrap()));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        if let Some(year) = ends {
            (params.not_before, params.not_after) = (rcgen::date_time_ymd(2000, 1, 1), rcgen::date_time_ymd(year, 1, 1));
        }
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    /// An identity directory.
    pub(super) fn identity(&self, uri: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        self.identity_into(dir.path(), uri, None);
        dir
    }

    /// Writes an identity into a directory, certificate last: until then the files do not fit.
    pub(super) fn identity_into(&self, dir: &Path, uri: &str, ends: Option<i32>) {
        let (cert, key) = self.issue(uri, ends);
        let trust = r#"{"version":1,"trust_domain":"dev.gpuheal","key_epoch":1,"command_keys":[],"ca":[]}"#;
        for (name, text) in [("trust.json", trust), ("ca.crt", &self.ca_pem), ("tls.key", &key), ("tls.crt", &cert)] {
            std::fs::write(dir.join(name), text).unwrap();
        }
    }
}

/// Listens, and hands each session to the test.
pub(super) struct TestHub {
    pub(super) url: String,
    pub(super) identity: tempfile::TempDir,
    pub(super) sessions: mpsc::Receiver<Session>,
    refuse: Arc<AtomicBool>,
}

/// One spoke's session as the hub sees it.
pub(super) struct Session {
    pub(super) hello: v1::Hello,
    up: Streaming<v1::AttachRequest>,
    down: mpsc::Sender<Result<v1::AttachResponse, Status>>,
}

struct Service {
    sessions: mpsc::Sender<Session>,
    refuse: Arc<AtomicBool>,
}

#[tonic::async_trait]
impl LinkService for Service {
    type AttachStream = ReceiverStream<Result<v1::AttachResponse, Status>>;

    async fn attach(&self, request: Request<Streaming<v1::AttachRequest>>) -> Result<Response<Self::AttachStream>, Status> {
        if self.refuse.load(Ordering::SeqCst) {
            return Err(Status::unavailable("away"));
        }
        assert_eq!(request.peer_certs().unwrap().len(), 1);
        let mut up = request.into_inner();
        let Some(Up::Hello(hello)) = up.message().await?.and_then(|first| first.message) else {
            return Err(Status::invalid_argument("no Hello"));
        };
        let (down, out) = mpsc::channel(16);
        self.sessions.send(Session { hello, up, down }).await.map_err(|_| Status::unavailable("test is over"))?;
        Ok(Response::new(ReceiverStream::new(out)))
    }
}

impl TestHub {
    pub(super) async fn start(pki: &Pki, uri: &str) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (cert, key) = pki.issue(uri, None);
        let tls = transport::ServerTlsConfig::new()
            .identity(transport::Identity::from_pem(cert, key))
            .client_ca_root(transport::Certificate::from_pem(&pki.ca_pem));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let (sent, sessions) = mpsc::channel(16);
        let refuse = Arc::new(AtomicBool::new(false));
        let service = LinkServiceServer::new(Service { sessions: sent, refuse: Arc::clone(&refuse) });
        let server = transport::Server::builder().tls_config(tls).unwrap().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { url, identity: pki.identity("spiffe://dev.gpuheal/cluster/c1/spoke"), sessions, refuse }
    }

    pub(super) async fn session(&mut self) -> Session {
        soon(self.sessions.recv()).await.unwrap()
    }

    /// From now on nobody may attach.
    pub(super) fn refuse(&mut self) {
        self.refuse.store(true, Ordering::SeqCst);
    }
}

impl Session {
    pub(super) async fn send(&self, message: Answer) {
        self.down.send(Ok(v1::AttachResponse { message: Some(message) })).await.unwrap();
    }

    pub(super) async fn welcome(&mut self, resume: &[(&str, u64)], credit: u32) {
        let resume = resume.iter().map(|&(stream, from_seq)| v1::ResumePoint { stream_id: stream.to_owned(), from_seq }).collect();
        self.send(Answer::Welcome(v1::Welcome {
            session_generation: 7,
            hub_term: 1,
            resume,
            credit,
            heartbeat_ms: 1000,
            server_time_unix_ms: SERVER_TIME,
            lease_transitions_known: 0,
        }))
        .await;
    }

    pub(super) async fn ack(&self, stream: &str, persisted_upto: u64, credit: u32) {
        self.send(Answer::FaultAck(v1::FaultAck { stream_id: stream.to_owned(), persisted_upto, credit, resume: false })).await;
    }

    /// The next message.
    pub(super) async fn any(&mut self) -> Up {
        soon(self.up.message()).await.unwrap().unwrap().message.unwrap()
    }

    /// The next message that is no heartbeat.
    pub(super) async fn next(&mut self) -> Up {
        loop {
            let message = self.any().await;
            if !matches!(message, Up::Heartbeat(_)) {
                return message;
            }
        }
    }

    pub(super) async fn batch(&mut self) -> v1::FaultBatch {
        match self.next().await {
            Up::FaultBatch(batch) => batch,
            other => panic!("not a batch: {other:?}"),
        }
    }

    /// Its last word.
    pub(super) async fn farewell(&mut self) -> v1::Heartbeat {
        loop {
            if let Up::Heartbeat(beat) = self.any().await
                && beat.closing
            {
                return beat;
            }
        }
    }

    /// The first heartbeat that says so.
    pub(super) async fn beat_with(&mut self, lease_transitions: Option<u64>) -> v1::Heartbeat {
        loop {
            if let Up::Heartbeat(beat) = self.any().await
                && beat.lease_transitions == lease_transitions
            {
                return beat;
            }
        }
    }
}
