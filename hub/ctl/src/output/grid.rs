//! Rows under a head. In a pipe each row is one line, whatever its length. On a terminal that is too narrow, columns in which
//! nothing stands go first, then prose is wrapped within its column; when even that does not fit, each row is a paragraph of
//! titles and values. No id and no name is ever cut into pieces.

use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width, presets};

use super::fill::Fill;
use crate::visible::clean;

/// Columns between columns.
const GAP: usize = 2;
/// Prose in fewer columns than this is hard to read.
const PROSE_COLUMNS_MIN: usize = 20;

/// The text, without a line end. `prose` names the columns that may be wrapped; without a `width` nothing is.
#[must_use]
pub fn grid(head: &[&str], prose: &[&str], rows: Vec<Vec<String>>, width: Option<usize>) -> String {
    let rows: Vec<Vec<String>> = rows.into_iter().map(|row| row.iter().map(|cell| clean(cell)).collect()).collect();
    let Some(width) = width else { return lined(head, &rows).trim_fmt() };
    let whole = lined(head, &rows);
    if columns(&whole).iter().sum::<usize>() + GAP * head.len().saturating_sub(1) <= width {
        return whole.trim_fmt();
    }
    let kept: Vec<usize> = (0..head.len()).filter(|&at| rows.iter().any(|row| !row[at].is_empty())).collect();
    let head: Vec<&str> = kept.iter().map(|&at| head[at]).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| kept.iter().map(|&at| row[at].clone()).collect()).collect();
    wrapped(&head, prose, &rows, width).unwrap_or_else(|| paragraphs(&head, &rows, width))
}

fn lined(head: &[&str], rows: &[Vec<String>]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(head.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

fn columns(table: &Table) -> Vec<usize> {
    table.column_max_content_widths().into_iter().map(usize::from).collect()
}

/// With prose wrapped in what the other columns leave, if that is enough for its longest word.
fn wrapped(head: &[&str], prose: &[&str], rows: &[Vec<String>], width: usize) -> Option<String> {
    let mut table = lined(head, rows);
    let natural = columns(&table);
    let gaps = GAP * head.len().saturating_sub(1);
    if natural.iter().sum::<usize>() + gaps <= width {
        return Some(table.trim_fmt());
    }
    let may: Vec<usize> = (0..head.len()).filter(|&at| prose.contains(&head[at]) && natural[at] > PROSE_COLUMNS_MIN).collect();
    let fixed: usize = (0..head.len()).filter(|at| !may.contains(at)).map(|at| natural[at]).sum();
    let share = width.checked_sub(fixed + gaps)?.checked_div(may.len())?;
    let words = rows.iter().flat_map(|row| may.iter().flat_map(|&at| row[at].split(' ')));
    let longest = words.map(|word| word.chars().count()).max().unwrap_or(0);
    if share < longest.max(PROSE_COLUMNS_MIN) {
        return None;
    }
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(u16::try_from(width + GAP).unwrap_or(u16::MAX));
    for (at, column) in table.column_iter_mut().enumerate() {
        let columns = if may.contains(&at) { natural[at].min(share) } else { natural[at] };
        column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(u16::try_from(columns + GAP).unwrap_or(u16::MAX))));
    }
    Some(table.trim_fmt())
}

fn paragraphs(head: &[&str], rows: &[Vec<String>], width: usize) -> String {
    let paragraph = |row: &Vec<String>| {
        let mut fill = Fill::new(width);
        for (title, cell) in head.iter().zip(row).filter(|(_, cell)| !cell.is_empty()) {
            fill.field(format!("{title} {cell}").trim_start());
        }
        fill.end()
    };
    rows.iter().map(paragraph).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: [&str; 4] = ["NODE", "STATE", "NOTE", "REASON"];

    fn shown(node: &str, reason: &str, width: Option<usize>) -> String {
        grid(&HEAD, &["REASON"], vec![vec![node.into(), "validating".into(), String::new(), reason.into()]], width)
    }

    #[test]
    fn in_a_pipe_a_row_is_one_line_whatever_its_length() {
        let text = shown("n1", &"two witnesses ".repeat(40), None);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.lines().all(|line| line == line.trim_end()));
    }

    #[test]
    fn prose_is_wrapped_and_names_stay_whole() {
        let name = "n".repeat(30);
        let text = shown(&name, &"two kinds of witness ".repeat(5), Some(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.starts_with("NODE") && text.contains(&name) && !text.contains("NOTE"), "{text}");
    }

    #[test]
    fn what_fits_in_no_table_is_a_paragraph_with_every_title() {
        let name = "n".repeat(53);
        let text = shown(&name, &"two kinds of witness ".repeat(5), Some(60));
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        assert!(text.starts_with(&format!("NODE {name}\n  STATE validating")), "{text}");
    }

    #[test]
    fn empty_columns_go_before_a_table_does() {
        let head = ["CLUSTER", "A LONG TITLE OF NOTHING", "SEEN"];
        let text = grid(&head, &[], vec![vec!["alpha".into(), String::new(), "7s".into()]], Some(30));
        assert_eq!(text, "CLUSTER  SEEN\nalpha    7s");
        let text = grid(&head, &[], vec![vec!["alpha".into(), "x".into(), "7s".into()]], Some(40));
        assert_eq!(text, "CLUSTER  A LONG TITLE OF NOTHING  SEEN\nalpha    x                        7s");
    }

    #[test]
    fn a_word_longer_than_its_column_makes_paragraphs_and_is_not_cut() {
        let word = "W".repeat(45);
        let text = shown("n1", &format!("because {word} said so"), Some(60));
        assert!(text.contains(&word) && text.starts_with("NODE n1"), "{text}");
    }

    #[test]
    fn what_fits_is_the_same_as_in_a_pipe() {
        assert_eq!(shown("n1", "why", Some(60)), shown("n1", "why", None));
    }
}
