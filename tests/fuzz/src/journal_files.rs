//! Any bytes as the one segment in a journal's directory, opened by the journal itself on a disk. Proves: whatever lies there, the
//! journal opens; every number is a fault or in a gap that is told; every fault of a record that lies whole before the first byte
//! that differs from what was written is still there, under its number; what was torn before its clean
//! end goes on under another stream; and what is appended then can be read back.

use std::{fs, path::PathBuf, sync::LazyLock};

use bytes::Bytes;
use gpuheal_proto::{
    fault::{Fault, FaultClass, Onset, Witness},
    ids::{FaultKey, StreamId},
    link::v1,
};
use prost::Message as _;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use crate::{
    believable::{START, cluster, node},
    spoke::journal::{Chunk, Error, Journal, Limits},
};

/// The segment that was written: of the first stream, from its first number on.
const NAME: &str = "00000001-0123456789abcdef0123456789abcdef.00000000000000000001.0000000000.seg";
/// In front of each record: four bytes that say so, its length and its checksum.
const FRAME_HEAD: usize = 12;
/// Faults in the template.
const FAULTS: u8 = 20;

/// One record of the template.
pub(crate) struct Written {
    /// Where it ends.
    end: usize,
    pub(crate) payload: Vec<u8>,
}

/// The template in parts.
pub(crate) struct Template {
    pub(crate) bytes: Vec<u8>,
    pub(crate) records: Vec<Written>,
}

static TEMPLATE: LazyLock<Template> = LazyLock::new(|| {
    let segment = write();
    let ends = |at: usize| {
        let length = u32::from_le_bytes(segment.get(at + 4..at + 8)?.try_into().expect("it is four bytes long"));
        Some(at + FRAME_HEAD + usize::try_from(length).expect("32 bits fit"))
    };
    // The first record names the stream, which is another each time; without it the bytes are always the same.
    let start = ends(0).expect("a segment has a head");
    let (mut records, mut at) = (Vec::new(), start);
    while let Some(end) = ends(at) {
        records.push(Written { end: end - start, payload: segment[at + FRAME_HEAD..end].to_vec() });
        at = end;
    }
    Template { bytes: segment[start..].to_vec(), records }
});

/// The template.
pub(crate) fn template() -> &'static Template {
    &TEMPLATE
}

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().build().expect("a runtime without IO needs nothing"));

/// The n-th fault of the template, from 0.
fn fault(nth: u8) -> Fault {
    let (class, code) = [(FaultClass::Xid, "79"), (FaultClass::Alert, "GpuOdd"), (FaultClass::Xid, "31")][usize::from(nth % 3)];
    Fault {
        key: FaultKey::derive(&cluster(), &node().uid, None, class.as_str(), code),
        node: node(),
        gpu: None,
        class,
        code: code.to_owned(),
        onset: Onset::Edge,
        witness: Witness::ExporterGauge,
        observed_at: START,
        value: 0.0,
        threshold: 0.0,
        count: 1,
        source: String::new(),
        detail: format!("number {}", nth + 1),
        workload: String::new(),
    }
}

fn encoded(nth: u8) -> Bytes {
    v1::Fault::from(&fault(nth)).encode_to_vec().into()
}

/// In memory where there is such a place: what is proved needs files, not their platters.
fn directory() -> TempDir {
    let memory = PathBuf::from("/dev/shm");
    let place = if memory.is_dir() { memory } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("gpuheal-fuzz").tempdir_in(place).expect("a directory can be made")
}

pub(crate) fn run(bytes: &[u8]) {
    let dir = directory();
    fs::write(dir.path().join(NAME), bytes).expect("a file can be written");
    RUNTIME.block_on(async {
        let (journal, _held) = Journal::open(dir.path(), Limits::default()).expect("whatever lies there, it opens");
        let stream = StreamId::parse("0123456789abcdef0123456789abcdef").expect("it is visible");
        let heads = journal.heads().await.expect("it is open");
        let found = match heads.iter().find(|(id, _)| *id == stream) {
            Some((_, next_seq)) => walk(&journal, &stream, *next_seq).await,
            None => Vec::new(),
        };
        kept(bytes, &found);
        let head = journal.head().borrow().clone();
        let torn = template().bytes.starts_with(bytes) && bytes != template().bytes;
        assert!(!torn || head.stream != stream, "a stream goes on that was not closed");
        let seq = journal.append(&[fault(0)], Vec::new()).await.expect("an opened journal takes faults");
        assert_eq!(seq, head.next_seq, "under the number that was told");
        match journal.read(&head.stream, seq).await.expect("it is here") {
            Chunk::Faults { first_seq, faults } => assert_eq!((first_seq, &faults[0]), (seq, &encoded(0))),
            other => panic!("what was appended is not there: {other:?}"),
        }
        journal.close().await.expect("it can be closed");
    });
}

/// Every number and its fault, where it is one.
async fn walk(journal: &Journal, stream: &StreamId, next_seq: u64) -> Vec<(u64, Bytes)> {
    let (mut out, mut seq) = (Vec::new(), 1);
    while seq < next_seq {
        match journal.read(stream, seq).await {
            Ok(Chunk::Faults { first_seq, faults }) => {
                assert!(first_seq == seq && !faults.is_empty(), "a batch starts where it was asked for");
                for fault in faults {
                    out.push((seq, fault));
                    seq += 1;
                }
            }
            Ok(Chunk::Gap { from_seq, to_seq, .. }) => {
                assert!(from_seq == seq && to_seq >= seq, "a gap starts where it was asked for");
                seq = to_seq.checked_add(1).expect("a number follows each that is lost");
            }
            Ok(Chunk::End) => panic!("number {seq} of {next_seq} is nowhere"),
            Err(error @ Error::NoSuchStream) => panic!("a stream that is named is not here: {error}"),
            Err(error) => panic!("a whole disk says no: {error}"),
        }
    }
    assert_eq!(seq, next_seq, "nothing lies behind the last number");
    out
}

/// The faults of each record that is whole before the first byte that differs.
fn kept(bytes: &[u8], found: &[(u64, Bytes)]) {
    let same = bytes.iter().zip(&template().bytes).take_while(|(one, other)| one == other).count();
    let mut seq = 1;
    for record in template().records.iter().take_while(|record| record.end <= same) {
        for nth in 0..FAULTS {
            let wanted = encoded(nth);
            if !record.payload.windows(wanted.len()).any(|window| window == wanted) {
                continue;
            }
            assert!(found.iter().any(|(at, fault)| *at == seq && *fault == wanted), "number {seq} was whole and is gone");
            seq += 1;
        }
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let whole = &template().bytes;
    let torn = template().records.iter().map(|record| whole[..record.end - 1].to_vec());
    [vec![whole.clone(), Vec::new()], torn.collect()].concat()
}

/// A segment as a journal writes it: records of one to four faults with what was held, and a clean end.
fn write() -> Vec<u8> {
    let dir = directory();
    RUNTIME.block_on(async {
        let (journal, _) = Journal::open(dir.path(), Limits::default()).expect("an empty directory opens");
        let mut nth = 0;
        while nth < FAULTS {
            let faults: Vec<Fault> = (nth..FAULTS).take(usize::from(nth % 4) + 1).map(fault).collect();
            nth += u8::try_from(faults.len()).expect("at most four");
            let held = if nth % 2 == 0 { vec![("uid-1".to_owned(), Bytes::from_static(b"held"))] } else { Vec::new() };
            journal.append(&faults, held).await.expect("an empty journal takes faults");
        }
        journal.close().await.expect("it can be closed");
    });
    let mut files = fs::read_dir(dir.path()).expect("it is there").filter_map(Result::ok).map(|entry| entry.path());
    let segment = files.find(|path| path.extension().is_some_and(|extension| extension == "seg"));
    fs::read(segment.expect("a journal that was written has a segment")).expect("it can be read")
}
