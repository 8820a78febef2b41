//! Any bytes as what a kernel's log says, line by line: records of /dev/kmsg, or bare lines, which are then the kernel's own.
//! Proves: what user space wrote makes no event, whatever it looks like; the cursor only rises, and whoever goes on from it is
//! told nothing a second time; no record makes more events than it has lines; and the faults that come of them are ones that the
//! hub believes, from a memory that survives a restart.

use gpuheal_spoke_core::{
    derive::{Held, Settings},
    scrape::kernel::{Assembler, Cursor, KmsgRecord, Line, parse_line},
};

use crate::{
    believable::{START, assert_believed, assert_remembered, cluster, node},
    samples::sample,
};

pub(crate) fn run(log: &[u8]) {
    let records: Vec<KmsgRecord> = log.split(|&byte| byte == b'\n').enumerate().map(|(at, line)| record(at, line)).collect();
    let mut assembler = Assembler::resume(Cursor::default(), "boot-1");
    let (mut held, settings, node) = (Held::new(cluster()), Settings::default(), node());
    for record in &records {
        let before = assembler.cursor().next_sequence;
        let taken = assembler.take(record);
        let after = assembler.cursor().next_sequence;
        assert!(after >= before && (taken.replayed || after > record.sequence || after == u64::MAX), "the cursor only rises");
        assert!(record.is_kernel() || taken.events.is_empty() && taken.followers == 0, "user space makes no event");
        assert!(!record.is_kernel() || !taken.forged, "the kernel forges nothing");
        assert!(taken.events.len() + taken.followers as usize <= record.text.lines().count(), "a line is one event at most");
        assert!(!taken.replayed || taken.events.is_empty(), "what was read says nothing new");
        assert_believed(&held.take_kernel(&node, "kernel log", &taken.events, &settings, START));
    }
    assert_remembered(&held);
    assert_believed(&held.again(&node.uid, |_| true));
    told_once(&records, assembler.cursor());
    lines_stand_alone(&records);
}

/// A record as it is, or a bare line as one that the kernel wrote, a millisecond after the one before.
fn record(at: usize, line: &[u8]) -> KmsgRecord {
    KmsgRecord::parse(line).unwrap_or_else(|_| KmsgRecord {
        facility: 0,
        level: 4,
        sequence: at as u64,
        monotonic_us: at as u64 * 1000,
        text: String::from_utf8_lossy(line).into_owned(),
    })
}

fn told_once(records: &[KmsgRecord], cursor: &Cursor) {
    let mut resumed = Assembler::resume(cursor.clone(), "boot-1");
    for record in records.iter().filter(|record| record.sequence < u64::MAX) {
        let taken = resumed.take(record);
        assert!(taken.replayed && taken.events.is_empty(), "told a second time: {record:?}");
    }
}

/// Blanks around a line and the time that dmesg puts in front say nothing.
fn lines_stand_alone(records: &[KmsgRecord]) {
    for line in records.iter().flat_map(|record| record.text.lines()) {
        let read = parse_line(line);
        assert_eq!(parse_line(&format!("  {line}\t")), read);
        if read != Line::Other && !line.trim_start().starts_with('[') {
            assert_eq!(parse_line(&format!("[171167.621162] {line}")), read);
        }
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let whole = sample("kernel-xid-lines.txt");
    let lines: Vec<&[u8]> = whole.split(|&byte| byte == b'\n').filter(|line| !line.is_empty() && !line.starts_with(b"#")).collect();
    let as_record = |(at, line): (usize, &&[u8])| [format!("4,{at},{at}000,-;").as_bytes(), line].concat();
    let kmsg: Vec<Vec<u8>> = lines.iter().enumerate().map(as_record).collect();
    let forged = b"12,7,7000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n SUBSYSTEM=pci";
    let escaped =
        b"4,8,8000,-,caller=T1;NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: (PCI ID: 10de:26b5) installed in this system has\
                    \\x0aNVRM: fallen off the bus and is not responding to commands.";
    let own = [lines.join(&b'\n'), kmsg.join(&b'\n'), forged.to_vec(), escaped.to_vec()];
    own.into_iter().chain(lines.iter().map(|line| line.to_vec())).collect()
}
