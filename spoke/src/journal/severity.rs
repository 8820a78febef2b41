//! How dear a fault is to a journal that is full, by the levels that are shipped: what may be P0 is never given up. A policy
//! may raise what is given up here; what still stands of it is told again once there is room. Pure.

use gpuheal_proto::link::v1::FaultClass;
use prost::Message as _;

/// The application's own Xids: never more than P2, whatever their count. They are what a crash loop writes by the thousand.
const APPLICATION_XIDS: [&str; 16] =
    ["4", "8", "11", "13", "24", "25", "31", "32", "43", "45", "66", "67", "69", "80", "93", "137"];

/// From what is given up first to what never is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Worth {
    /// P2.
    Minor,
    /// P1.
    Major,
    /// It may be P0, or nobody can tell what it is.
    Kept,
}

/// As much of a fault as is needed; the rest is skipped.
#[derive(Clone, PartialEq, prost::Message)]
struct Face {
    #[prost(enumeration = "FaultClass", tag = "4")]
    class: i32,
    #[prost(string, tag = "5")]
    code: String,
}

/// What class an encoded fault is of, and how dear it is.
pub(super) fn of(fault: &[u8]) -> (FaultClass, Worth) {
    let Ok(face) = Face::decode(fault) else { return (FaultClass::Unspecified, Worth::Kept) };
    (face.class(), worth(face.class(), &face.code))
}

fn worth(class: FaultClass, code: &str) -> Worth {
    match class {
        FaultClass::Xid if APPLICATION_XIDS.contains(&code) => Worth::Minor,
        FaultClass::RowRemap if code.contains("pending") => Worth::Minor,
        FaultClass::Thermal if code != "high" => Worth::Major,
        FaultClass::HealthWatch if code.to_ascii_lowercase().contains("driver") => Worth::Major,
        FaultClass::Unspecified
        | FaultClass::Xid
        | FaultClass::Ecc
        | FaultClass::RowRemap
        | FaultClass::GpuLost
        | FaultClass::Thermal => Worth::Kept,
        FaultClass::Driver | FaultClass::NodeCondition | FaultClass::Alert | FaultClass::Allocatable => Worth::Major,
        FaultClass::Nvlink
        | FaultClass::Pcie
        | FaultClass::Source
        | FaultClass::Utilisation
        | FaultClass::PodFailure
        | FaultClass::HealthWatch => Worth::Minor,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_p0_is_never_given_up_and_an_applications_own_fault_is_first() {
        for (class, code, want) in [
            (FaultClass::Xid, "79", Worth::Kept),
            (FaultClass::Xid, "31", Worth::Minor),
            (FaultClass::Xid, "9999", Worth::Kept),
            (FaultClass::Ecc, "uncorrectable", Worth::Kept),
            (FaultClass::RowRemap, "failure", Worth::Kept),
            (FaultClass::RowRemap, "pending", Worth::Minor),
            (FaultClass::GpuLost, "", Worth::Kept),
            (FaultClass::Thermal, "high", Worth::Kept),
            (FaultClass::Thermal, "warn", Worth::Major),
            (FaultClass::Alert, "GpuMemWatch", Worth::Major),
            (FaultClass::Pcie, "replay", Worth::Minor),
        ] {
            assert_eq!(worth(class, code), want, "{class:?} {code}");
        }
        assert_eq!(of(&[0xff; 9]), (FaultClass::Unspecified, Worth::Kept), "what cannot be read is not judged");
    }

    #[test]
    fn the_applications_own_xids_are_those_of_the_shipped_catalogue() {
        let catalogue = include_str!("../../../hub/core/data/xid-catalogue.tsv");
        let mut lines = catalogue.lines().map(|line| line.split('\t').collect::<Vec<_>>());
        let head = lines.next().unwrap();
        let column = |name: &str| head.iter().position(|title| *title == name).unwrap();
        let (xid, level, own) = (column("xid"), column("level"), column("user_app_fault"));
        let rows: Vec<_> = lines.collect();
        let minor = rows.iter().filter(|row| row[own] == "yes" && row[level] == "P2");
        assert_eq!(minor.map(|row| row[xid]).collect::<Vec<_>>(), APPLICATION_XIDS);
    }
}
