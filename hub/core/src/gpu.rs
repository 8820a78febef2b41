//! Whether two sources speak of one GPU. Nothing is guessed: who shares neither slot nor UUID says nothing of it. Called by
//! whoever holds one fault against another, or against what was drained.

use gpuheal_proto::fault::GpuRef;

/// Whether both sit in one place, or where a slot is not known are one board; `None`: nobody can tell. What a slot had before a
/// repair is its trouble still.
pub(crate) fn same_place(a: &GpuRef, b: &GpuRef) -> Option<bool> {
    equal(a.slot.as_ref(), b.slot.as_ref()).or_else(|| equal(a.uuid.as_ref(), b.uuid.as_ref()))
}

/// Whether both are one board, or where a UUID is not known sit in one place. Who uses a board uses none that is put in its slot.
pub(crate) fn same_board(a: &GpuRef, b: &GpuRef) -> Option<bool> {
    equal(a.uuid.as_ref(), b.uuid.as_ref()).or_else(|| equal(a.slot.as_ref(), b.slot.as_ref()))
}

fn equal<T: PartialEq>(a: Option<T>, b: Option<T>) -> Option<bool> {
    a.zip(b).map(|(a, b)| a == b)
}

#[cfg(test)]
mod tests {
    use gpuheal_proto::ids::{GpuSlot, GpuUuid};

    use super::*;

    fn gpu(slot: &str, uuid: &str) -> GpuRef {
        GpuRef { slot: GpuSlot::normalise(slot), uuid: GpuUuid::parse(uuid).ok(), model: String::new() }
    }

    #[test]
    fn gpus_without_a_slot_are_told_apart_by_their_uuid_and_those_that_share_nothing_not_at_all() {
        let (a, b) = ("0000:01:00", "0000:02:00");
        for (one, other, place, board) in [
            (gpu("", "GPU-1"), gpu("", "GPU-2"), Some(false), Some(false)),
            (gpu("", "GPU-1"), gpu(a, "GPU-1"), Some(true), Some(true)),
            (gpu(a, ""), gpu(a, "GPU-1"), Some(true), Some(true)),
            (gpu(a, ""), gpu(b, ""), Some(false), Some(false)),
            (gpu(a, "GPU-1"), gpu(a, "GPU-2"), Some(true), Some(false)),
            (gpu(a, "GPU-1"), gpu(b, "GPU-1"), Some(false), Some(true)),
            (gpu(a, ""), gpu("", "GPU-1"), None, None),
            (gpu("", ""), gpu("", ""), None, None),
        ] {
            assert_eq!((same_place(&one, &other), same_board(&one, &other)), (place, board), "{one:?} {other:?}");
        }
    }
}
