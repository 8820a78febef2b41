//! Names from outside to meanings inside: metric names of every exporter version, and the labels of alerts.
//!
//! Both tables have our defaults and take the operator's own names from settings; an operator's entry wins. Metric names
//! are compared without regard to case, since relabelling often lowers it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::metric::Metric;

/// Bound of the lengths of field names. The longest has 33 bytes; a test keeps the table within it.
const NAME_BYTES_MAX: usize = 64;

/// What a metric name means: the metric, and what to multiply with to reach its unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alias {
    /// The metric.
    pub metric: Metric,
    /// 100 where the exporter gives a ratio and the metric is a percentage, else 1.
    pub scale: f64,
}

/// The table of metric names. Built once from settings, asked once per metric of a page.
#[derive(Clone, Debug, PartialEq)]
pub struct Aliases {
    /// In lower case.
    own: BTreeMap<String, Alias>,
    /// Names without prefix, by their length: no more than a handful share one.
    fields: Vec<Vec<(&'static str, Alias)>>,
}

impl Default for Aliases {
    fn default() -> Self {
        let plain = FIELDS.iter().map(|&(name, metric)| (name, Alias { metric, scale: 1.0 }));
        let ratios = PERCENT_AS_RATIO.iter().map(|&(name, metric)| (name, Alias { metric, scale: 100.0 }));
        let mut fields = vec![Vec::new(); NAME_BYTES_MAX];
        for (name, alias) in plain.chain(ratios) {
            fields[name.len()].push((name, alias));
        }
        Self { own: BTreeMap::new(), fields }
    }
}

impl Aliases {
    /// The defaults and nothing else.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a name from settings; it goes before a default of the same name.
    #[must_use]
    pub fn with(mut self, name: &str, alias: Alias) -> Self {
        self.own.insert(name.to_ascii_lowercase(), alias);
        self
    }

    /// What a name means, if anything.
    pub fn get(&self, name: &str) -> Option<Alias> {
        if !self.own.is_empty()
            && let Some(&own) = self.own.get(&name.to_ascii_lowercase())
        {
            return Some(own);
        }
        let prefix = PREFIXES.iter().find(|prefix| begins_with(name, prefix))?;
        let field = &name[prefix.len()..];
        let same_length = self.fields.get(field.len())?;
        same_length.iter().find(|(known, _)| known.eq_ignore_ascii_case(field)).map(|&(_, alias)| alias)
    }
}

fn begins_with(name: &str, prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix))
}

/// What stands before the field's name; the short one last, as it begins the others.
const PREFIXES: [&str; 4] = ["dcgm_fi_dev_", "dcgm_fi_prof_", "dcgm_exp_", "dcgm_"];

/// DCGM 4.6 and later: the same measurement as a ratio of 0 to 1.
const PERCENT_AS_RATIO: &[(&str, Metric)] = &[
    ("gpu_util_ratio", Metric::GpuUtil),
    ("memory_util_ratio", Metric::MemCopyUtil),
    ("enc_util_ratio", Metric::EncoderUtil),
    ("dec_util_ratio", Metric::DecoderUtil),
];

/// Names without their prefix, see [`PREFIXES`].
const FIELDS: &[(&str, Metric)] = &[
    ("gpu_temp", Metric::GpuTemp),
    ("gpu_temp_celsius", Metric::GpuTemp),
    ("temp_gpu", Metric::GpuTemp),
    ("memory_temp", Metric::MemoryTemp),
    ("memory_temp_celsius", Metric::MemoryTemp),
    ("gpu_temp_limit", Metric::TempMargin),
    ("xid_errors", Metric::XidLast),
    ("xid_error", Metric::XidLast),
    ("gpu_xid_errors", Metric::XidLast),
    ("xid_errors_count", Metric::XidCount),
    ("ecc_sbe_vol_total", Metric::EccCorrectedVolatile),
    ("ecc_sbe_volatile_total", Metric::EccCorrectedVolatile),
    ("gpu_ecc_corrected_total", Metric::EccCorrectedVolatile),
    ("ecc_dbe_vol_total", Metric::EccUncorrectedVolatile),
    ("ecc_dbe_volatile_total", Metric::EccUncorrectedVolatile),
    ("gpu_ecc_uncorrected_total", Metric::EccUncorrectedVolatile),
    ("ecc_sbe_agg_total", Metric::EccCorrectedLifetime),
    ("ecc_sbe_aggregate_total", Metric::EccCorrectedLifetime),
    ("ecc_dbe_agg_total", Metric::EccUncorrectedLifetime),
    ("ecc_dbe_aggregate_total", Metric::EccUncorrectedLifetime),
    ("correctable_remapped_rows", Metric::RemappedCorrectable),
    ("row_remap_correctable_total", Metric::RemappedCorrectable),
    ("uncorrectable_remapped_rows", Metric::RemappedUncorrectable),
    ("row_remap_uncorrectable_total", Metric::RemappedUncorrectable),
    ("row_remap_failure", Metric::RowRemapFailure),
    ("row_remap_failed", Metric::RowRemapFailure),
    ("row_remap_pending", Metric::RowRemapPending),
    ("retired_sbe", Metric::RetiredSingleBit),
    ("page_retired_sbe_total", Metric::RetiredSingleBit),
    ("retired_pages_sbe", Metric::RetiredSingleBit),
    ("retired_dbe", Metric::RetiredDoubleBit),
    ("page_retired_dbe_total", Metric::RetiredDoubleBit),
    ("retired_pages_dbe", Metric::RetiredDoubleBit),
    ("retired_pending", Metric::RetiredPending),
    ("page_retired_pending", Metric::RetiredPending),
    ("retired_pages_pending", Metric::RetiredPending),
    ("sram_exceeded", Metric::SramThresholdExceeded),
    ("memory_unrepairable", Metric::MemoryUnrepairable),
    ("pcie_replay_counter", Metric::PcieReplay),
    ("pcie_replay_total", Metric::PcieReplay),
    ("nvlink_crc_flit_error_count_total", Metric::NvlinkCrcFlit),
    ("nvlink_crc_flit_error_total", Metric::NvlinkCrcFlit),
    ("nvlink_flit_crc_error_count_total", Metric::NvlinkCrcFlit),
    ("nvlink_crc_data_error_count_total", Metric::NvlinkCrcData),
    ("nvlink_crc_data_error_total", Metric::NvlinkCrcData),
    ("nvlink_data_crc_error_count_total", Metric::NvlinkCrcData),
    ("nvlink_replay_error_count_total", Metric::NvlinkReplay),
    ("nvlink_replay_error_total", Metric::NvlinkReplay),
    ("nvlink_recovery_error_count_total", Metric::NvlinkRecovery),
    ("nvlink_recovery_error_total", Metric::NvlinkRecovery),
    ("nvswitch_fatal_errors", Metric::SxidFatal),
    ("sxid_fatal_error", Metric::SxidFatal),
    ("nvswitch_non_fatal_errors", Metric::SxidNonFatal),
    ("sxid_non_fatal_error", Metric::SxidNonFatal),
    ("gpu_health_status", Metric::HealthStatus),
    ("p2p_status", Metric::P2pStatus),
    ("gpu_recovery_action", Metric::RecoveryAction),
    ("get_gpu_recovery_action", Metric::RecoveryAction),
    ("imex_domain_status", Metric::ImexDomainStatus),
    ("clock_events_count", Metric::ClockEvents),
    ("clock_throttle_reasons", Metric::ClockReasons),
    ("clocks_event_reasons", Metric::ClockReasons),
    ("power_violation", Metric::PowerViolation),
    ("thermal_violation", Metric::ThermalViolation),
    ("sync_boost_violation", Metric::OtherViolation),
    ("board_limit_violation", Metric::OtherViolation),
    ("low_util_violation", Metric::OtherViolation),
    ("reliability_violation", Metric::OtherViolation),
    ("gpu_util", Metric::GpuUtil),
    ("gpu_utilization", Metric::GpuUtil),
    ("mem_copy_util", Metric::MemCopyUtil),
    ("mem_copy_utilization", Metric::MemCopyUtil),
    ("enc_util", Metric::EncoderUtil),
    ("enc_utilization", Metric::EncoderUtil),
    ("dec_util", Metric::DecoderUtil),
    ("dec_utilization", Metric::DecoderUtil),
    ("gr_engine_active", Metric::EngineActive),
    ("pipe_tensor_active", Metric::TensorActive),
    ("tensor_util_ratio", Metric::TensorActive),
    ("dram_active", Metric::DramActive),
    ("dram_util_ratio", Metric::DramActive),
    ("sm_clock", Metric::SmClock),
    ("mem_clock", Metric::MemClock),
    ("memory_clock", Metric::MemClock),
    ("power_usage", Metric::Power),
    ("board_power_watts", Metric::Power),
    ("total_energy_consumption", Metric::Energy),
    ("fb_free", Metric::FbFree),
    ("fb_used", Metric::FbUsed),
    ("fb_reserved", Metric::FbReserved),
    ("pcie_tx_bytes", Metric::PcieTx),
    ("pcie_rx_bytes", Metric::PcieRx),
    ("nvlink_bandwidth_total", Metric::NvlinkBandwidth),
    ("nvlink_throughput_total", Metric::NvlinkBandwidth),
    ("vgpu_license_status", Metric::VgpuLicense),
];

/// What a label of an alert says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LabelMeaning {
    /// The Kubernetes node by name.
    Node,
    /// Perhaps the node, perhaps the exporter's pod or container.
    NodeHint,
    /// `host:port` of what was scraped: an address to be looked up, never a name.
    Instance,
    /// UUID of the GPU.
    GpuUuid,
    /// PCI slot of the GPU.
    GpuSlot,
    /// Index of the GPU: a hint, as it changes over a reboot.
    GpuIndex,
    /// Number of the Xid.
    XidCode,
    /// How many Xids there were.
    XidCount,
    /// °C of the GPU.
    GpuTemp,
    /// Pod that uses the GPU.
    WorkloadPod,
    /// Its namespace.
    WorkloadNamespace,
    /// Its container.
    WorkloadContainer,
}

/// The table of alert labels, in order of trust: the first that is present and readable wins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertLabels {
    entries: Vec<(String, LabelMeaning)>,
}

impl AlertLabels {
    /// Puts the operator's own label before all others.
    #[must_use]
    pub fn with(mut self, label: &str, meaning: LabelMeaning) -> Self {
        self.entries.retain(|(name, _)| name != label);
        self.entries.insert(0, (label.to_owned(), meaning));
        self
    }

    /// The labels that can carry this meaning, best first.
    pub fn carrying(&self, meaning: LabelMeaning) -> impl Iterator<Item = &str> {
        self.entries.iter().filter(move |(_, other)| *other == meaning).map(|(name, _)| name.as_str())
    }
}

impl Default for AlertLabels {
    fn default() -> Self {
        use LabelMeaning as M;
        let entries = [
            ("node", M::Node),
            ("kubernetes_node", M::Node),
            ("nodename", M::Node),
            ("Hostname", M::NodeHint),
            ("hostname", M::NodeHint),
            ("exported_instance", M::Instance),
            ("instance", M::Instance),
            ("UUID", M::GpuUuid),
            ("uuid", M::GpuUuid),
            ("gpu_uuid", M::GpuUuid),
            ("pci_bus_id", M::GpuSlot),
            ("gpu", M::GpuIndex),
            ("xid", M::XidCode),
            ("err_code", M::XidCode),
            ("xid_errors", M::XidCount),
            ("gpu_temp", M::GpuTemp),
            ("exported_pod", M::WorkloadPod),
            ("exported_namespace", M::WorkloadNamespace),
            ("exported_container", M::WorkloadContainer),
        ];
        Self { entries: entries.into_iter().map(|(name, meaning)| (name.to_owned(), meaning)).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_generation_of_a_name_means_the_same_metric() {
        let table = [
            (Metric::XidLast, vec!["DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR", "dcgm_xid_errors", "dcgm_gpu_xid_errors"]),
            (Metric::GpuTemp, vec!["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", "dcgm_gpu_temp", "dcgm_temp_gpu"]),
            (Metric::GpuUtil, vec!["DCGM_FI_DEV_GPU_UTIL", "dcgm_gpu_utilization"]),
            (Metric::EccCorrectedVolatile, vec!["DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "dcgm_gpu_ecc_corrected_total"]),
            (Metric::EccUncorrectedVolatile, vec!["DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "dcgm_gpu_ecc_uncorrected_total"]),
            (Metric::RowRemapFailure, vec!["DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ROW_REMAP_FAILED"]),
            (Metric::XidCount, vec!["DCGM_EXP_XID_ERRORS_COUNT"]),
        ];
        for (metric, names) in table {
            for name in names {
                assert_eq!(Aliases::new().get(name), Some(Alias { metric, scale: 1.0 }), "{name}");
            }
        }
    }

    #[test]
    fn a_ratio_becomes_the_percentage_that_thresholds_speak_of() {
        assert_eq!(Aliases::new().get("DCGM_FI_DEV_GPU_UTIL_RATIO"), Some(Alias { metric: Metric::GpuUtil, scale: 100.0 }));
    }

    #[test]
    fn own_names_are_taken_and_win() {
        let own = Alias { metric: Metric::XidCount, scale: 1.0 };
        let aliases =
            Aliases::new().with("site_gpu_hot", Alias { metric: Metric::GpuTemp, scale: 0.1 }).with("dcgm_gpu_xid_errors", own);
        assert_eq!(aliases.get("SITE_gpu_hot").unwrap().metric, Metric::GpuTemp);
        assert_eq!(aliases.get("dcgm_gpu_xid_errors"), Some(own));
        assert_eq!(aliases.get("go_goroutines"), None);
        assert_eq!(aliases.get(&"x".repeat(500)), None);
    }

    #[test]
    fn no_field_is_listed_twice() {
        let mut names: Vec<_> = FIELDS.iter().chain(PERCENT_AS_RATIO).map(|(name, _)| name).collect();
        names.sort();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn own_alert_labels_go_first() {
        let labels = AlertLabels::default().with("machine", LabelMeaning::Node);
        assert_eq!(labels.carrying(LabelMeaning::Node).collect::<Vec<_>>(), ["machine", "node", "kubernetes_node", "nodename"]);
    }
}
