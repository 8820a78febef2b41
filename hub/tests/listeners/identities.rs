//! Identities that were copied, and certificates that count no longer: whose streams are cut, who is told what, and that a
//! hub which has not heard of it yet can do nothing with them.

use std::collections::BTreeSet;

use gpuheal_hub::{
    identity::denied::Serial,
    store::{
        decommission::{Outcome, decommission},
        quarantine::quarantine_clear,
        revocation::{Revoke, revoke},
    },
};
use gpuheal_proto::link::v1::{self, RejectCode, attach_request::Message as Up, attach_response::Message};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use x509_parser::prelude::FromDer as _;

use crate::{
    delivery::{propose, stages},
    hub::{Hub, cluster},
    replica::{Replica, hello},
};

fn boot(id: &str) -> v1::Hello {
    v1::Hello { boot_id: id.into(), ..hello("alpha", "r0", None) }
}

/// Reads to the end of the stream and returns the last goaway's reason.
async fn cut(replica: &mut Replica) -> String {
    let mut reason = String::new();
    while let Some(message) = replica.next().await {
        if let Message::Goaway(goaway) = message {
            reason = goaway.reason;
        }
    }
    reason
}

async fn kinds(hub: &Hub) -> Vec<String> {
    sqlx::query_scalar("SELECT kind FROM audit_entries WHERE chain = 'alpha' ORDER BY seq").fetch_all(&hub.pool).await.unwrap()
}

/// Failure table, row 26.
#[tokio::test]
async fn two_processes_that_take_turns_as_one_replica_are_both_kept_out_until_a_person_clears_it() {
    let hub = Hub::start_with_database().await;
    let mut other = Replica::attach(&hub, hello("alpha", "r1", None)).await.unwrap_or_else(|r| panic!("{r:?}")).0;
    for id in ["a", "b", "a", "b"] {
        Replica::attach(&hub, boot(id)).await.unwrap_or_else(|r| panic!("three turns are no clone yet: {r:?}"));
    }
    for id in ["a", "b", "c"] {
        let reject = Replica::attach(&hub, boot(id)).await.err().expect("a reject");
        assert_eq!(reject.code(), RejectCode::Quarantined, "{}", reject.reason);
    }
    assert!(cut(&mut other).await.contains("two places"), "every session of that identity ends");
    assert_eq!(kinds(&hub).await, ["clone_quarantined"], "one alarm, whoever tries");
    assert!(quarantine_clear(&hub.pool, &cluster("alpha"), "user/operator", "the copy is gone").await.unwrap());
    assert!(!quarantine_clear(&hub.pool, &cluster("alpha"), "user/operator", "again").await.unwrap());
    Replica::attach(&hub, boot("a")).await.unwrap_or_else(|r| panic!("{r:?}"));
    assert_eq!(kinds(&hub).await, ["clone_quarantined", "quarantine_cleared"]);
}

/// Failure table, row 36.
#[tokio::test]
async fn a_cluster_that_is_gone_for_good_is_told_so_and_never_let_in_again() {
    let hub = Hub::start_with_database().await;
    let mut here = Replica::attach(&hub, hello("alpha", "r0", None)).await.unwrap_or_else(|r| panic!("{r:?}")).0;
    let end = async |force| decommission(&hub.pool, &cluster("alpha"), "user/operator", "sold", force).await.unwrap();
    assert_eq!(end(false).await, Outcome::Attached, "whoever is attached is not gone");
    assert_eq!(end(true).await, Outcome::Done { sessions: 1, commands: 0, nodes: 0 });
    assert!(cut(&mut here).await.contains("decommissioned"), "its stream ends");
    assert!(!quarantine_clear(&hub.pool, &cluster("alpha"), "user/operator", "a change of mind").await.unwrap());
    for replica in ["r0", "r1"] {
        let reject = Replica::attach(&hub, hello("alpha", replica, None)).await.err().expect("a reject");
        assert_eq!(reject.code(), RejectCode::Quarantined);
        assert!(reject.reason.contains("decommissioned by user/operator: sold"), "{}", reject.reason);
    }
    Replica::attach(&hub, hello("beta", "r0", None)).await.unwrap_or_else(|r| panic!("{r:?}"));
    assert_eq!(kinds(&hub).await, ["cluster_decommissioned"]);
}

/// Failure table, row 26.
#[tokio::test]
async fn a_certificate_shown_by_another_cluster_keeps_both_out() {
    let hub = Hub::start_with_database().await;
    let mut first = Replica::attach(&hub, hello("alpha", "r0", None)).await.unwrap_or_else(|r| panic!("{r:?}")).0;
    let copy = v1::Hello { kube_system_uid: "another".into(), version: "9".into(), ..hello("alpha", "r0", None) };
    for _ in 0..2 {
        let reject = Replica::attach(&hub, copy.clone()).await.err().expect("a reject");
        assert_eq!(reject.code(), RejectCode::Foreign);
    }
    assert!(cut(&mut first).await.contains("two places"));
    let reject = Replica::attach(&hub, hello("alpha", "r0", None)).await.err().expect("a reject");
    assert_eq!(reject.code(), RejectCode::Quarantined);
    assert_eq!(kinds(&hub).await, ["clone_quarantined"]);
    let row: (String, String) =
        sqlx::query_as("SELECT kube_system_uid, spoke_version FROM clusters").fetch_one(&hub.pool).await.unwrap();
    assert_eq!(row, ("uid-of-alpha".into(), "0.1.0".into()), "the copy changed nothing that is known of the cluster");
}

/// Failure table, row 26.
#[tokio::test]
async fn a_quarantined_cluster_is_sent_no_command_even_by_a_hub_that_has_not_heard_of_it() {
    let hub = Hub::start_with_database().await;
    let leader = hello("alpha", "r1", Some(2));
    let _leader = Replica::attach(&hub, leader).await.unwrap_or_else(|r| panic!("{r:?}"));
    propose(&hub, "alpha", 1).await;
    let (signing, delivering) = stages(&hub);
    signing.round(&mut BTreeSet::new()).await.unwrap();
    // Behind this hub's back, as another hub would have done it a moment ago.
    let mut conn = hub.pool.acquire().await.unwrap();
    let now = gpuheal_hub::store::moment::now(&mut conn).await.unwrap();
    let cause = gpuheal_hub::store::quarantine::Cause::BootIds;
    gpuheal_hub::store::quarantine::quarantine_raise(&mut conn, &cluster("alpha"), cause, "test", now).await.unwrap();
    assert_eq!(delivering.round().await.unwrap(), 0);
    let sent: i64 =
        sqlx::query_scalar("SELECT count(*) FROM commands WHERE sent_at IS NOT NULL").fetch_one(&hub.pool).await.unwrap();
    assert_eq!(sent, 0);
}

#[tokio::test]
async fn a_revoked_certificates_stream_is_cut_and_another_certificate_of_the_same_cluster_goes_on() {
    let hub = Hub::start_with_database().await;
    let (bad, good) = (hub.spoke("alpha"), hub.spoke("alpha"));
    let attach = async |with, replica| Replica::attach_over(hub.channel(hub.link, Some(with)), hello("alpha", replica, None)).await;
    let mut leaked = attach(&bad, "r0").await.unwrap().unwrap_or_else(|r| panic!("{r:?}")).0;
    let mut kept = attach(&good, "r1").await.unwrap().unwrap_or_else(|r| panic!("{r:?}")).0;
    let what = Revoke::Serials(BTreeSet::from([serial(&bad.cert_pem)]));
    assert_eq!(revoke(&hub.pool, &cluster("alpha"), &what, "user/operator", "leaked").await.unwrap(), 1, "one session was its");
    assert_eq!(cut(&mut leaked).await, "this certificate was revoked");
    kept.send(Up::Process(v1::Process { request_id: "one".into(), node: "none".into(), ..v1::Process::default() })).await;
    let answered = kept.next_of(|message| if let Message::ProcessResult(result) = message { Some(result) } else { None }).await;
    assert!(answered.is_some(), "the other replica is served");
    assert!(attach(&bad, "r0").await.is_err(), "the handshake is refused from then on");
    attach(&good, "r0").await.unwrap().unwrap_or_else(|r| panic!("{r:?}"));
    assert!(kinds(&hub).await.contains(&"certificates_revoked".to_owned()));
}

#[tokio::test]
async fn all_certificates_until_now_are_refused_at_the_attach_before_the_hub_has_heard_of_it() {
    let hub = Hub::start_with_database().await;
    let open = hub.channel(hub.link, Some(&hub.spoke("alpha")));
    let mut first =
        Replica::attach_over(open.clone(), hello("alpha", "r0", None)).await.unwrap().unwrap_or_else(|r| panic!("{r:?}")).0;
    let batch = v1::FaultBatch { stream_id: "stream-of-r0".into(), first_seq: 1, faults: vec![crate::sessions::fault("alpha")] };
    revoke(&hub.pool, &cluster("alpha"), &Revoke::AllUntilNow, "user/operator", "all keys leaked").await.unwrap();
    // Either the guard was faster, or the transaction that would keep the fault finds that its session is over.
    first.try_send(Up::FaultBatch(batch)).await;
    cut(&mut first).await;
    let faults: i64 = sqlx::query_scalar("SELECT count(*) FROM faults").fetch_one(&hub.pool).await.unwrap();
    assert_eq!(faults, 0);
    // The connection of before is still open: its next attach is told why.
    let reject = Replica::attach_over(open, hello("alpha", "r0", None)).await.unwrap().err().expect("a reject");
    assert_eq!(reject.code(), RejectCode::Revoked);
    Replica::attach(&hub, hello("beta", "r0", None)).await.unwrap_or_else(|r| panic!("another cluster is none of it: {r:?}"));
}

fn serial(pem: &str) -> Serial {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let (_, cert) = x509_parser::certificate::X509Certificate::from_der(&der).unwrap();
    Serial::parse(&cert.raw_serial_as_string()).unwrap()
}
