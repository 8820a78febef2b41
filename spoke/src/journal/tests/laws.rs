//! Laws of the journal under random histories: appends, acks, compaction by want of room, clean ends, crashes, damage. Each
//! number that was given is the fault that it was given to, or in a gap; no number is two things; what may be P0 is only ever
//! lost to damage or after its ack.

use proptest::prelude::*;

use super::{
    super::{
        check_records, check_segment,
        record::{Held, Kind, Lost, Record},
    },
    *,
};

const LIMITS: Limits = Limits { bytes_max: 6 << 10, segment_bytes: 700, keep_acked: Duration::from_secs(20) };
const NOW: Duration = Duration::from_secs(1000);

#[derive(Clone, Debug)]
enum Step {
    /// So many faults of a kind in one record; the bool: with something held.
    Append(u8, u8, bool),
    /// The hub has this part of what it has not, in 16ths, of the n-th stream; time passes.
    Ack(u8, u64, u64),
    CloseAndOpen,
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1_u8..5, 0_u8..3, any::<bool>()).prop_map(|(count, kind, held)| Step::Append(count, kind, held)),
        2 => (0_u8..8, 0_u64..17, 0_u64..30).prop_map(|(stream, part, wait)| Step::Ack(stream, part, wait)),
        1 => Just(Step::CloseAndOpen),
        1 => Just(Step::Crash),
    ]
}

/// What was given to each number, in words of its own, and how far the hub has it.
#[derive(Default)]
struct Given {
    faults: BTreeMap<String, Vec<Bytes>>,
    acked: BTreeMap<String, u64>,
}

impl Given {
    fn fault(&self, kind: u8) -> Bytes {
        let nth = self.faults.values().map(Vec::len).sum::<usize>();
        let (class, code) = [(FaultClass::Xid, "31"), (FaultClass::Alert, "GpuOdd"), (FaultClass::Xid, "79")][usize::from(kind)];
        let fault = Fault { class, detail: format!("the {nth}th"), ..fault(code) };
        v1::Fault::from(&fault).encode_to_vec().into()
    }
}

/// Every number of every stream that the journal has, from what the hub lacks on. `may_lose`: damage was done.
fn invariant_each_number_is_its_fault_or_in_a_gap(disk: &Disk, given: &Given, may_lose: bool) -> Result<(), TestCaseError> {
    for (stream, next_seq) in disk.heads() {
        let none = Vec::new();
        let faults = given.faults.get(stream.as_str()).unwrap_or(&none);
        prop_assert!(next_seq <= faults.len() as u64 + 1, "no number that was not given");
        prop_assert!(may_lose || next_seq == faults.len() as u64 + 1, "no number is forgotten");
        let mut seq = given.acked.get(stream.as_str()).copied().unwrap_or(0) + 1;
        while seq < next_seq {
            match disk.read(&stream, seq).unwrap() {
                Chunk::End => prop_assert!(false, "number {} of {} is nowhere", seq, next_seq),
                Chunk::Faults { first_seq, faults: read } => {
                    prop_assert_eq!(first_seq, seq);
                    prop_assert!(!read.is_empty());
                    for fault in read {
                        prop_assert_eq!(&fault, &faults[usize::try_from(seq).unwrap() - 1], "number {} is what it was", seq);
                        seq += 1;
                    }
                }
                Chunk::Gap { from_seq, to_seq, counts_by_class } => {
                    prop_assert_eq!(from_seq, seq);
                    prop_assert!((seq..next_seq).contains(&to_seq));
                    let of_class = |class: v1::FaultClass| {
                        (from_seq..=to_seq)
                            .map(|seq| v1::Fault::decode(faults[usize::try_from(seq).unwrap() - 1].clone()).unwrap())
                            .filter(|fault| fault.class() == class)
                            .map(|fault| fault.code)
                            .collect::<Vec<_>>()
                    };
                    let (xids, alerts) = (of_class(v1::FaultClass::Xid), of_class(v1::FaultClass::Alert));
                    if !may_lose {
                        prop_assert!(xids.iter().all(|code| code == "31"), "what may be P0 is kept: {:?}", xids);
                        let counts = [("xid", xids.len()), ("alert", alerts.len())];
                        let counts: BTreeMap<_, _> =
                            counts.into_iter().filter(|(_, n)| *n > 0).map(|(class, n)| (class.to_owned(), n as u64)).collect();
                        prop_assert_eq!(&counts_by_class, &counts, "each is counted");
                    }
                    seq = to_seq + 1;
                }
            }
        }
    }
    Ok(())
}

fn play(dir: &Path, steps: &[Step]) -> Result<Given, TestCaseError> {
    let mut given = Given::default();
    let mut disk = Some(Disk::open(dir, LIMITS).unwrap());
    let mut now = NOW;
    for step in steps {
        let here = disk.as_mut().unwrap();
        match *step {
            Step::Append(count, kind, held) => {
                let stream = here.head().0.to_string();
                let mut faults = Vec::new();
                for _ in 0..count {
                    let fault = given.fault(kind);
                    given.faults.entry(stream.clone()).or_default().push(fault.clone());
                    faults.push(fault);
                }
                let held = if held { vec![("n1".to_owned(), Bytes::from(vec![kind; 300]))] } else { Vec::new() };
                let first = given.faults[&stream].len() as u64 + 1 - u64::from(count);
                match here.append(faults, held, now) {
                    Ok(seq) => prop_assert_eq!(seq, first),
                    Err(Error::Full { .. }) => {
                        let known = given.faults.get_mut(&stream).unwrap();
                        known.truncate(known.len() - usize::from(count));
                    }
                    Err(error) => prop_assert!(false, "{}", error),
                }
            }
            Step::Ack(nth, part, wait) => {
                now += Duration::from_secs(wait);
                let heads = here.heads();
                let (stream, next_seq) = heads[usize::from(nth) % heads.len()].clone();
                let acked = given.acked.entry(stream.to_string()).or_default();
                *acked += (next_seq - 1).saturating_sub(*acked) * part / 16;
                here.acked(&stream, *acked, now);
            }
            Step::CloseAndOpen => {
                here.close().unwrap();
                drop(disk.take());
                disk = Some(Disk::open(dir, LIMITS).unwrap());
            }
            Step::Crash => {
                drop(disk.take());
                disk = Some(Disk::open(dir, LIMITS).unwrap());
            }
        }
        invariant_each_number_is_its_fault_or_in_a_gap(disk.as_ref().unwrap(), &given, false)?;
    }
    Ok(given)
}

proptest! {
    // Each case is some hundred writes that are synced.
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_number_is_its_fault_or_in_a_told_gap_whatever_happens(steps in prop::collection::vec(step(), 1..50)) {
        let dir = tempfile::tempdir().unwrap();
        play(dir.path(), &steps)?;
    }

    #[test]
    fn damage_anywhere_is_told_and_changes_no_other_number(
        steps in prop::collection::vec(step(), 1..40),
        file in any::<prop::sample::Index>(),
        place in any::<prop::sample::Index>(),
        cut in any::<bool>(),
        bit in 0_u8..8,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let given = play(dir.path(), &steps)?;
        let paths = segments(dir.path());
        let path = file.get(&paths);
        let mut bytes = fs::read(path).unwrap();
        let at = place.index(bytes.len());
        if cut {
            bytes.truncate(at);
        } else {
            bytes[at] ^= 1 << bit;
        }
        fs::write(path, &bytes).unwrap();
        let disk = Disk::open(dir.path(), LIMITS).unwrap();
        invariant_each_number_is_its_fault_or_in_a_gap(&disk, &given, true)?;
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_break_the_laws_of_a_segment(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_segment(&bytes);
        check_records(&bytes);
    }

    #[test]
    fn no_records_break_the_laws_of_a_segment(records in prop::collection::vec(any_record(), 0..12)) {
        let bytes: Vec<u8> = records
            .iter()
            .flat_map(|record| {
                let payload = record.encode_to_vec();
                [&u16::try_from(payload.len()).unwrap().to_le_bytes(), payload.as_slice()].concat()
            })
            .collect();
        check_records(&bytes);
    }
}

/// Any kind at any number, near the start or near the end of what can be counted.
fn any_record() -> impl Strategy<Value = Record> {
    let number = prop_oneof![4 => 0_u64..12, 1 => u64::MAX - 12..=u64::MAX];
    let code = prop_oneof![Just("31"), Just("79")];
    let lost = (0_i32..20, prop_oneof![4 => 0_u64..6, 1 => any::<u64>()]).prop_map(|(class, count)| Lost { class, count });
    let parts = (prop::collection::vec(code, 0..5), prop::collection::vec(lost, 0..3));
    // Now and then a record has what its kind has not: then it is none.
    let odd = prop::bool::weighted(0.1);
    (0_u32..7, number, parts, odd).prop_map(|(kind, first_seq, (codes, lost), odd)| {
        let faults = codes.iter().filter(|_| odd || kind == Kind::FAULTS);
        Record {
            kind,
            first_seq,
            faults: faults.map(|code| v1::Fault::from(&fault(code)).encode_to_vec().into()).collect(),
            held: vec![Held { key: "n1".into(), value: Bytes::from_static(b"x") }],
            lost: if odd || kind == Kind::GAP { lost } else { Vec::new() },
            ..Record::default()
        }
    })
}

/// Records at odd places: twice, out of order, overlapping, with numbers at the end of what can be counted.
#[test]
fn records_at_odd_numbers_break_no_law() {
    let fault = |code: &str| Bytes::from(v1::Fault::from(&fault(code)).encode_to_vec());
    let faults = |first_seq, codes: &[&str]| Record {
        kind: Kind::FAULTS,
        first_seq,
        faults: codes.iter().map(|code| fault(code)).collect(),
        ..Record::default()
    };
    let gap = |first_seq, count| Record { kind: Kind::GAP, first_seq, lost: vec![Lost { class: 1, count }], ..Record::default() };
    let held = |first_seq| Record { kind: Kind::HELD, first_seq, ..Record::default() };
    for records in [
        vec![faults(1, &["79", "31"]), faults(1, &["48"]), faults(2, &["62", "63", "31"])],
        vec![faults(5, &["79"]), faults(1, &["31"]), gap(2, 9)],
        vec![gap(1, 3), faults(2, &["79", "79", "79", "31"]), held(40)],
        vec![faults(0, &["79"]), held(u64::MAX), gap(u64::MAX - 3, 3)],
        vec![gap(1, u64::MAX - 1), gap(7, u64::MAX)],
        vec![
            Record { lost: vec![Lost { class: 77, count: 5 }], ..faults(3, &["79"]) },
            Record { kind: 99, first_seq: 12, ..faults(0, &[]) },
        ],
    ] {
        let bytes: Vec<u8> = records.iter().flat_map(Record::frame).collect();
        check_segment(&bytes);
        for cut in (0..bytes.len()).step_by(7) {
            check_segment(&bytes[..cut]);
        }
    }
}
