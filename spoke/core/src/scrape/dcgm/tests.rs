//! What the sample scrapes must yield, and the exporter's known oddities one by one.

use super::*;
use crate::scrape::exposition::rows;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn sample_page(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/../../tests/data/samples/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn read(page: &str) -> Page<'_> {
    decode(page.as_bytes(), &Aliases::new()).unwrap()
}

#[test]
fn real_scrapes_yield_what_their_oracle_says() {
    // file, rows, metric names, GPUs, MIG instances, pods, XID rows
    let oracle = [
        ("dcgm-a100-mig-2x.prom", 21, 17, 1, 1, 0, 2),
        ("dcgm-a100-plain-2x.prom", 17, 17, 1, 0, 0, 1),
        ("dcgm-a800-mig-mixed.prom", 91, 10, 8, 3, 0, 10),
        ("dcgm-pods-full-4x.prom", 25, 25, 1, 0, 1, 1),
    ];
    for (file, row_count, names, gpus, migs, pods, xids) in oracle {
        let text = sample_page(file);
        let page = decode(&text, &Aliases::new()).unwrap();
        let seen: BTreeSet<_> = rows(&text).unwrap().map(|row| row.name).collect();
        let workloads: BTreeSet<_> = page.gpus.iter().flat_map(|gpu| &gpu.workloads).collect();
        let mig_count: usize = page.gpus.iter().map(|gpu| gpu.mig.len()).sum();
        assert_eq!((page.rows, seen.len(), page.gpus.len()), (row_count, names, gpus), "{file}");
        assert_eq!((mig_count, workloads.len()), (migs, pods), "{file}");
        assert_eq!(page.of(Metric::XidLast).map(|s| s.value).collect::<Vec<_>>(), vec![0.0; xids], "{file}");
        assert_eq!(page.errors.total(), 0, "{file}");
        assert_eq!(page.skipped(Skip::UnknownMetric) + page.skipped(Skip::NoGpu), 0, "{file}");
        assert!(page.gpus.iter().all(|gpu| gpu.uuid.is_some_and(|uuid| uuid.starts_with("GPU-"))), "{file}");
    }
}

#[test]
fn windowed_counts_show_what_the_gauge_hides() {
    let text = sample_page("dcgm-constructed-exp-metrics.prom");
    let page = decode(&text, &Aliases::new()).unwrap();
    let hidden: Vec<_> = page
        .of(Metric::XidCount)
        .map(|s| match s.detail {
            Detail::XidWindow { code, window_ms: Some(300_000) } => (page.gpu(s).index_hint, code, s.value),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(hidden, [(Some(3), Some(48), 1.0), (Some(3), Some(63), 1.0), (Some(3), Some(45), 12.0), (Some(4), None, 0.0)]);
    assert_eq!(page.of(Metric::XidLast).map(|s| s.value).collect::<Vec<_>>(), [45.0, 0.0]);
    assert_eq!(page.gpus[0].slot.unwrap().to_string(), "0000:5d:00");
    assert_eq!(
        page.of(Metric::ClockEvents).map(|s| s.detail).collect::<Vec<_>>(),
        [Detail::ClockEvent("gpu_idle"), Detail::ClockEvent("hw_thermal")]
    );
    let health: Vec<_> = page.of(Metric::HealthStatus).map(|s| (s.value, s.detail)).collect();
    assert_eq!(health[0], (20.0, Detail::Health { watch: "MEM", code: "DCGM_FR_VOLATILE_DBE_DETECTED" }));
}

#[test]
fn whole_gpu_and_mig_rows_stay_apart() {
    let text = sample_page("dcgm-a100-mig-2x.prom");
    let page = decode(&text, &Aliases::new()).unwrap();
    assert_eq!(page.of(Metric::XidLast).map(|s| s.mig).collect::<Vec<_>>(), [None, Some(13)]);
    assert_eq!(page.gpus[0].mig, [MigInstance { id: 13, profile: "1g.5gb" }]);
}

#[test]
fn text_values_leave_the_good_rows_of_the_scrape() {
    let page = read("DCGM_FI_DEV_XID_ERRORS{gpu=\"0\"} ERROR - FAILED TO CONVERT TO STRING\nDCGM_FI_DEV_GPU_TEMP{gpu=\"0\"} 61\n");
    assert_eq!((page.samples.len(), page.errors.count(Reason::ValueNotNumber)), (1, 1));
}

#[test]
fn an_absent_xid_row_is_a_signal_not_available_and_not_an_error() {
    let page = read("DCGM_FI_DEV_GPU_TEMP{gpu=\"0\",UUID=\"GPU-1\"} 61\n");
    assert_eq!(page.rows_of(Metric::XidLast), 0);
    assert_eq!((page.errors.total(), page.of(Metric::XidLast).count()), (0, 0));
}

#[test]
fn blank_markers_are_no_samples_but_the_gpu_is_still_there() {
    let page = read(
        "DCGM_FI_DEV_GPU_TEMP{gpu=\"0\",UUID=\"GPU-1\"} 9223372036854775794\nDCGM_FI_DEV_GPU_UTIL{gpu=\"0\",UUID=\"GPU-1\"} 4294967295\n",
    );
    assert_eq!((page.samples.len(), page.gpus.len()), (0, 1));
    assert_eq!(page.skipped(Skip::NoReading(NoReading::Blank)), 2);
    assert_eq!(page.rows_of(Metric::GpuTemp), 1);
}

#[test]
fn an_empty_page_names_no_gpu_and_no_error() {
    for text in ["", "\n", "# HELP DCGM_FI_DEV_GPU_TEMP x\n"] {
        let page = read(text);
        assert_eq!((page.rows, page.gpus.len(), page.errors.total()), (0, 0, 0));
    }
}

#[test]
fn a_swapped_gpu_shows_a_new_uuid_in_the_old_slot() {
    let page = |uuid: &str| format!("DCGM_FI_DEV_GPU_TEMP{{gpu=\"0\",UUID=\"{uuid}\",pci_bus_id=\"00000000:D8:00.0\"}} 50\n");
    let (before, after) = (page("GPU-old"), page("GPU-new"));
    let (before, after) = (read(&before), read(&after));
    assert_eq!(before.gpus[0].slot, after.gpus[0].slot);
    assert_ne!(before.gpus[0].uuid, after.gpus[0].uuid);
}

#[test]
fn time_slicing_makes_one_gpu_with_several_pods() {
    let page = read(
        "DCGM_FI_DEV_GPU_TEMP{gpu=\"0\",UUID=\"GPU-1\",pod=\"a\",namespace=\"n\"} 61\n\
         DCGM_FI_DEV_GPU_TEMP{gpu=\"0\",UUID=\"GPU-1\",pod=\"b\",namespace=\"n\"} 62\n\
         DCGM_FI_DEV_GPU_TEMP{gpu=\"0\",UUID=\"GPU-1\"} 60\n",
    );
    assert_eq!((page.gpus.len(), page.samples.len(), page.skipped(Skip::Duplicate)), (1, 1, 2));
    assert_eq!(page.samples[0].value, 62.0);
    assert_eq!(page.gpus[0].workloads.len(), 2);
}

#[test]
fn the_job_and_not_the_exporter_is_the_workload() {
    let page = read(
        "DCGM_FI_DEV_GPU_TEMP{gpu=\"0\",pod=\"dcgm-exporter-x\",namespace=\"gpu-operator\",exported_pod=\"train-0\",exported_namespace=\"ml\"} 61\n",
    );
    assert_eq!(page.gpus[0].workloads, [Workload { namespace: "ml", pod: "train-0", container: "", mig: None }]);
}

#[test]
fn a_row_without_any_gpu_label_is_never_gpu_0() {
    let page = read(
        "DCGM_FI_DEV_XID_ERRORS{Hostname=\"n\"} 79\nDCGM_FI_DEV_XID_ERRORS 79\nDCGM_FI_DEV_NVSWITCH_FATAL_ERRORS{nvswitch=\"0\"} 1\n",
    );
    assert_eq!((page.gpus.len(), page.skipped(Skip::NoGpu)), (0, 3));
}

#[test]
fn the_host_name_is_found_under_both_spellings() {
    for label in ["Hostname", "hostname"] {
        let text = format!("DCGM_FI_DEV_GPU_TEMP{{gpu=\"0\",{label}=\"dcgm-exporter-abc\"}} 61\n");
        assert_eq!(read(&text).gpus[0].hostname_hint, Some("dcgm-exporter-abc"));
    }
}

#[test]
fn link_rows_join_the_gpu_by_its_other_label() {
    let page = read(
        "DCGM_FI_DEV_GPU_TEMP{gpu=\"1\",UUID=\"GPU-1\",pci_bus_id=\"00000000:5D:00.0\"} 61\n\
         DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL{nvlink=\"3\",gpu=\"1\",gpu_uuid=\"GPU-1\",model_name=\"H100\"} 0\n\
         DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL{nvlink=\"4\",gpu=\"1\",gpu_uuid=\"GPU-1\",model_name=\"H100\"} 0\n",
    );
    assert_eq!((page.gpus.len(), page.samples.len(), page.gpus[0].model), (1, 3, Some("H100")));
    assert_eq!(page.samples[2].detail, Detail::Link(4));
}

#[test]
fn two_hosts_on_one_page_keep_their_gpus_apart() {
    let page = read("dcgm_gpu_temp{gpu=\"0\",Hostname=\"a\"} 1\ndcgm_gpu_temp{gpu=\"0\",Hostname=\"b\"} 2\n");
    assert_eq!((page.gpus.len(), page.samples.len()), (2, 2));
}

#[test]
fn labels_that_cannot_be_told_apart_cost_only_their_row() {
    let page = read("DCGM_FI_DEV_GPU_TEMP{gpu=\"0\",pod=oops} 61\nDCGM_FI_DEV_GPU_TEMP{gpu=\"1\"} 62\n");
    assert_eq!((page.samples.len(), page.errors.count(Reason::LabelsMalformed)), (1, 1));
    assert_eq!(page.errors.first()[0].line, 1);
}

#[test]
fn a_flood_of_gpus_is_bounded() {
    let text: String = (0..GPUS_MAX * 4).map(|at| format!("dcgm_gpu_temp{{uuid=\"GPU-{at}\"}} 1\n")).collect();
    let page = read(&text);
    assert_eq!((page.gpus.len(), page.skipped(Skip::TooMany) as usize), (GPUS_MAX, GPUS_MAX * 3));
}

proptest! {
    #[test]
    fn no_row_order_changes_what_a_page_says(seed in any::<u64>()) {
        let text = String::from_utf8(sample_page("dcgm-a800-mig-mixed.prom")).unwrap();
        let mut lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
        let in_order = lines.join("\n") + "\n";
        let mut state = seed | 1;
        for at in (1..lines.len()).rev() {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            lines.swap(at, (state >> 33) as usize % (at + 1));
        }
        let shuffled = lines.join("\n") + "\n";
        let facts = |page: &Page<'_>| {
            let mut facts: Vec<_> = page.samples.iter().map(|s| format!("{:?} {:?} {} {}", page.gpu(s).uuid, s.mig, s.metric, s.value)).collect();
            facts.sort();
            facts
        };
        prop_assert_eq!(facts(&read(&in_order)), facts(&read(&shuffled)));
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(text in "(dcgm_gpu_temp|DCGM_EXP_XID_ERRORS_COUNT)?[{](gpu|UUID|xid|pci_bus_id)?=\"[^\n]{0,40}\"[}] [0-9.NaIf]{0,6}\n") {
        let _ = decode(text.as_bytes(), &Aliases::new());
    }
}
