//! Input that is broken, hostile or too large: each gives a clear error or a counted skip, good rows of a bad page are still
//! used, memory stays bounded, and nothing crashes or is lost.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use gpuheal_tests::{
    alert,
    cluster::Kind,
    facts,
    fleet::Fleet,
    script::{PATIENT_LEASE, WITHIN, plan_of},
    wait,
};
use serde_json::json;

const SEED: u64 = 7;
/// A spoke of twelve nodes rests at some 30 MiB; a page of 100 MB held whole would show.
const SPOKE_KIB_MAX: u64 = 150 * 1024;

#[tokio::test(flavor = "multi_thread")]
async fn bad_pages_and_bodies_are_refused_or_skipped_with_words_and_nothing_is_lost() -> Result<()> {
    let mut plan = plan_of(SEED, "beta", Kind::Sim);
    plan.lease = PATIENT_LEASE;
    let mut fleet = Fleet::start(plan, |_| {}).await?;
    bad_exporter_pages(&mut fleet).await?;
    bad_webhook_bodies(&fleet).await?;
    bad_policies(&fleet)?;
    a_fault_still_heals(&fleet).await?;
    fleet.stop()
}

async fn bad_exporter_pages(fleet: &mut Fleet) -> Result<()> {
    let cluster = fleet.cluster("beta")?;
    let nodes = cluster.gpu_nodes();
    let node = nodes[0].clone();
    let exporter = cluster.exporter(&node);
    let gpu = exporter.gpus()[0].clone();
    let row = |metric: &str, value: &str| {
        format!("{metric}{{gpu=\"0\",UUID=\"{}\",pci_bus_id=\"{}\",modelName=\"{}\"}} {value}\n", gpu.uuid, gpu.pci, gpu.model)
    };
    let pages: Vec<Vec<u8>> = vec![
        vec![],
        row("DCGM_FI_DEV_GPU_TEMP", "61").as_bytes()[..40].to_vec(),
        vec![0xff, 0xfe, b'\n', 0x80],
        row("DCGM_FI_DEV_GPU_TEMP", "9223372036854775794").into_bytes(),
        row("DCGM_FI_DEV_XID_ERRORS", "ERROR - FAILED TO CONVERT TO STRING").into_bytes(),
        "DCGM_FI_DEV_GPU_TEMP{gpu=\"0\",a=\"".repeat(10_000).into_bytes(),
    ];
    for page in pages {
        exporter.serve_raw(Some(page));
        let version = exporter.change(|_| {});
        wait::until("the bad page to be scraped", WITHIN, || async { Ok(exporter.visible_at(version)) }).await?;
    }
    // Over 100 MB, in one page.
    exporter.serve_raw(Some(row("DCGM_FI_DEV_GPU_TEMP", "61").into_bytes().repeat(800_000)));
    let version = exporter.change(|_| {});
    wait::until("the huge page to be asked for", WITHIN, || async { Ok(exporter.visible_at(version)) }).await?;
    // Good rows between bad ones: the change of the Xid counts.
    let healthy = [row("DCGM_FI_DEV_XID_ERRORS", "0"), row("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "100")].concat();
    exporter.serve_raw(Some([b"{{{{ no metric\n".to_vec(), healthy.into_bytes(), vec![0xff, b'\n']].concat()));
    for _ in 0..2 {
        let version = exporter.change(|_| {});
        wait::until("the page with good rows", WITHIN, || async { Ok(exporter.visible_at(version)) }).await?;
    }
    let broken = [row("DCGM_FI_DEV_XID_ERRORS", "48"), row("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "200")].concat();
    exporter.serve_raw(Some([b"{{{{ no metric\n".to_vec(), broken.into_bytes(), vec![0xff, b'\n']].concat()));
    wait::until("Xid 48 from a page with bad lines", WITHIN, || async {
        let faults = facts::faults(&fleet.pool, "beta", &node).await?;
        Ok(faults.iter().any(|fault| fault.class == "xid" && fault.code == "48").then_some(()))
    })
    .await?;
    let tainted = fleet.cluster("beta")?.observer.tainted_now();
    ensure!(tainted.is_empty(), "bad pages led to quarantine of {tainted:?}");
    let (cluster, _) = fleet.cluster_mut("beta")?;
    for (name, replica) in cluster.replicas() {
        ensure!(!replica.process.ended(), "{name} has ended");
        let kib = replica.process.resident_kib().context("a running process has memory")?;
        ensure!(kib < SPOKE_KIB_MAX, "{name} holds {kib} KiB after a page of 100 MB");
    }
    cluster.exporter(&node).serve_raw(None);
    Ok(())
}

async fn bad_webhook_bodies(fleet: &Fleet) -> Result<()> {
    let address = fleet.cluster("beta")?.webhooks()[0].clone();
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    for (what, body, want) in [
        ("nothing", vec![], 400),
        ("half a body", b"{\"alerts\": [{\"stat".to_vec(), 400),
        ("bytes that are no text", vec![0xff, 0xfe, 0x00], 400),
        ("brackets 100,000 deep", deep.into_bytes(), 400),
        ("64 MB of spaces", vec![b' '; 64 << 20], 413),
    ] {
        let (status, text) = answered(fleet, &address, body).await?;
        ensure!(status == want, "{what} was answered {status} instead of {want}: {text}");
        ensure!(!text.trim().is_empty(), "{what} was refused without a word");
    }
    for (what, body) in [
        (
            "an alert without a node",
            json!({"version": "4", "status": "firing", "alerts": [{"status": "firing", "labels": {"alertname": "X"}, "startsAt": "2026-11-29T08:00:00Z"}]}),
        ),
        (
            "an alert without labels",
            json!({"version": "4", "status": "firing", "alerts": [{"status": "firing", "startsAt": "2026-11-29T08:00:00Z"}]}),
        ),
        (
            "an alert of a node that is not there",
            alert::group(&[alert::Alert {
                name: "X",
                node: "nowhere".into(),
                gpu: None,
                xid: None,
                labels: vec![],
                firing: true,
                starts_at: "2026-11-29T08:00:00Z".into(),
            }]),
        ),
    ] {
        let (status, text) = fleet.post_bytes(&address, body.to_string().into_bytes()).await?;
        ensure!(status == 200, "{what} was answered {status}: {text}");
    }
    Ok(())
}

/// The answer to a body. One that is refused by its length alone is not read, and the connection ends with the answer: the
/// client that is still sending may be told of that first, whereupon it asks again.
async fn answered(fleet: &Fleet, address: &str, body: Vec<u8>) -> Result<(u16, String)> {
    wait::until("an answer to a bad body", WITHIN, || async { fleet.post_bytes(address, body.clone()).await.map(Some) }).await
}

fn bad_policies(fleet: &Fleet) -> Result<()> {
    let path = fleet.place.dir.join("bad-policy.yaml");
    let file = path.display().to_string();
    let good = std::fs::read_to_string(fleet.place.dir.join("policy.yaml"))?;
    for (what, text, hint) in [
        ("an unknown key", format!("{good}\nnoSuchKey: 1\n"), "noSuchKey"),
        ("text that is no YAML", "a: [1".to_owned(), "line"),
        ("a document of another kind", "apiVersion: v1\nkind: Pod\n".to_owned(), "kind"),
    ] {
        std::fs::write(&path, text)?;
        let (code, problems, errors) = fleet.ctl(&["policy", "apply", "-f", &file])?;
        ensure!(code == 1, "{what} ended with {code}: {errors}");
        ensure!(problems.contains(hint) || errors.contains(hint), "{what}: nothing says {hint:?}: {problems}{errors}");
    }
    Ok(())
}

async fn a_fault_still_heals(fleet: &Fleet) -> Result<()> {
    let cluster = fleet.cluster("beta")?;
    let node = cluster.gpu_nodes()[3].clone();
    let since = Instant::now();
    cluster.exporter(&node).change(|gpus| {
        gpus[0].xid = 79;
        gpus[0].xid_counts.insert(79, 5);
    });
    wait::until("a fault after all that to be acted on", WITHIN, || async { Ok(cluster.observer.tainted_at(&node, since)) })
        .await?;
    Ok(())
}
