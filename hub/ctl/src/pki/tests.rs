use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

use ed25519_dalek::pkcs8::DecodePrivateKey as _;
use x509_parser::prelude::{FromDer as _, GeneralName, ParsedExtension, X509Certificate};

use super::*;

fn now() -> Timestamp {
    Timestamp::from_unix_ms(1_764_442_800_000)
}

fn request(dir: &Path) -> Request {
    let ids = ["alpha", "beta"].map(|id| ClusterId::parse(id).unwrap());
    Request { users: vec!["operator".into()], dns: vec!["hub.example".into()], ..Request::new(dir, ids.to_vec(), now()) }
}

/// The certificate's URI SANs, DNS SANs, and its first and last second.
fn look(pem: &str) -> (Vec<String>, Vec<String>, i64, i64, String) {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
    let (_, cert) = X509Certificate::from_der(&pem.contents).unwrap();
    let (mut uris, mut dns) = (vec![], vec![]);
    for extension in cert.extensions() {
        if let ParsedExtension::SubjectAlternativeName(san) = extension.parsed_extension() {
            for name in &san.general_names {
                match name {
                    GeneralName::URI(uri) => uris.push((*uri).to_owned()),
                    GeneralName::DNSName(name) => dns.push((*name).to_owned()),
                    _ => {}
                }
            }
        }
    }
    (uris, dns, cert.validity().not_before.timestamp(), cert.validity().not_after.timestamp(), cert.subject().to_string())
}

#[test]
fn the_layout_is_the_one_that_hub_and_spoke_read() {
    let dir = tempfile::tempdir().unwrap();
    let written = init(&request(dir.path())).unwrap();
    let mut names: Vec<_> = written.iter().map(|p| p.strip_prefix(dir.path()).unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    let mut want: Vec<String> = ["ca.crt", "ca.key", "signing/command.key"].map(str::to_owned).to_vec();
    for owner in ["hub", "clusters/alpha", "clusters/beta", "users/admin", "users/operator"] {
        want.extend(["tls.crt", "tls.key", "ca.crt"].map(|file| format!("{owner}/{file}")));
    }
    want.extend(["clusters/alpha/trust.json", "clusters/beta/trust.json"].map(str::to_owned));
    want.sort();
    assert_eq!(names, want);
}

#[test]
fn private_keys_are_readable_by_their_owner_alone() {
    let dir = tempfile::tempdir().unwrap();
    let written = init(&request(dir.path())).unwrap();
    for path in written {
        let secret = path.extension().is_some_and(|ext| ext == "key");
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode & 0o077 == 0, secret, "{} has mode {mode:o}", path.display());
    }
}

#[test]
fn each_certificate_carries_exactly_one_identity_and_says_development() {
    let dir = tempfile::tempdir().unwrap();
    init(&request(dir.path())).unwrap();
    for (owner, uri) in [
        ("hub", "spiffe://dev.gpuheal/hub"),
        ("clusters/alpha", "spiffe://dev.gpuheal/cluster/alpha/spoke"),
        ("users/admin", "spiffe://dev.gpuheal/user/admin"),
        ("users/operator", "spiffe://dev.gpuheal/user/operator"),
    ] {
        let pem = fs::read_to_string(dir.path().join(owner).join("tls.crt")).unwrap();
        let (uris, dns, from, to, subject) = look(&pem);
        assert_eq!(uris, [uri]);
        assert!(subject.contains("development"), "{subject}");
        assert_eq!(from, now().before(Duration::from_secs(300)).unix_ms() / 1000);
        assert_eq!(to, now().unix_ms() / 1000 + i64::from(DAYS_DEFAULT) * 86_400);
        if owner == "hub" {
            assert_eq!(dns, ["localhost", "gpuheal-hub", "hub.example"]);
        }
    }
}

#[test]
fn the_trust_bundle_names_the_key_that_signs() {
    let dir = tempfile::tempdir().unwrap();
    init(&request(dir.path())).unwrap();
    let pem = fs::read_to_string(dir.path().join("signing/command.key")).unwrap();
    let key = SigningKey::from_pkcs8_pem(&pem).unwrap();
    let text = fs::read_to_string(dir.path().join("clusters/beta/trust.json")).unwrap();
    let bundle: TrustBundle = serde_json::from_str(&text).unwrap();
    assert_eq!(bundle.command_keys[0].keyid, keyid(key.verifying_key().as_bytes()));
    assert_eq!(bundle.ca, [fs::read_to_string(dir.path().join("ca.crt")).unwrap()]);
    assert_eq!((bundle.version, bundle.key_epoch), (1, 1));
}

#[test]
fn a_pki_is_not_overwritten_unless_that_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    init(&request(dir.path())).unwrap();
    let before = fs::read(dir.path().join("ca.key")).unwrap();
    assert!(matches!(init(&request(dir.path())), Err(Error::Exists { .. })));
    assert_eq!(fs::read(dir.path().join("ca.key")).unwrap(), before);
    init(&Request { force: true, ..request(dir.path()) }).unwrap();
    assert_ne!(fs::read(dir.path().join("ca.key")).unwrap(), before);
}

#[test]
fn a_name_that_would_leave_its_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for user in ["", "../x", "a/b", ".hidden", &"x".repeat(65)] {
        let request = Request { users: vec![user.to_owned()], ..request(dir.path()) };
        assert!(matches!(init(&request), Err(Error::User { .. })), "{user:?}");
    }
    assert!(matches!(init(&Request { clusters: vec![], ..request(dir.path()) }), Err(Error::NoCluster)));
    assert!(matches!(init(&Request { days: 0, ..request(dir.path()) }), Err(Error::Days { .. })));
}
