use gpuheal_ctl::pki::{Authority, Leaf};
use rustls::pki_types::pem::PemObject as _;

use super::*;

const DOMAIN: &str = "dev.gpuheal";

fn read(leaf: &Leaf) -> Result<Identity, Error> {
    let authority = Authority::new(DOMAIN, 1, Timestamp::from_unix_ms(1_764_442_800_000)).unwrap();
    let cert = CertificateDer::from_pem_slice(authority.issue(leaf).unwrap().cert_pem.as_bytes()).unwrap();
    Peer::from_verified(&cert, DOMAIN, ([127, 0, 0, 1], 1).into()).map(|peer| peer.identity().clone())
}

fn with_uris(uris: &[&str]) -> Leaf {
    Leaf { common_name: "x".into(), uris: uris.iter().map(|uri| (*uri).to_owned()).collect(), ..Leaf::default() }
}

#[test]
fn a_spoke_and_a_user_are_told_apart_by_the_path_of_their_id() {
    let cluster = ClusterId::parse("alpha").unwrap();
    assert_eq!(read(&Leaf::spoke(DOMAIN, &cluster)), Ok(Identity::Spoke(cluster)));
    assert_eq!(read(&Leaf::user(DOMAIN, "operator")).unwrap().to_string(), "user operator");
}

#[test]
fn a_hub_is_nobodys_client() {
    assert_eq!(read(&Leaf::hub(DOMAIN)), Err(Error::Hub));
}

#[test]
fn a_certificate_with_two_ids_has_none() {
    let two = ["spiffe://dev.gpuheal/cluster/alpha/spoke", "spiffe://dev.gpuheal/cluster/beta/spoke"];
    assert_eq!(read(&with_uris(&two)), Err(Error::Uris { count: 2 }));
    let mut none = with_uris(&[]);
    assert_eq!(read(&none), Err(Error::Uris { count: 0 }));
    none.dns = vec!["cluster.alpha.spoke".into()];
    assert_eq!(read(&none), Err(Error::Uris { count: 0 }));
}

#[test]
fn only_the_exact_shape_of_an_id_is_one() {
    for uri in [
        "spiffe://dev.gpuheal/cluster/alpha",
        "spiffe://dev.gpuheal/cluster/alpha/spoke/",
        "spiffe://dev.gpuheal/cluster/alpha/spoke/x",
        "spiffe://dev.gpuheal/cluster//spoke",
        "spiffe://dev.gpuheal/cluster/ALPHA/spoke",
        "spiffe://dev.gpuheal/cluster/alpha%2f/spoke",
        "spiffe://dev.gpuheal//cluster/alpha/spoke",
        "spiffe://dev.gpuheal/user/",
        "spiffe://dev.gpuheal/user/a/b",
        "spiffe://dev.gpuheal",
        "spiffe://dev.gpuheal:443/user/a",
        "spiffe://a@dev.gpuheal/user/a",
        "https://dev.gpuheal/user/a",
        "SPIFFE://dev.gpuheal/user/a",
        "spiffe://other.domain/user/a",
    ] {
        assert!(read(&with_uris(&[uri])).is_err(), "{uri}");
    }
}

#[test]
fn another_trust_domain_is_refused_by_name() {
    let error = read(&with_uris(&["spiffe://dev.gpuheal.evil/user/a"])).unwrap_err();
    assert!(matches!(error, Error::TrustDomain { .. }), "{error}");
}
