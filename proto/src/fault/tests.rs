//! Claims about faults and their way over the wire.

use super::*;
use crate::{limits, link::v1};

fn fault() -> Fault {
    let cluster = ClusterId::parse("c1").unwrap();
    let node = NodeRef { name: NodeName::parse("n1").unwrap(), uid: NodeUid::parse("u1").unwrap(), boot_id: "b".into() };
    let gpu = GpuRef { slot: GpuSlot::normalise("00000000:5D:00.0"), uuid: None, model: "H100".into() };
    let mut fault = Fault {
        key: FaultKey::derive(&cluster, &node.uid, None, "", ""),
        node,
        gpu: Some(gpu),
        class: FaultClass::Xid,
        code: "79".into(),
        onset: Onset::Edge,
        witness: Witness::ExporterGauge,
        observed_at: Timestamp::from_unix_ms(5),
        value: 79.0,
        threshold: 0.0,
        count: 1,
        source: "exporter".into(),
        detail: String::new(),
        workload: "ml/train-0".into(),
    };
    fault.key = fault.derived_key(&cluster);
    fault
}

#[test]
fn a_fault_survives_the_wire() {
    assert_eq!(Fault::try_from(v1::Fault::from(&fault())).unwrap(), fault());
}

#[test]
fn an_unknown_enum_is_refused_and_never_a_default() {
    let mut wire = v1::Fault::from(&fault());
    wire.witness = 99;
    assert_eq!(Fault::try_from(wire), Err(Error::Unknown { field: "witness", value: 99 }));
    let mut wire = v1::Fault::from(&fault());
    wire.class = 0;
    assert_eq!(Fault::try_from(wire), Err(Error::Unknown { field: "class", value: 0 }));
}

#[test]
fn a_text_over_its_limit_is_refused_with_its_size() {
    let mut wire = v1::Fault::from(&fault());
    wire.code = "x".repeat(limits::CODE_BYTES_MAX + 1);
    assert_eq!(Fault::try_from(wire), Err(Error::TooLong { field: "code", bytes: 129, max: 128 }));
}

#[test]
fn a_zero_byte_in_any_text_is_refused_with_its_field() {
    type Put = fn(&mut v1::Fault);
    let texts: [(&str, Put); 6] = [
        ("code", |fault| fault.code.push('\0')),
        ("source", |fault| fault.source.push('\0')),
        ("detail", |fault| fault.detail.push('\0')),
        ("workload", |fault| fault.workload.push('\0')),
        ("boot_id", |fault| fault.node.as_mut().unwrap().boot_id.push('\0')),
        ("model", |fault| fault.gpu.as_mut().unwrap().model.push('\0')),
    ];
    for (field, put) in texts {
        let mut wire = v1::Fault::from(&fault());
        put(&mut wire);
        assert_eq!(Fault::try_from(wire), Err(Error::ZeroByte { field }));
    }
    let ids: [Put; 2] = [|fault| fault.node.as_mut().unwrap().uid.push('\0'), |fault| fault.fault_key.push('\0')];
    for put in ids {
        let mut wire = v1::Fault::from(&fault());
        put(&mut wire);
        assert!(matches!(Fault::try_from(wire), Err(Error::Id(_))));
    }
}

#[test]
fn a_fault_of_a_gpu_without_a_slot_under_the_key_that_all_of_them_share_is_taken_for_one_of_the_node() {
    let cluster = ClusterId::parse("c1").unwrap();
    let keyed = |gpu: GpuRef, as_of: Option<&GpuRef>| {
        let mut fault = Fault { gpu: as_of.cloned(), ..fault() };
        fault.key = fault.derived_key(&cluster);
        Fault { gpu: Some(gpu), ..fault }
    };
    let slotless = GpuRef { slot: None, uuid: GpuUuid::parse("GPU-1").ok(), model: "H100".into() };
    let own = keyed(slotless.clone(), Some(&slotless));
    assert_eq!(own.clone().of_cluster(&cluster), Ok(own));
    let shared = keyed(slotless.clone(), None);
    assert_eq!(shared.clone().of_cluster(&cluster), Ok(Fault { gpu: None, ..shared.clone() }));
    let elsewhere = ClusterId::parse("c2").unwrap();
    assert_eq!(shared.clone().of_cluster(&elsewhere), Err(shared.derived_key(&elsewhere)));
    let slotted = fault().gpu.unwrap();
    let wrong = keyed(slotted, None);
    assert_eq!(wrong.clone().of_cluster(&cluster), Err(wrong.derived_key(&cluster)), "who knows the slot keys by it");
}
