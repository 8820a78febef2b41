//! What a program prints at its end, in the formats that every program of ours has by `-o`.

use std::{
    io::{ErrorKind, Write as _},
    sync::OnceLock,
};

use anyhow::{Result, bail};
use clap::ValueEnum;
use serde::Serialize;

/// How results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Columns for people.
    Table,
    /// For scripts.
    Json,
    /// The same as YAML.
    Yaml,
}

impl Format {
    /// The value in this format; nothing for a table, which each program draws by itself.
    pub fn text(self, value: &impl Serialize) -> Result<Option<String>> {
        Ok(match self {
            Self::Table => None,
            Self::Json => Some(serde_json::to_string_pretty(value)? + "\n"),
            Self::Yaml => Some(serde_saphyr::to_string(value)?),
        })
    }
}

/// Why something could not be written to standard output, first of all of it.
static FAILED: OnceLock<String> = OnceLock::new();

/// Writes to standard output; a reader who has seen enough, as `head` has, is no failure. What else goes wrong is told at
/// the end, by [`written`].
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush())
        && error.kind() != ErrorKind::BrokenPipe
    {
        FAILED.get_or_init(|| error.to_string());
    }
}

/// Whether all that was printed was written.
pub fn written() -> Result<()> {
    match FAILED.get() {
        None => Ok(()),
        Some(why) => bail!("cannot write to standard output: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_yaml_say_the_same_and_a_table_is_left_to_its_program() {
        let value = serde_json::json!([["kubesim", {"faults": 3, "taint_ms": [1.5, 2.5]}]]);
        let json: serde_json::Value = serde_json::from_str(&Format::Json.text(&value).unwrap().unwrap()).unwrap();
        let yaml: serde_json::Value = serde_saphyr::from_str(&Format::Yaml.text(&value).unwrap().unwrap()).unwrap();
        assert_eq!((&json, &yaml), (&value, &value));
        assert_eq!(Format::Table.text(&value).unwrap(), None);
    }
}
