//! The journal on a real disk: crashes at any byte, resumption, trimming, limits.

use std::{fs, path::PathBuf, time::Duration};

use gpuheal_proto::{
    fault::{FaultClass, NodeRef, Onset, Witness},
    ids::{ClusterId, FaultKey, NodeName, NodeUid},
    time::Timestamp,
};

use super::*;

mod full;
mod laws;
mod stream;

fn fault(code: &str) -> Fault {
    let uid = NodeUid::parse("u1").unwrap();
    Fault {
        key: FaultKey::derive(&ClusterId::parse("c1").unwrap(), &uid, None, "xid", code),
        node: NodeRef { name: NodeName::parse("n1").unwrap(), uid, boot_id: String::new() },
        gpu: None,
        class: FaultClass::Xid,
        code: code.to_owned(),
        onset: Onset::Edge,
        witness: Witness::ExporterGauge,
        observed_at: Timestamp::from_unix_ms(1),
        value: 79.0,
        threshold: 0.0,
        count: 1,
        source: String::new(),
        detail: String::new(),
        workload: String::new(),
    }
}

fn codes(chunk: &Chunk) -> Vec<String> {
    let Chunk::Faults { faults, .. } = chunk else { return Vec::new() };
    faults.iter().map(|fault| v1::Fault::decode(fault.clone()).unwrap().code).collect()
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
    paths.sort();
    paths
}

/// Opens, waiting for the thread before to have let go of the lock.
async fn open(dir: &Path, limits: Limits) -> (Journal, BTreeMap<String, Bytes>) {
    let opened = async {
        loop {
            match Journal::open(dir, limits) {
                Err(Error::InUse) => tokio::time::sleep(Duration::from_millis(2)).await,
                other => return other.unwrap(),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(120), opened).await.expect("the thread before lets go of the lock")
}

async fn reopen(dir: &Path) -> (Journal, BTreeMap<String, Bytes>) {
    open(dir, Limits::default()).await
}

/// Every fault of a stream read by a fresh reader, with the gaps in it.
fn all(disk: &Disk, stream: &StreamId) -> (Vec<String>, Vec<(u64, u64)>) {
    let (mut found, mut gaps, mut seq) = (Vec::new(), Vec::new(), 1);
    loop {
        match disk.read(stream, seq).unwrap() {
            Chunk::End => return (found, gaps),
            Chunk::Gap { from_seq, to_seq, .. } => {
                gaps.push((from_seq, to_seq));
                seq = to_seq + 1;
            }
            chunk @ Chunk::Faults { .. } => {
                let batch = codes(&chunk);
                seq += batch.len() as u64;
                found.extend(batch);
            }
        }
    }
}

#[tokio::test]
async fn numbers_start_at_one_and_have_no_holes() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = reopen(dir.path()).await;
    assert_eq!(journal.append(&[fault("79"), fault("48")], vec![]).await.unwrap(), 1);
    assert_eq!(journal.append(&[fault("62")], vec![]).await.unwrap(), 3);
    let head = journal.head().borrow().clone();
    assert_eq!(head.next_seq, 4);
    assert_eq!(codes(&journal.read(&head.stream, 2).await.unwrap()), ["48", "62"]);
    assert_eq!(journal.read(&head.stream, 4).await.unwrap(), Chunk::End);
}

#[tokio::test]
async fn a_journal_closed_cleanly_goes_on_in_its_stream_with_what_was_held() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, held) = reopen(dir.path()).await;
    assert!(held.is_empty());
    journal.append(&[fault("79")], vec![("n1".into(), Bytes::from_static(b"held"))]).await.unwrap();
    let before = journal.head().borrow().clone();
    journal.close().await.unwrap();
    assert_eq!(journal.append(&[fault("48")], vec![]).await, Err(Error::Closed));
    let (journal, held) = reopen(dir.path()).await;
    assert_eq!(*journal.head().borrow(), before);
    assert_eq!(held["n1"], "held");
    assert_eq!(codes(&journal.read(&before.stream, 1).await.unwrap()), ["79"]);
}

/// Failure table, row 2.
#[tokio::test]
async fn a_journal_not_closed_goes_on_in_a_new_stream_and_keeps_the_old_faults() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = reopen(dir.path()).await;
    journal.append(&[fault("79")], vec![("n1".into(), Bytes::from_static(b"held"))]).await.unwrap();
    let old = journal.head().borrow().stream.clone();
    drop(journal);
    let (journal, held) = reopen(dir.path()).await;
    let new = journal.head().borrow().clone();
    assert_ne!(new.stream, old);
    assert_eq!(new.next_seq, 1);
    assert_eq!(held["n1"], "held");
    assert_eq!(journal.heads().await.unwrap(), [(old.clone(), 2), (new.stream, 1)]);
    assert_eq!(codes(&journal.read(&old, 1).await.unwrap()), ["79"]);
}

#[tokio::test]
async fn a_second_start_after_a_clean_one_that_crashed_is_a_new_stream() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = reopen(dir.path()).await;
    let first = journal.head().borrow().stream.clone();
    journal.close().await.unwrap();
    // Opened and killed before anything was written.
    let (journal, _) = reopen(dir.path()).await;
    assert_eq!(journal.head().borrow().stream, first);
    drop(journal);
    let (journal, _) = reopen(dir.path()).await;
    assert_ne!(journal.head().borrow().stream, first);
}

#[tokio::test]
async fn one_that_dies_again_and_again_and_finds_nothing_pushes_out_nothing_that_waits() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = reopen(dir.path()).await;
    journal.append(&[fault("79")], vec![("n1".into(), Bytes::from_static(b"held"))]).await.unwrap();
    let waits = journal.head().borrow().stream.clone();
    drop(journal);
    for _ in 0..20 {
        let (journal, held) = reopen(dir.path()).await;
        assert_eq!(held["n1"], "held");
        drop(journal);
    }
    let (journal, _) = reopen(dir.path()).await;
    assert_eq!(codes(&journal.read(&waits, 1).await.unwrap()), ["79"]);
    assert_eq!(journal.heads().await.unwrap().len(), 2);
}

/// Three records, the last two of which may be hurt; and the bytes of the file.
async fn three_records() -> (tempfile::TempDir, PathBuf, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = reopen(dir.path()).await;
    for code in ["79", "48", "62"] {
        journal.append(&[fault(code)], vec![(code.into(), Bytes::from_static(b"x"))]).await.unwrap();
    }
    journal.close().await.unwrap();
    let path = segments(dir.path()).remove(0);
    let bytes = fs::read(&path).unwrap();
    (dir, path, bytes)
}

#[tokio::test]
async fn a_journal_torn_at_any_byte_keeps_every_whole_record_and_takes_a_new_stream() {
    let (_dir, path, bytes) = three_records().await;
    let name = path.file_name().unwrap();
    for cut in 0..bytes.len() {
        let torn = tempfile::tempdir().unwrap();
        fs::write(torn.path().join(name), &bytes[..cut]).unwrap();
        let disk = Disk::open(torn.path(), Limits::default()).unwrap();
        let heads = disk.heads();
        let (new, old) = heads.split_last().unwrap();
        assert!(!name.to_str().unwrap().contains(new.0.as_str()), "cut at {cut}: not closed, so a new stream");
        // One of which nothing is left is no stream any more.
        let (found, gaps) = old.first().map_or_else(Default::default, |(old, _)| all(&disk, old));
        assert_eq!(found, ["79", "48", "62"][..found.len()], "cut at {cut}");
        assert_eq!(old.first().map_or(1, |(_, next)| *next), found.len() as u64 + 1, "cut at {cut}");
        assert!(gaps.is_empty(), "cut at {cut}");
        for code in &found {
            assert!(disk.held().contains_key(code), "cut at {cut}: {code} is there without what was held");
        }
        assert_eq!(disk.held().len(), found.len(), "cut at {cut}");
    }
}

/// Failure table, row 24.
#[tokio::test]
async fn a_byte_flipped_anywhere_costs_one_record_that_is_told_as_a_gap() {
    let (_dir, path, bytes) = three_records().await;
    let name = path.file_name().unwrap();
    for at in 0..bytes.len() {
        let hurt = tempfile::tempdir().unwrap();
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x01;
        fs::write(hurt.path().join(name), &flipped).unwrap();
        let disk = Disk::open(hurt.path(), Limits::default()).unwrap();
        let heads = disk.heads();
        assert_eq!(heads.len(), 2, "flip at {at}: damaged, so a new stream");
        let (found, gaps) = all(&disk, &heads[0].0);
        let lost: u64 = gaps.iter().map(|(from, to)| to - from + 1).sum();
        assert!(found.len() >= 2, "flip at {at}: {found:?}");
        assert_eq!(
            found.len() as u64 + lost,
            3,
            "flip at {at}: each number is its fault or told, the last by the close behind it: {found:?} {gaps:?}"
        );
    }
}

/// Failure table, row 24.
#[tokio::test]
async fn a_byte_flipped_in_the_last_record_of_one_that_was_not_closed_has_what_stands_told_again() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = reopen(dir.path()).await;
    journal.append(&[fault("79")], vec![]).await.unwrap();
    let before = fs::read(segments(dir.path()).remove(0)).unwrap().len();
    journal.append(&[fault("48")], vec![]).await.unwrap();
    drop(journal);
    let path = segments(dir.path()).remove(0);
    let (name, bytes) = (path.file_name().unwrap(), fs::read(&path).unwrap());
    for at in 0..bytes.len() {
        let hurt = tempfile::tempdir().unwrap();
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x01;
        fs::write(hurt.path().join(name), &flipped).unwrap();
        let disk = Disk::open(hurt.path(), Limits::default()).unwrap();
        let (found, gaps) = all(&disk, &disk.heads()[0].0);
        let told = found.len() as u64 + gaps.iter().map(|(from, to)| to - from + 1).sum::<u64>();
        assert_eq!(told == 2, at < before, "flip at {at}: {found:?} {gaps:?}");
        assert_eq!(disk.lost_untold(), at >= before, "flip at {at}: no number tells of the last");
    }
    let whole = tempfile::tempdir().unwrap();
    fs::write(whole.path().join(name), &bytes).unwrap();
    assert!(!Disk::open(whole.path(), Limits::default()).unwrap().lost_untold(), "a crash alone has lost nothing");
}

/// Failure table, row 2.
#[tokio::test]
async fn however_often_it_dies_before_a_hub_answers_nothing_that_waits_is_lost() {
    const DEATHS: usize = 12;
    let dir = tempfile::tempdir().unwrap();
    let mut given = Vec::new();
    for n in 0..DEATHS {
        let (journal, _) = reopen(dir.path()).await;
        journal.append(&[fault(&n.to_string())], vec![]).await.unwrap();
        given.push((journal.head().borrow().stream.clone(), n.to_string()));
    }
    let (journal, _) = reopen(dir.path()).await;
    assert_eq!(*journal.lost().borrow(), 0, "nothing is lost");
    let heads = journal.heads().await.unwrap();
    let outbox = Mutex::new(crate::send::Outbox::resume(&heads, &[], 1024));
    let mut sent = Vec::new();
    while let Some(message) = crate::send::next(&outbox, &journal).await.unwrap() {
        let v1::attach_request::Message::FaultBatch(batch) = message else { panic!("lost: {message:?}") };
        sent.extend(batch.faults.into_iter().map(|fault| (StreamId::parse(&batch.stream_id).unwrap(), fault.code)));
    }
    assert_eq!(sent, given, "oldest first");
}

/// Failure table, row 24.
#[test]
fn a_segment_that_is_gone_is_told_as_a_gap_and_the_ack_past_it_says_that_faults_were_lost() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { segment_bytes: 1, ..Limits::default() };
    let now = Duration::from_secs(1000);
    let mut disk = Disk::open(dir.path(), limits).unwrap();
    for code in ["79", "48", "62"] {
        disk.append(vec![v1::Fault::from(&fault(code)).encode_to_vec().into()], vec![], now).unwrap();
    }
    let stream = disk.head().0;
    drop(disk);
    let holds = |path: &PathBuf, code: &[u8]| fs::read(path).unwrap().windows(4).any(|four| four == [b"\x2a\x02", code].concat());
    let middle: Vec<_> = segments(dir.path()).into_iter().filter(|path| holds(path, b"48")).collect();
    assert_eq!(middle.len(), 1, "each fault has a segment of its own");
    fs::remove_file(&middle[0]).unwrap();
    let mut disk = Disk::open(dir.path(), limits).unwrap();
    assert_eq!(all(&disk, &stream), (vec!["79".to_owned(), "62".to_owned()], vec![(2, 2)]));
    assert!(!disk.acked(&stream, 1, now));
    assert!(disk.acked(&stream, 2, now), "what still stands is told again once the hub knows");
}

#[tokio::test]
async fn a_full_journal_says_so_and_takes_more_once_the_hub_has_acked() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { bytes_max: 8 << 10, segment_bytes: 1 << 10, keep_acked: Duration::from_secs(600) };
    let (journal, _) = open(dir.path(), limits).await;
    let mut taken = 0;
    let full = loop {
        match journal.append(&[fault("79")], vec![]).await {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::Full { bytes_max: 8192, .. }), "{full}");
    assert!(taken > 20, "{taken}");
    let head = journal.head().borrow().clone();
    assert_eq!(head.next_seq, taken + 1, "a refused append takes no number");
    journal.acked(head.stream.clone(), taken).await;
    assert_eq!(journal.append(&[fault("48")], vec![]).await.unwrap(), taken + 1);
    let depth = journal.depth();
    assert_eq!(depth.borrow().unacked, 1);
}

/// Failure table, row 18.
#[tokio::test]
async fn acked_faults_stay_until_their_time_and_what_is_held_outlives_them() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { bytes_max: 1 << 20, segment_bytes: 512, keep_acked: Duration::from_secs(600) };
    let mut disk = Disk::open(dir.path(), limits).unwrap();
    let now = Duration::from_secs(1000);
    disk.append(vec![Bytes::from_static(&[7; 400])], vec![("n1".into(), Bytes::from_static(b"first"))], now).unwrap();
    for _ in 0..5 {
        disk.append(vec![Bytes::from_static(&[7; 400])], vec![], now).unwrap();
    }
    let stream = disk.head().0;
    let before = segments(dir.path()).len();
    disk.acked(&stream, 6, now);
    assert_eq!(segments(dir.path()).len(), before, "ten minutes are not over");
    disk.acked(&stream, 6, now + Duration::from_secs(600));
    assert_eq!(segments(dir.path()).len(), 1);
    drop(disk);
    let disk = Disk::open(dir.path(), limits).unwrap();
    assert_eq!(disk.held()["n1"], "first");
}

#[tokio::test]
async fn what_is_held_alone_never_fills_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { bytes_max: 16 << 10, segment_bytes: 1 << 10, keep_acked: Duration::from_secs(600) };
    let (journal, _) = open(dir.path(), limits).await;
    journal.append(&[fault("79")], vec![]).await.unwrap();
    for n in 0..200 {
        journal.hold(vec![("n1".into(), Bytes::from(format!("{n:0>200}")))]).await;
    }
    assert_eq!(journal.append(&[fault("48")], vec![]).await, Ok(2));
    let stream = journal.head().borrow().stream.clone();
    drop(journal);
    let (journal, held) = open(dir.path(), limits).await;
    assert_eq!(held["n1"], format!("{:0>200}", 199));
    assert_eq!(codes(&journal.read(&stream, 1).await.unwrap()), ["79"]);
    assert_eq!(codes(&journal.read(&stream, 2).await.unwrap()), ["48"]);
}

#[tokio::test]
async fn two_processes_never_share_a_journal() {
    let dir = tempfile::tempdir().unwrap();
    let _first = reopen(dir.path()).await;
    assert!(matches!(Journal::open(dir.path(), Limits::default()), Err(Error::InUse)));
}

#[tokio::test]
async fn many_appends_at_once_share_syncs_and_keep_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = reopen(dir.path()).await;
    let batch: Vec<_> = (0..300).map(|_| fault("31")).collect();
    let appends = (0..20).map(|_| journal.append(&batch, vec![]));
    let mut firsts = futures::future::join_all(appends).await.into_iter().map(Result::unwrap).collect::<Vec<_>>();
    firsts.sort_unstable();
    assert_eq!(firsts, (0..20).map(|n| n * 300 + 1).collect::<Vec<_>>());
    let stream = journal.head().borrow().stream.clone();
    let mut seq = 1;
    while let Chunk::Faults { first_seq, faults } = journal.read(&stream, seq).await.unwrap() {
        assert_eq!(first_seq, seq);
        assert!(faults.len() <= limits::BATCH_FAULTS_MAX);
        seq += faults.len() as u64;
    }
    assert_eq!(seq, 6001);
}
