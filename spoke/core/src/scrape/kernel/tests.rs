//! The collected real lines as one log, and the traps of the kernel log.

use proptest::prelude::*;

use super::*;

fn sample_lines() -> Vec<String> {
    let path = format!("{}/../../tests/data/samples/kernel-xid-lines.txt", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).map(str::to_owned).collect()
}

fn record(sequence: u64, text: &str) -> KmsgRecord {
    KmsgRecord { facility: 0, level: 3, sequence, monotonic_us: sequence * 10, text: text.to_owned() }
}

fn take_all(lines: &[String]) -> Vec<KernelEvent> {
    let mut log = Assembler::default();
    lines.iter().enumerate().flat_map(|(at, line)| log.take(&record(at as u64, line)).events).collect()
}

fn xid(line: &str) -> Xid {
    match parse_line(line) {
        Line::Xid(xid) => xid,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn the_sample_log_yields_each_event_once() {
    let lines = sample_lines();
    let told: Vec<_> = take_all(&lines)
        .iter()
        .map(|event| match event {
            KernelEvent::Xid(xid) => format!("{} {}", xid.slot, xid.code),
            KernelEvent::Sxid(sxid) => format!("{} sxid {} {:?} {:?}", sxid.slot, sxid.code, sxid.severity, sxid.link),
            KernelEvent::GpuLost(slot) => format!("{slot} lost"),
        })
        .collect();
    assert_eq!(
        told,
        [
            "0000:3b:00 79",
            "0000:01:00 31",
            "0000:cb:00 13",
            "0000:cb:00 109",
            "0000:9b:00 94",
            "0000:9b:00 119",
            "0000:dc:00 45",
            "0000:00:00 149",
            "0009:01:00 154",
            "0000:b3:00 lost",
            "0000:05:00 sxid 12028 Some(NonFatal) Some(32)",
            "0000:05:00 sxid 20034 Some(Fatal) Some(62)",
            "0000:06:00 sxid 20009 Some(NonFatal) Some(4)",
        ]
    );
}

#[test]
fn one_xid_13_of_three_lines_is_one_fault() {
    let lines: Vec<_> = sample_lines().into_iter().filter(|line| line.contains("): 13,")).collect();
    let mut log = Assembler::default();
    let taken: Vec<_> = lines.iter().enumerate().map(|(at, line)| log.take(&record(at as u64, line))).collect();
    assert_eq!(taken.iter().map(|taken| taken.events.len()).sum::<usize>(), 1);
    assert_eq!(taken.iter().map(|taken| taken.followers).sum::<u32>(), 2);
    let KernelEvent::Xid(first) = &taken[0].events[0] else { panic!() };
    assert_eq!(first.detail, XidDetail::Unit { gpc: 7, tpc: 7, sm: 0 });
}

#[test]
fn the_same_xid_later_is_an_event_of_its_own() {
    let mut log = Assembler::default();
    let mut line = record(0, "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.");
    assert_eq!(log.take(&line).events.len(), 1);
    line.sequence = 1;
    line.monotonic_us += GROUP_SPAN.as_micros() as u64 + 1;
    assert_eq!(log.take(&line).events.len(), 1);
}

#[test]
fn process_and_text_are_told_apart() {
    let table = [
        (
            "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            None,
            None,
            "GPU has fallen off the bus.",
        ),
        (
            "NVRM: Xid (PCI:0000:cb:00): 109, pid=1797828, name=pt_main_thread, Ch 00000008",
            Some(1797828),
            Some("pt_main_thread"),
            "Ch 00000008",
        ),
        ("NVRM: Xid (PCI:0000:cb:00.0): 43, pid=7, name=nvc:[driver], Ch 1", Some(7), Some("nvc:[driver]"), "Ch 1"),
        ("NVRM: Xid (PCI:0000:cb:00): 43, pid=7, name=train.3, Ch 1", Some(7), Some("train.3"), "Ch 1"),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", None, None, "Channel 00000001"),
        ("nvrm: xid (pci:0000:03:00): 31", None, None, ""),
        ("[  12.5] NVRM: Xid (PCI:0000:03:00): 31, pid=1", Some(1), None, ""),
    ];
    for (line, pid, process, text) in table {
        let got = xid(line);
        assert_eq!((got.pid, got.process.as_deref(), got.text.as_str()), (pid, process, text), "{line}");
    }
}

#[test]
fn xid_154_is_read_by_its_number() {
    let recovery = |line: &str| xid(line).detail;
    let head = "NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None)";
    assert_eq!(recovery(&format!("{head} to 0x4 (Drain and Reset)")), XidDetail::Recovery(RecoveryAction::DrainAndReset));
    assert_eq!(recovery(&format!("{head} to 0x2 (OS Reboot)")), XidDetail::Recovery(RecoveryAction::RebootNode));
    assert_eq!(recovery(&format!("{head} to 0x1f (Later)")), XidDetail::Recovery(RecoveryAction::Other(31)));
    assert_eq!(
        recovery("NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"),
        XidDetail::Recovery(RecoveryAction::None)
    );
    assert_eq!(recovery(head), XidDetail::None);
}

#[test]
fn a_reset_wanted_and_then_not_wanted_are_two_events() {
    let line = |from, to| format!("NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x{from} (x) to 0x{to} (y)");
    assert_eq!(take_all(&[line(0, 1), line(1, 0), line(1, 0)]).len(), 2);
}

#[test]
fn a_45_names_the_xid_that_caused_it() {
    assert_eq!(
        xid("NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149").detail,
        XidDetail::CausedBy(149)
    );
}

#[test]
fn a_burst_of_45_lines_is_one_event() {
    let lines: Vec<_> = (0..80).map(|ch| format!("NVRM: Xid (PCI:0000:dc:00): 45, pid=1, name=python3, Ch {ch:08}")).collect();
    assert_eq!(take_all(&lines).len(), 1);
}

#[test]
fn a_lost_gpu_is_told_in_one_line_or_three_or_one_record() {
    let slot = PciSlot::parse("0000:18:00").unwrap();
    let three = [
        "NVRM: The NVIDIA GPU 0000:18:00.0",
        "NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    ];
    let one_record = KmsgRecord::parse(format!("3,5,100,-;{}\n SUBSYSTEM=pci\n", three.join("\\x0a")).as_bytes()).unwrap();
    assert_eq!(Assembler::default().take(&one_record).events, [KernelEvent::GpuLost(slot)]);
    assert_eq!(take_all(&three.map(str::to_owned)), [KernelEvent::GpuLost(slot)]);
    assert_eq!(take_all(&["NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.".to_owned()]), [KernelEvent::GpuLost(slot)]);
    assert_eq!(take_all(&[three.join(" ").replace(" NVRM:", "")]), [KernelEvent::GpuLost(slot)]);
    assert_eq!(take_all(&[three[0].to_owned(), three[1].to_owned()]), []);
    assert_eq!(take_all(&[three[2].to_owned()]), []);
}

#[test]
fn an_sxid_without_a_severity_is_still_read() {
    let Line::Sxid(sxid) = parse_line("nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 26006, SOE HALTED") else { panic!() };
    assert_eq!((sxid.switch, sxid.code, sxid.severity, sxid.link), (0, 26006, None, None));
}

#[test]
fn lines_that_user_space_forges_are_refused_and_told() {
    let mut forged = record(1, "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.");
    forged.facility = 1;
    let taken = Assembler::default().take(&forged);
    assert_eq!((taken.events.len(), taken.forged), (0, true));
    forged.text = "systemd: started".to_owned();
    assert!(!Assembler::default().take(&forged).forged);
}

#[test]
fn an_xid_in_the_middle_of_a_line_is_no_xid() {
    for line in [
        "app: NVRM: Xid (PCI:0000:3b:00): 79",
        "NVRM: GPU at 0000:03:00: GPU-b850f46d",
        "NVRM: The NVIDIA probe routine failed for 1 device(s).",
        "NVRM: Xid (PCI:0000:3b:00): seventy",
        "NVRM: Xid (PCI:0000:3b:00): 79x",
        "NVRM: Xid",
        "NVRM: Xid (PCI:zz): 79",
        "NVRM:",
        "",
    ] {
        assert_eq!(parse_line(line), Line::Other, "{line}");
    }
}

#[test]
fn old_lines_of_the_ring_buffer_are_not_read_twice() {
    let line = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.";
    let mut log = Assembler::resume(Cursor::default(), "boot-a");
    assert_eq!(log.take(&record(7, line)).events.len(), 1);
    let cursor = log.cursor().clone();
    let mut again = Assembler::resume(cursor.clone(), "boot-a");
    let taken = again.take(&record(7, line));
    assert_eq!((taken.events.len(), taken.replayed), (0, true));
    assert_eq!(Assembler::resume(cursor, "boot-b").take(&record(7, line)).events.len(), 1);
}

#[test]
fn a_gap_in_the_sequence_is_reported_as_loss() {
    let mut log = Assembler::default();
    assert_eq!(log.take(&record(1000, "x")).lost_records, 0);
    assert_eq!(log.take(&record(1001, "x")).lost_records, 0);
    assert_eq!(log.take(&record(1005, "x")).lost_records, 3);
}

#[test]
fn a_record_of_dev_kmsg_is_read() {
    let got = KmsgRecord::parse(
        b"6,339,5140900,-,caller=T1;NVRM: loading \\xc3\\xa9 \\x5cx\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n",
    )
    .unwrap();
    assert_eq!(
        got,
        KmsgRecord { facility: 0, level: 6, sequence: 339, monotonic_us: 5_140_900, text: "NVRM: loading é \\x".to_owned() }
    );
    assert_eq!(KmsgRecord::parse(b"14,1,2,-;from user space\n").unwrap().facility, 1);
    for bytes in [b"".as_slice(), b"no prefix", b"6,x,1,-;t", b"6,1;t", b"\xff,1,1,-;t"] {
        assert_eq!(KmsgRecord::parse(bytes), Err(KmsgError::NoPrefix));
    }
    assert!(matches!(KmsgRecord::parse(&[b'1'; RECORD_BYTES_MAX + 1]), Err(KmsgError::TooLarge { .. })));
}

#[test]
fn a_flood_of_different_events_keeps_memory_bounded() {
    let lines: Vec<_> = (0..5000).map(|code| format!("NVRM: Xid (PCI:0000:dc:00): {code}, x")).collect();
    assert_eq!(take_all(&lines).len(), 5000);
}

proptest! {
    #[test]
    fn no_line_makes_it_panic(line in "(NVRM: )?(Xid|GPU|The NVIDIA GPU|SXid|fallen)?.{0,60}") {
        let _ = parse_line(&line);
    }

    #[test]
    fn no_xid_text_makes_it_panic(code in 0u32..200, text in ".{0,60}") {
        if let Line::Xid(Xid { detail: XidDetail::Nvlink5(event), .. }) = parse_line(&format!("NVRM: Xid (PCI:0000:03:00): {code}, {text} (0x1 0x2)")) {
            let _ = event.decode(149, None);
        }
    }

    #[test]
    fn no_bytes_make_a_record_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = KmsgRecord::parse(&bytes);
    }
}
