//! The closed set of metrics that the detectors know, and for each what a real reading can be.
//!
//! A value outside its range is no reading: exporters print DCGM's blank markers (2147483632, 9223372036854775792,
//! 140737488355328 and their neighbours) and plain garbage (4294967295 as a percentage) as numbers.

use std::fmt;
use std::str::FromStr;

/// Largest value below DCGM's 32-bit blanks (2147483632 blank, +1 not found, +2 not supported, +3 not permitted).
const BELOW_BLANK32: f64 = 2_147_483_631.0;
/// Just below the blank of 64-bit fields, 9223372036854775792, as far as an f64 can tell it from its neighbours.
const BELOW_BLANK64: f64 = 9.2e18;
/// Just below the blank of floating fields, 140737488355328.0.
const BELOW_BLANK_FLOAT: f64 = 140_737_488_355_327.0;

macro_rules! metrics {
    ($($(#[$doc:meta])* $variant:ident $name:literal $low:expr, $high:expr;)*) => {
        /// One metric that the detectors know.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub enum Metric { $($(#[$doc])* $variant,)* }

        impl Metric {
            /// Every metric, in the order of the enum.
            pub const ALL: &'static [Metric] = &[$(Metric::$variant,)*];

            /// The name as settings and reports write it.
            pub fn name(self) -> &'static str {
                match self { $(Metric::$variant => $name,)* }
            }

            /// Smallest and largest value that a real reading can have.
            pub fn range(self) -> (f64, f64) {
                match self { $(Metric::$variant => ($low, $high),)* }
            }
        }
    };
}

metrics! {
    /// °C of the GPU core; data-centre boards switch off near 110.
    GpuTemp "gpu_temp" -40.0, 150.0;
    /// °C of the memory. Boards without a sensor report a false 0, see [`Metric::accept`].
    MemoryTemp "memory_temp" -40.0, 150.0;
    /// °C left until the GPU slows down.
    TempMargin "temp_margin" -100.0, 150.0;
    /// Number of the last Xid seen by the host engine: a level, not an event.
    XidLast "xid_last" 0.0, 65_535.0;
    /// Xids of one code within the exporter's sliding window.
    XidCount "xid_count" 0.0, BELOW_BLANK32;
    /// Corrected ECC errors since driver load.
    EccCorrectedVolatile "ecc_corrected_volatile" 0.0, BELOW_BLANK32;
    /// Uncorrectable ECC errors since driver load.
    EccUncorrectedVolatile "ecc_uncorrected_volatile" 0.0, BELOW_BLANK32;
    /// Corrected ECC errors over the board's life.
    EccCorrectedLifetime "ecc_corrected_lifetime" 0.0, BELOW_BLANK32;
    /// Uncorrectable ECC errors over the board's life.
    EccUncorrectedLifetime "ecc_uncorrected_lifetime" 0.0, BELOW_BLANK32;
    /// Rows remapped after corrected errors, over the board's life.
    RemappedCorrectable "remapped_correctable" 0.0, BELOW_BLANK32;
    /// Rows remapped after uncorrectable errors, over the board's life.
    RemappedUncorrectable "remapped_uncorrectable" 0.0, BELOW_BLANK32;
    /// 1 = no spare row was left. Stays 1 for ever.
    RowRemapFailure "row_remap_failure" 0.0, 1.0;
    /// 1 = a remapping waits for the next reset.
    RowRemapPending "row_remap_pending" 0.0, 1.0;
    /// Pages retired after single-bit errors (before Ampere).
    RetiredSingleBit "retired_single_bit" 0.0, BELOW_BLANK32;
    /// Pages retired after double-bit errors (before Ampere).
    RetiredDoubleBit "retired_double_bit" 0.0, BELOW_BLANK32;
    /// Pages waiting to be retired.
    RetiredPending "retired_pending" 0.0, BELOW_BLANK32;
    /// 1 = SRAM error threshold exceeded.
    SramThresholdExceeded "sram_threshold_exceeded" 0.0, 1.0;
    /// 1 = memory that cannot be repaired any more.
    MemoryUnrepairable "memory_unrepairable" 0.0, 1.0;
    /// PCIe replays since driver load.
    PcieReplay "pcie_replay" 0.0, BELOW_BLANK32;
    /// NVLink flow-control CRC errors.
    NvlinkCrcFlit "nvlink_crc_flit" 0.0, BELOW_BLANK32;
    /// NVLink data CRC errors.
    NvlinkCrcData "nvlink_crc_data" 0.0, BELOW_BLANK32;
    /// NVLink replays.
    NvlinkReplay "nvlink_replay" 0.0, BELOW_BLANK32;
    /// NVLink recoveries.
    NvlinkRecovery "nvlink_recovery" 0.0, BELOW_BLANK32;
    /// Last fatal SXid of a switch.
    SxidFatal "sxid_fatal" 0.0, 65_535.0;
    /// Last non-fatal SXid of a switch.
    SxidNonFatal "sxid_non_fatal" 0.0, 65_535.0;
    /// DCGM's verdict of one watch: 0 pass, 10 warn, 20 fail.
    HealthStatus "health_status" 0.0, 20.0;
    /// State of one peer-to-peer path, 0 is good.
    P2pStatus "p2p_status" 0.0, 6.0;
    /// What the driver wants: 0 nothing, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset.
    RecoveryAction "recovery_action" 0.0, 255.0;
    /// State of the IMEX domain.
    ImexDomainStatus "imex_domain_status" -255.0, 255.0;
    /// Clock events of one kind within the exporter's sliding window.
    ClockEvents "clock_events" 0.0, BELOW_BLANK32;
    /// Bit mask of the reasons why clocks are held back.
    ClockReasons "clock_reasons" 0.0, BELOW_BLANK32;
    /// Nanoseconds held back by the power limit.
    PowerViolation "power_violation" 0.0, BELOW_BLANK64;
    /// Nanoseconds held back by heat.
    ThermalViolation "thermal_violation" 0.0, BELOW_BLANK64;
    /// Nanoseconds held back by sync boost, board limit, low utilisation or reliability.
    OtherViolation "other_violation" 0.0, BELOW_BLANK64;
    /// % of time with a kernel running.
    GpuUtil "gpu_util" 0.0, 100.0;
    /// % of time with memory copies.
    MemCopyUtil "mem_copy_util" 0.0, 100.0;
    /// % of the encoder.
    EncoderUtil "encoder_util" 0.0, 100.0;
    /// % of the decoder.
    DecoderUtil "decoder_util" 0.0, 100.0;
    /// Share of time with the graphics or compute engine active.
    EngineActive "engine_active" 0.0, 100.0;
    /// Share of time with tensor cores active.
    TensorActive "tensor_active" 0.0, 100.0;
    /// Share of time with device memory active.
    DramActive "dram_active" 0.0, 100.0;
    /// MHz.
    SmClock "sm_clock" 0.0, 20_000.0;
    /// MHz.
    MemClock "mem_clock" 0.0, 20_000.0;
    /// W.
    Power "power" 0.0, 20_000.0;
    /// mJ since driver load: goes back only when the driver restarted. 2^31 mJ are an hour and a half at 400 W, so the
    /// 32-bit blank is an ordinary reading here.
    Energy "energy" 0.0, BELOW_BLANK64;
    /// MiB.
    FbFree "fb_free" 0.0, BELOW_BLANK32;
    /// MiB.
    FbUsed "fb_used" 0.0, BELOW_BLANK32;
    /// MiB.
    FbReserved "fb_reserved" 0.0, BELOW_BLANK32;
    /// Bytes or bytes per second, by exporter version.
    PcieTx "pcie_tx" 0.0, BELOW_BLANK_FLOAT;
    /// Bytes or bytes per second, by exporter version.
    PcieRx "pcie_rx" 0.0, BELOW_BLANK_FLOAT;
    /// All lanes together.
    NvlinkBandwidth "nvlink_bandwidth" 0.0, BELOW_BLANK_FLOAT;
    /// 1 = licensed.
    VgpuLicense "vgpu_license" 0.0, 1.0;
}

/// Why a number is no reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoReading {
    /// NaN or infinite.
    NotFinite,
    /// One of DCGM's markers for blank, not found, not supported, not permitted.
    Blank,
    /// Outside what the metric can be.
    OutOfRange,
    /// The false 0 of a memory temperature without a sensor.
    NoSensor,
}

impl Metric {
    /// The value if it can be a reading of this metric, the reason otherwise.
    pub fn accept(self, value: f64) -> Result<f64, NoReading> {
        let (low, high) = self.range();
        if !value.is_finite() {
            Err(NoReading::NotFinite)
        } else if value < low || value > high {
            Err(if is_blank(value) { NoReading::Blank } else { NoReading::OutOfRange })
        } else if self == Metric::MemoryTemp && value == 0.0 {
            Err(NoReading::NoSensor)
        } else {
            Ok(value)
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Settings named a metric that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no metric is called {name:?}")]
pub struct UnknownMetric {
    /// What settings said.
    pub name: String,
}

impl FromStr for Metric {
    type Err = UnknownMetric;
    fn from_str(name: &str) -> Result<Self, UnknownMetric> {
        let found = Metric::ALL.iter().find(|metric| metric.name() == name);
        found.copied().ok_or_else(|| UnknownMetric { name: name.to_owned() })
    }
}

impl TryFrom<String> for Metric {
    type Error = UnknownMetric;
    fn try_from(name: String) -> Result<Self, UnknownMetric> {
        name.parse()
    }
}

impl From<Metric> for String {
    fn from(metric: Metric) -> Self {
        metric.name().to_owned()
    }
}

fn is_blank(value: f64) -> bool {
    (2_147_483_632.0..=2_147_483_647.0).contains(&value)
        || value == 4_294_967_295.0
        || (140_737_488_355_328.0..=140_737_488_355_343.0).contains(&value)
        || (9.223_372_036_854_775e18..=1.844_674_407_370_955_2e19).contains(&value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_markers_are_never_a_reading() {
        let blanks = [
            2147483632.0,
            2147483635.0,
            9223372036854775792.0,
            9223372036854775794.0,
            9.223372036854776e18,
            140737488355328.0,
            140737488355331.0,
        ];
        for metric in
            [Metric::GpuTemp, Metric::GpuUtil, Metric::XidLast, Metric::Power, Metric::EngineActive, Metric::EccUncorrectedVolatile]
        {
            for blank in blanks {
                assert_eq!(metric.accept(blank), Err(NoReading::Blank), "{metric} {blank}");
            }
        }
    }

    #[test]
    fn temperature_of_a_64_bit_blank_is_no_thermal_fault() {
        assert_eq!(Metric::GpuTemp.accept(9223372036854775794.0), Err(NoReading::Blank));
    }

    #[test]
    fn utilisation_above_100_is_dropped() {
        assert_eq!(Metric::GpuUtil.accept(4294967295.0), Err(NoReading::Blank));
        assert_eq!(Metric::GpuUtil.accept(200_000.0), Err(NoReading::OutOfRange));
        assert_eq!(Metric::GpuUtil.accept(100.0), Ok(100.0));
    }

    #[test]
    fn energy_past_the_32_bit_blank_is_an_ordinary_reading() {
        assert_eq!(Metric::Energy.accept(2147483640.0), Ok(2147483640.0));
        assert_eq!(Metric::Energy.accept(9.223372036854776e18), Err(NoReading::Blank));
    }

    #[test]
    fn memory_temperature_zero_means_no_sensor() {
        assert_eq!(Metric::MemoryTemp.accept(0.0), Err(NoReading::NoSensor));
        assert_eq!(Metric::GpuTemp.accept(0.0), Ok(0.0));
    }

    #[test]
    fn every_name_finds_its_metric_again() {
        for metric in Metric::ALL {
            assert_eq!(metric.name().parse::<Metric>().as_ref(), Ok(metric));
        }
        assert!("gpu_temperature".parse::<Metric>().is_err());
    }
}
