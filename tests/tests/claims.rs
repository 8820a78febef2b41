//! docs/claims.md names tests that exist: a claim whose test was renamed or deleted is no claim. Each row of the failure
//! table in docs/link.md names the code that holds it and tests that name the row, in a comment of their own:
//! `Failure table, row 12.`

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests is in the project")
}

/// The rows of the failure table: 1 to 40, the nineteenth in two parts.
fn rows() -> Vec<String> {
    (1..=40).flat_map(|row| if row == 19 { vec!["19a".to_owned(), "19b".to_owned()] } else { vec![row.to_string()] }).collect()
}

fn sources(dir: &Path, each: &mut impl FnMut(&str)) {
    for entry in fs::read_dir(dir).expect("a source folder is readable").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, each);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            each(&fs::read_to_string(&path).expect("source is text"));
        }
    }
}

fn all_sources(mut each: impl FnMut(&str)) {
    for folder in ["proto", "hub", "spoke", "tests"] {
        sources(&root().join(folder), &mut each);
    }
}

fn name(rest: &str) -> Option<&str> {
    rest.split(['(', '<', ' ']).next()
}

/// The name of the function that begins in a line, as all of ours do.
fn function(line: &str) -> Option<&str> {
    let (before, rest) = line.split_once("fn ")?;
    before.split_whitespace().all(|word| word == "async" || word.starts_with("pub")).then(|| name(rest)).flatten()
}

/// Functions that a test runner runs: those under `#[test]` or `#[tokio::test]`, and those that a macro makes a test of. A
/// helper of the same name, or a test whose attribute was lost, proves nothing.
fn functions() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    all_sources(|text| {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        // The contract suites' macros are given their claims by name, one in a line, and call each.
        let given: BTreeSet<&str> = lines.iter().filter_map(|line| line.strip_suffix(',')).collect();
        let mut test = false;
        for line in &lines {
            test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            let Some(name) = function(line) else { continue };
            if std::mem::take(&mut test) || given.contains(name) {
                found.insert(name.to_owned());
            }
        }
        // Of a macro that makes one test of each line `name: Mutation within seeds`, or `at seed`.
        let made = lines.iter().filter(|line| line.contains(" within ") || line.contains(" at "));
        let made = made.filter_map(|line| line.split_once(": ")).map(|(name, _)| name);
        found.extend(made.filter(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')).map(str::to_owned));
    });
    found
}

/// Tests that name their rows.
fn marked() -> BTreeMap<String, BTreeSet<String>> {
    let mut marked = BTreeMap::<String, BTreeSet<String>>::new();
    all_sources(|text| {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for (at, line) in lines.iter().enumerate() {
            let Some(named) = line.strip_prefix("/// Failure table, row") else { continue };
            let test = lines[at..].iter().find_map(|line| line.split_once("fn ").and_then(|(_, rest)| name(rest)));
            let test = test.expect("a test follows").to_owned();
            let numbers =
                named.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| word.starts_with(|c: char| c.is_ascii_digit()));
            for row in numbers {
                marked.entry(row.to_owned()).or_default().insert(test.clone());
            }
        }
    });
    marked
}

fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// A source without the lines that are comments: a guard that is only spoken of holds nothing.
fn code(source: &str) -> String {
    let speaks = |line: &&str| ["//", "--"].iter().any(|mark| line.trim_start().starts_with(mark));
    source.lines().filter(|line| !speaks(line)).collect::<Vec<_>>().join("\n")
}

/// A file of the project, and no word in one.
fn path(word: &str) -> bool {
    word.contains('/') && word.contains('.')
}

/// Guards of which the last column does not say what became of the tests without them: nobody has taken them out.
fn untried<'a>(guard: &'a str, tried: &str) -> Vec<&'a str> {
    let tried = quoted(tried);
    quoted(guard).into_iter().filter(|word| !path(word) && !tried.contains(word)).collect()
}

/// What is wrong with the words for the code that holds a row: each is a path, or stands in the file of the path before it.
fn astray(guard: &str) -> Vec<String> {
    let (mut text, mut wrong) = (String::new(), Vec::new());
    for word in quoted(guard) {
        if path(word) {
            text = code(&fs::read_to_string(root().join(word)).unwrap_or_default());
            if text.is_empty() {
                wrong.push(format!("there is no {word}"));
            }
        } else if !text.contains(word) {
            wrong.push(format!("`{word}` is not where it is said to be"));
        }
    }
    wrong
}

#[test]
fn a_function_that_no_runner_runs_is_no_test() {
    let found = functions();
    assert!(found.contains("a_function_that_no_runner_runs_is_no_test"));
    assert!(!found.contains("all_sources") && !found.contains("functions"));
}

#[test]
fn a_guard_that_the_last_column_does_not_name_is_found() {
    let guard = "`hub/src/a.rs` `taken`, `left`; `spoke/src/b.rs` `c.state = 1`";
    assert_eq!(untried(guard, "`a_test_fails` (`taken`; then `c.state = 1`)"), ["left"]);
    assert_eq!(untried(guard, "—"), ["taken", "left", "c.state = 1"]);
    assert!(untried("", "—").is_empty());
}

#[test]
fn every_test_that_the_docs_name_exists() {
    let found = functions();
    let claims = fs::read_to_string(root().join("docs/claims.md")).expect("docs/claims.md is there");
    let named: Vec<&str> =
        claims.split('`').skip(1).step_by(2).filter(|name| name.len() > 15 && !name.contains(['/', '.', ' '])).collect();
    assert!(named.len() > 40, "docs/claims.md names only {} tests", named.len());
    let missing: Vec<&&str> = named.iter().filter(|name| !found.contains(**name)).collect();
    assert!(missing.is_empty(), "docs/claims.md names tests that do not exist: {missing:?}");
}

#[test]
fn every_row_of_the_failure_table_names_its_guard_and_a_test_that_names_the_row() {
    let (found, mut marked, mut wrong) = (functions(), marked(), Vec::new());
    let page = fs::read_to_string(root().join("docs/link.md")).expect("docs/link.md is there");
    let table = page.split("## Failure table").nth(1).expect("the page has the table");
    let table = table.split("\n## ").next().unwrap_or_default();
    let table: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| #"))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    assert_eq!(table.iter().map(|cells| cells[0]).collect::<Vec<_>>(), rows());
    for cells in table {
        let [row, _, _, guard, tests, tried] = cells[..] else { panic!("a row has six cells: {cells:?}") };
        let here = marked.remove(row).unwrap_or_default();
        let named: BTreeSet<&str> = quoted(tests).into_iter().collect();
        wrong.extend(astray(guard).into_iter().map(|what| format!("row {row}: {what}")));
        wrong.extend(untried(guard, tried).into_iter().map(|word| format!("row {row}: nobody has taken `{word}` out")));
        let words = quoted(guard);
        let claims = quoted(tried).into_iter().filter(|word| !words.contains(word));
        let missing = named.iter().copied().chain(claims).filter(|test| test.len() > 15 && !found.contains(*test));
        wrong.extend(missing.map(|test| format!("row {row}: there is no {test}")));
        wrong.extend(
            here.iter().filter(|test| !named.contains(test.as_str())).map(|test| format!("row {row} does not name {test}")),
        );
        let built = !tests.starts_with("not built yet: ");
        if built && (here.is_empty() || quoted(guard).len() < 2) {
            wrong.push(format!("row {row} has no guard, or no test that names it"));
        }
    }
    wrong.extend(marked.keys().map(|row| format!("there is no row {row}")));
    // Elsewhere on the page only what is as long as a claim is taken for one.
    let claims = quoted(&page).into_iter().filter(|word| word.matches('_').count() > 4 && !word.starts_with("gpu_selfhealing"));
    wrong.extend(claims.filter(|word| !found.contains(*word)).map(|word| format!("there is no {word}")));
    assert!(wrong.is_empty(), "{wrong:#?}");
}
