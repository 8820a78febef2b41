//! A journal without room: what it gives up, in which order, and that it says so.

use super::*;

/// What stands for P2, P1 and P0: an application's page fault, an alert nobody ranked, a GPU off the bus.
fn minor() -> Fault {
    fault("31")
}

fn major() -> Fault {
    Fault { class: FaultClass::Alert, ..fault("GpuOdd") }
}

fn kept() -> Fault {
    fault("79")
}

fn encoded(fault: &Fault) -> Bytes {
    v1::Fault::from(fault).encode_to_vec().into()
}

const SMALL: Limits = Limits { bytes_max: 16 << 10, segment_bytes: 1 << 10, keep_acked: Duration::from_secs(600) };
const NOW: Duration = Duration::from_secs(1000);

/// Appends until it is refused, at most `most` times; how often it was taken.
fn fill(disk: &mut Disk, fault: &Fault, most: u64) -> u64 {
    (0..most).find(|_| disk.append(vec![encoded(fault)], vec![], NOW).is_err()).unwrap_or(most)
}

/// Numbers of the faults that are there by code, and how many are told as given up by class.
fn told(disk: &Disk) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
    let stream = disk.head().0;
    let (mut there, mut given_up, mut seq) = (BTreeMap::new(), BTreeMap::new(), 1);
    loop {
        match disk.read(&stream, seq).unwrap() {
            Chunk::End => return (there, given_up),
            chunk @ Chunk::Faults { .. } => {
                for code in codes(&chunk) {
                    *there.entry(code).or_default() += 1;
                    seq += 1;
                }
            }
            Chunk::Gap { from_seq, to_seq, counts_by_class } => {
                assert_eq!(from_seq, seq);
                assert_eq!(counts_by_class.values().sum::<u64>(), to_seq - from_seq + 1, "each is told by its class");
                for (class, count) in counts_by_class {
                    *given_up.entry(class).or_default() += count;
                }
                seq = to_seq + 1;
            }
        }
    }
}

#[test]
fn a_full_journal_gives_up_p2_then_p1_and_a_gap_counts_them_by_class() {
    let dir = tempfile::tempdir().unwrap();
    let mut disk = Disk::open(dir.path(), SMALL).unwrap();
    let first = [minor(), major(), kept()].map(|fault| fill(&mut disk, &fault, 50));
    assert_eq!(first, [50, 50, 50], "there is room by giving up");
    let (there, given_up) = told(&disk);
    assert_eq!((there.get("79"), there.get("GpuOdd")), (Some(&50), Some(&50)), "{there:?} {given_up:?}");
    assert!(given_up.contains_key("xid") && given_up.len() == 1, "P2 first: {given_up:?}");
    let more = fill(&mut disk, &kept(), 1000);
    assert!(more > 20 && more < 1000, "until only P0 is left: {more}");
    let (there, given_up) = told(&disk);
    assert_eq!(there["79"], 50 + more, "P0 is never given up");
    assert!(given_up.contains_key("alert"), "{given_up:?}");
    assert_eq!(disk.given_up(), &given_up, "as it is counted for people");
    let numbers = there.values().chain(given_up.values()).sum::<u64>();
    assert_eq!(disk.head().1, 150 + more + 1, "a refused append takes no number");
    assert_eq!(numbers, 150 + more, "each number is a fault or in a gap");
    assert!(disk.bytes() <= SMALL.bytes_max + SMALL.segment_bytes, "{}", disk.bytes());
    // And so after a crash.
    let stream = disk.head().0;
    let before = all(&disk, &stream);
    drop(disk);
    assert_eq!(all(&Disk::open(dir.path(), SMALL).unwrap(), &stream), before);
}

#[test]
fn nothing_is_given_up_for_what_is_worth_less() {
    let dir = tempfile::tempdir().unwrap();
    let mut disk = Disk::open(dir.path(), SMALL).unwrap();
    let taken = fill(&mut disk, &major(), 1000);
    // The same rank makes room for the new ones: the newest say how things are.
    assert_eq!(taken, 1000);
    let (there, given_up) = told(&disk);
    assert_eq!(there["GpuOdd"] + given_up["alert"], 1000);
    fill(&mut disk, &minor(), 1000);
    let (after, gone) = told(&disk);
    assert_eq!((after["GpuOdd"], gone["alert"]), (there["GpuOdd"], given_up["alert"]), "P2 displaces no P1");
    fill(&mut disk, &kept(), 1000);
    for fault in [minor(), major(), kept()] {
        assert!(matches!(disk.append(vec![encoded(&fault)], vec![], NOW), Err(Error::Full { .. })), "{fault:?}");
    }
}

#[tokio::test]
async fn a_full_journal_lets_what_is_held_alone_go_and_answers_that_all_before_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path(), SMALL).await;
    while journal.append(&[kept()], vec![]).await.is_ok() {}
    let head = journal.head().borrow().clone();
    let held = vec![("n1".into(), Bytes::from(vec![7; 4096]))];
    assert_eq!(journal.append(&[], held).await, Ok(head.next_seq), "a webhook that says nothing new is not refused");
    drop(journal);
    let (_, held) = open(dir.path(), SMALL).await;
    assert!(held.is_empty());
}

#[test]
fn the_ack_that_passes_the_last_lost_number_says_so_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut disk = Disk::open(dir.path(), SMALL).unwrap();
    fill(&mut disk, &minor(), 30);
    let stream = disk.head().0;
    assert!(!disk.acked(&stream, 1, NOW), "nothing is lost");
    fill(&mut disk, &kept(), 1000);
    let (mut seq, mut last) = (1, 0);
    loop {
        match disk.read(&stream, seq).unwrap() {
            Chunk::End => break,
            Chunk::Gap { to_seq, .. } => (seq, last) = (to_seq + 1, to_seq),
            Chunk::Faults { faults, .. } => seq += faults.len() as u64,
        }
    }
    assert!(last > 1);
    assert!(!disk.acked(&stream, last - 1, NOW));
    assert!(disk.acked(&stream, last, NOW));
    assert!(!disk.acked(&stream, last, NOW), "an ack again moves nothing");
    assert!(!disk.acked(&stream, last + 1, NOW));
    // The next process knows of no ack: what it is told at its Welcome counts anew, which tells once too often and never too seldom.
    drop(disk);
    let mut disk = Disk::open(dir.path(), SMALL).unwrap();
    assert!(disk.acked(&stream, last, NOW));
}

#[test]
fn much_that_is_held_does_not_begin_a_segment_with_each_append() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { bytes_max: 1 << 20, ..SMALL };
    let mut disk = Disk::open(dir.path(), limits).unwrap();
    disk.append(vec![], vec![("n1".into(), Bytes::from(vec![7; 32 << 10]))], NOW).unwrap();
    assert_eq!(fill(&mut disk, &kept(), 40), 40);
    assert_eq!(
        segments(dir.path()).len(),
        1,
        "40 faults are less than what their segment began with, and the one before held none"
    );
}

#[test]
fn a_segment_that_was_being_written_anew_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let mut disk = Disk::open(dir.path(), SMALL).unwrap();
    fill(&mut disk, &kept(), 10);
    let stream = disk.head().0;
    let before = all(&disk, &stream);
    drop(disk);
    let beside = segments(dir.path())[0].with_extension("tmp");
    fs::write(&beside, b"GPHJ half").unwrap();
    let disk = Disk::open(dir.path(), SMALL).unwrap();
    assert_eq!(all(&disk, &stream), before);
    assert!(!beside.exists());
}
