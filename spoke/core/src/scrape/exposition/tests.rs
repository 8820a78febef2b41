//! Claims about the text format as a whole; the law at the end is for any bytes.

use proptest::prelude::*;

use super::*;

fn read(page: &[u8]) -> (Vec<Row<'_>>, BadLines) {
    let mut rows = rows(page).unwrap();
    let list = rows.by_ref().collect();
    (list, rows.into_bad())
}

#[test]
fn names_labels_values_and_times_are_read() {
    let (rows, bad) = read(b"# HELP x y\n# TYPE x gauge\nx 1\nx{a=\"b\"} 2.5 1700000000000\n  y{}\t-3e2\r\n\r\nz {a=\"b\"} NaN\n");
    let got: Vec<_> = rows.iter().map(|row| (row.line, row.name, row.labels.raw(), row.timestamp_ms)).collect();
    assert_eq!(
        got,
        [(3, "x", "", None), (4, "x", "a=\"b\"", Some(1_700_000_000_000)), (5, "y", "", None), (7, "z", "a=\"b\"", None)]
    );
    assert_eq!((rows[0].value, rows[1].value, rows[2].value), (1.0, 2.5, -300.0));
    assert!(rows[3].value.is_nan());
    assert_eq!(bad.total(), 0);
}

#[test]
fn text_in_place_of_a_value_costs_only_its_row() {
    let (rows, bad) =
        read(b"x{gpu=\"0\"} 1\nx{gpu=\"1\"} ERROR - FAILED TO CONVERT TO STRING\nx{gpu=\"2\"} 3\nx{gpu=\"3\"} <<<NULL>>>\n");
    assert_eq!(rows.len(), 2);
    assert_eq!(bad.count(Reason::ValueNotNumber), 2);
    assert_eq!(bad.first()[0], BadLine { line: 2, reason: Reason::ValueNotNumber });
}

#[test]
fn every_kind_of_bad_line_is_named() {
    let long = [b"x{a=\"".as_slice(), &vec![b'z'; LINE_BYTES_MAX], b"\"} 1\n"].concat();
    let table: [(&[u8], Reason); 9] = [
        (b"x{a=\"\xff\"} 1\n", Reason::NotUtf8),
        (&long, Reason::LineTooLong),
        (b"x{a=\"b\"} 7", Reason::HalfLine),
        (b"<html> 1\n", Reason::BadName),
        (b"{a=\"b\"} 1\n", Reason::BadName),
        (b"x{a=\"b\" 1\n", Reason::LabelsUnclosed),
        (b"word\n", Reason::ValueMissing),
        (b"x{a=\"b\"}\n", Reason::ValueMissing),
        (b"x 1 soon\n", Reason::TimestampNotNumber),
    ];
    for (page, reason) in table {
        let (rows, bad) = read(page);
        assert_eq!((rows.len(), bad.count(reason), bad.total()), (0, 1, 1), "{reason:?}");
    }
}

#[test]
fn the_half_line_of_a_page_cut_off_is_not_a_reading() {
    let (rows, bad) = read(b"DCGM_FI_DEV_XID_ERRORS{gpu=\"0\"} 0\nDCGM_FI_DEV_XID_ERRORS{gpu=\"1\"} 7");
    assert_eq!((rows.len(), bad.count(Reason::HalfLine)), (1, 1));
    assert_eq!(read(b"x 1\n# half a com").1.total(), 0);
}

#[test]
fn an_empty_page_has_no_rows_and_no_errors() {
    for page in [b"".as_slice(), b"\n", b"\r\n \n", b"# EOF\n"] {
        let (rows, bad) = read(page);
        assert_eq!((rows.len(), bad.total()), (0, 0));
    }
}

#[test]
fn a_page_of_100_mb_is_refused_with_both_sizes() {
    let page = vec![b'x'; 100 * 1000 * 1000];
    let want = Error::PageTooLarge { bytes: 100_000_000, bytes_max: EXPOSITION_BYTES_MAX };
    assert_eq!(rows(&page).unwrap_err(), want);
    assert_eq!(want.to_string(), "page of 100000000 bytes is larger than 8388608");
}

#[test]
fn an_exemplar_is_never_taken_for_the_value() {
    let (rows, _) = read(b"x{a=\"b\"} 1 # {trace=\"c\"} 99 123\nx{a=\"issue # {5}\"} 2\n");
    assert_eq!((rows[0].value, rows[0].labels.raw()), (1.0, "a=\"b\""));
    assert_eq!((rows[1].value, rows[1].labels.get("a")), (2.0, Some("issue # {5}")));
}

#[test]
fn only_the_first_bad_lines_are_kept() {
    let (_, bad) = read(&b"word\n".repeat(1000));
    assert_eq!((bad.total(), bad.first().len()), (1000, BAD_LINES_KEPT));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(page in proptest::collection::vec(any::<u8>(), 0..600)) {
        for row in rows(&page).unwrap() {
            row.labels.iter().for_each(|label| { let _ = label.map(|l| l.text().len()); });
        }
    }

    #[test]
    fn no_likely_text_makes_it_panic(page in "[a-z{}\"\\\\,= #\n0-9.]{0,300}") {
        for row in rows(page.as_bytes()).unwrap() {
            row.labels.iter().for_each(|label| { let _ = label.map(|l| l.text().len()); });
        }
    }

    #[test]
    fn good_lines_survive_between_garbage(garbage in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 1..20)) {
        let mut page = Vec::new();
        for (at, mut bytes) in garbage.iter().cloned().enumerate() {
            bytes.retain(|&b| b != b'\n');
            page.extend_from_slice(&bytes);
            page.extend_from_slice(format!("\nsurvivor{{at=\"{at}\"}} {at}\n").as_bytes());
        }
        let found = rows(&page).unwrap().filter(|row| row.name == "survivor").count();
        prop_assert_eq!(found, garbage.len());
    }
}
