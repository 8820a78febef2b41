//! Reading a section of a document: each key asked for by its name and type, every mistake noted with its place and path,
//! what nobody asked for reported at the end. A mistake never stops the reading: all of them are told at once.

use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

use super::{
    Problem,
    tree::{Key, Place, Tree, Value},
};

/// No problem after this many: a wrong file is wrong on every line.
const PROBLEMS_MAX: usize = 200;

/// Notes of what is wrong.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<Problem>);

impl Problems {
    pub(super) fn add(&mut self, place: Place, path: &str, message: impl Into<String>) {
        if self.0.len() < PROBLEMS_MAX {
            self.0.push(Problem::new(place, path, message));
        }
    }

    /// Nothing wrong: the value. Otherwise all that is, by place.
    pub(super) fn settle<T>(mut self, value: T) -> Result<T, Vec<Problem>> {
        if self.0.is_empty() {
            return Ok(value);
        }
        self.0.sort_by_key(|problem| (problem.line, problem.column));
        Err(self.0)
    }
}

/// A map of the document under reading.
pub(super) struct Section<'t> {
    pub(super) path: String,
    pub(super) place: Place,
    fields: BTreeMap<&'t str, (&'t Key, &'t Tree)>,
    asked: Vec<&'static str>,
}

impl<'t> Section<'t> {
    /// The tree as a map; nothing, when it is none, and the problem is noted.
    pub(super) fn open(tree: &'t Tree, path: &str, problems: &mut Problems) -> Option<Self> {
        let Value::Map(entries) = &tree.value else {
            problems.add(tree.place, path, format!("a map is wanted here, not {}", kind(&tree.value)));
            return None;
        };
        let mut fields = BTreeMap::new();
        for (key, value) in entries {
            if fields.insert(key.text.as_str(), (key, value)).is_some() {
                problems.add(key.place, &join(path, &key.text), "this key is here twice");
            }
        }
        Some(Self { path: path.to_owned(), place: tree.place, fields, asked: Vec::new() })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.fields.contains_key(name)
    }

    pub(super) fn path_of(&self, name: &str) -> String {
        join(&self.path, name)
    }

    pub(super) fn place_of(&self, name: &str) -> Place {
        self.fields.get(name).map_or(self.place, |(_, tree)| tree.place)
    }

    /// The value of a key, if it is there and not null.
    pub(super) fn get(&mut self, name: &'static str) -> Option<&'t Tree> {
        self.asked.push(name);
        self.fields.get(name).map(|(_, tree)| *tree).filter(|tree| tree.value != Value::Null)
    }

    pub(super) fn section(&mut self, name: &'static str, problems: &mut Problems) -> Option<Self> {
        let tree = self.get(name)?;
        Self::open(tree, &self.path_of(name), problems)
    }

    /// Every key of a map whose keys are free.
    pub(super) fn entries(self) -> Vec<(&'t Key, &'t Tree, String)> {
        let path = self.path;
        self.fields.into_values().map(|(key, tree)| (key, tree, join(&path, &key.text))).collect()
    }

    pub(super) fn text(&mut self, name: &'static str, problems: &mut Problems) -> Option<String> {
        let tree = self.get(name)?;
        scalar_text(tree, &self.path_of(name), problems)
    }

    pub(super) fn flag(&mut self, name: &'static str, problems: &mut Problems) -> Option<bool> {
        let tree = self.get(name)?;
        match &tree.value {
            Value::Flag(flag) => Some(*flag),
            other => {
                problems.add(tree.place, &self.path_of(name), format!("true or false is wanted, not {}", kind(other)));
                None
            }
        }
    }

    pub(super) fn number(&mut self, name: &'static str, range: RangeInclusive<u32>, problems: &mut Problems) -> Option<u32> {
        let tree = self.get(name)?;
        let number = match &tree.value {
            Value::Whole(number) => u32::try_from(*number).ok().filter(|number| range.contains(number)),
            _ => None,
        };
        if number.is_none() {
            let wanted = format!("a whole number from {} to {} is wanted, not {}", range.start(), range.end(), kind(&tree.value));
            problems.add(tree.place, &self.path_of(name), wanted);
        }
        number
    }

    /// A number with a fraction, inside the range.
    pub(super) fn real(&mut self, name: &'static str, range: RangeInclusive<f64>, problems: &mut Problems) -> Option<f64> {
        let tree = self.get(name)?;
        let number = match &tree.value {
            Value::Whole(number) => i32::try_from(*number).ok().map(f64::from),
            Value::Real(number) => Some(*number),
            _ => None,
        };
        let number = number.filter(|number| range.contains(number));
        if number.is_none() {
            let wanted = format!("a number from {} to {} is wanted, not {}", range.start(), range.end(), kind(&tree.value));
            problems.add(tree.place, &self.path_of(name), wanted);
        }
        number
    }

    /// A span like `15m`, `1h30m` or `500ms`.
    pub(super) fn span(
        &mut self,
        name: &'static str,
        range: RangeInclusive<Duration>,
        problems: &mut Problems,
    ) -> Option<Duration> {
        let tree = self.get(name)?;
        let span = match &tree.value {
            Value::Text(text) => span(text),
            _ => None,
        };
        let Some(span) = span else {
            let wanted = format!("a span like 15m, 90s or 1h30m is wanted, not {}", kind(&tree.value));
            problems.add(tree.place, &self.path_of(name), wanted);
            return None;
        };
        if !range.contains(&span) {
            let wanted = format!("{span:?} is outside {:?} to {:?}", range.start(), range.end());
            problems.add(tree.place, &self.path_of(name), wanted);
            return None;
        }
        Some(span)
    }

    /// One of a closed set of words.
    pub(super) fn word<T: Copy + std::fmt::Display>(
        &mut self,
        name: &'static str,
        all: &[T],
        problems: &mut Problems,
    ) -> Option<T> {
        let tree = self.get(name)?;
        let found = match &tree.value {
            Value::Text(text) => all.iter().copied().find(|word| word.to_string() == *text),
            _ => None,
        };
        if found.is_none() {
            let words: Vec<String> = all.iter().map(ToString::to_string).collect();
            let wanted = format!("one of {} is wanted, not {}", words.join(", "), kind(&tree.value));
            problems.add(tree.place, &self.path_of(name), wanted);
        }
        found
    }

    /// A list of texts, at most `max` long.
    pub(super) fn texts(&mut self, name: &'static str, max: usize, problems: &mut Problems) -> Option<Vec<String>> {
        let tree = self.get(name)?;
        let path = self.path_of(name);
        let Value::List(items) = &tree.value else {
            problems.add(tree.place, &path, format!("a list is wanted, not {}", kind(&tree.value)));
            return None;
        };
        if items.len() > max {
            problems.add(tree.place, &path, format!("{} items, {max} are allowed", items.len()));
            return None;
        }
        let text = |(index, item): (usize, &Tree)| scalar_text(item, &format!("{path}[{index}]"), problems);
        Some(items.iter().enumerate().filter_map(text).collect())
    }

    /// The same, each text of at most so many bytes: they travel in every command.
    pub(super) fn short_texts(
        &mut self,
        name: &'static str,
        (max, bytes_max): (usize, usize),
        problems: &mut Problems,
    ) -> Option<Vec<String>> {
        let (place, path) = (self.place_of(name), self.path_of(name));
        let texts = self.texts(name, max, problems)?;
        for (index, text) in texts.iter().enumerate().filter(|(_, text)| text.len() > bytes_max) {
            problems.add(place, &format!("{path}[{index}]"), format!("{} bytes, {bytes_max} are allowed", text.len()));
        }
        Some(texts)
    }

    /// A map of text to text, at most `max` long.
    pub(super) fn labels(&mut self, name: &'static str, max: usize, problems: &mut Problems) -> Option<BTreeMap<String, String>> {
        let section = self.section(name, problems)?;
        let (place, path) = (section.place, section.path.clone());
        let entries = section.entries();
        if entries.len() > max {
            problems.add(place, &path, format!("{} entries, {max} are allowed", entries.len()));
            return None;
        }
        let label = |(key, tree, path): (&Key, &Tree, String)| Some((key.text.clone(), scalar_text(tree, &path, problems)?));
        Some(entries.into_iter().filter_map(label).collect())
    }

    /// Refuses a key that people may expect here, with a better word than that it is unknown.
    pub(super) fn refuse(&mut self, name: &'static str, why: &str, problems: &mut Problems) {
        if let Some((key, _)) = self.fields.remove(name) {
            problems.add(key.place, &join(&self.path, name), why);
        }
    }

    /// Reports each key that nobody asked for.
    pub(super) fn close(self, problems: &mut Problems) {
        for (name, (key, _)) in &self.fields {
            if !self.asked.contains(name) {
                let mut known = self.asked.clone();
                known.sort_unstable();
                known.dedup();
                problems.add(key.place, &join(&self.path, name), format!("unknown key; known here: {}", known.join(", ")));
            }
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

pub(super) fn scalar_text(tree: &Tree, path: &str, problems: &mut Problems) -> Option<String> {
    match &tree.value {
        Value::Text(text) if text.len() <= TEXT_BYTES_MAX => Some(text.clone()),
        Value::Text(text) => {
            problems.add(tree.place, path, format!("a text of {} bytes, {TEXT_BYTES_MAX} are allowed", text.len()));
            None
        }
        other => {
            problems.add(tree.place, path, format!("a text is wanted, not {}", kind(other)));
            None
        }
    }
}

/// Longest text in a policy: label values end at 63, names of metrics and conditions well before this.
const TEXT_BYTES_MAX: usize = 256;

fn kind(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Flag(flag) => flag.to_string(),
        Value::Whole(number) => number.to_string(),
        Value::Real(number) => number.to_string(),
        Value::Text(text) => format!("{:?}", gpuheal_proto::bytes_text::clip(text, 60)),
        Value::List(_) => "a list".to_owned(),
        Value::Map(_) => "a map".to_owned(),
    }
}

/// `15m`, `1h30m`, `90s`, `500ms`: whole numbers with a unit, the units falling.
pub(super) fn span(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total_ms: u64 = 0;
    let mut last = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest.get(..digits)?.parse().ok()?;
        rest = rest.get(digits..)?;
        let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        let unit_ms = match rest.get(..letters)? {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        rest = rest.get(letters..)?;
        if unit_ms >= last {
            return None;
        }
        last = unit_ms;
        total_ms = total_ms.checked_add(number.checked_mul(unit_ms)?)?;
    }
    (last != u64::MAX).then(|| Duration::from_millis(total_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_with_their_units_and_never_without() {
        for (text, secs) in [("15m", 900), ("1h30m", 5400), ("90s", 90), ("2d", 172_800), ("0s", 0)] {
            assert_eq!(span(text), Some(Duration::from_secs(secs)), "{text}");
        }
        assert_eq!(span("500ms"), Some(Duration::from_millis(500)));
        for text in ["", "15", "m", "15x", "1m1h", "1m1m", "-5m", "5 m", "99999999999999999999s", "9999999999999999d"] {
            assert_eq!(span(text), None, "{text}");
        }
    }
}
