//! Any bytes as a segment of the journal, and any records as one. Proves, by the laws that `spoke/src/journal/check.rs` states:
//! every number up to the last is one fault or in one gap that is told, however the bytes are torn; and compacting the segment
//! moves no number, changes no fault and loses none that is to be kept. Needs no disk.

use crate::{
    journal_files::template,
    spoke::journal::{check_records, check_segment},
};

pub(crate) fn run(bytes: &[u8]) {
    check_segment(bytes);
    check_records(bytes);
}

/// A whole segment; and its records as [`check_records`] takes them, all, and each alone.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let framed = |payload: &[u8]| {
        let length = u16::try_from(payload.len()).expect("a record of the template is short");
        [&length.to_le_bytes(), payload].concat()
    };
    let records: Vec<Vec<u8>> = template().records.iter().map(|record| framed(&record.payload)).collect();
    [vec![template().bytes.clone(), records.concat()], records].concat()
}
