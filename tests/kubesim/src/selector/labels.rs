//! Pure: label selectors: `a=b,c!=d,e in (f,g),h notin (i),j,!k`, and `matchLabels`/`matchExpressions`.

use serde_json::Value;

use crate::obj;
use crate::store::Stored;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Term {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
    /// No selector at all selects nothing.
    Nothing,
}

/// A conjunction of terms; empty matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LabelSelector(Vec<Term>);

/// The selector could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unable to parse requirement: {0}")]
pub(crate) struct BadSelector(String);

impl LabelSelector {
    pub(crate) fn parse(text: &str) -> Result<Self, BadSelector> {
        let terms = split_outside_parentheses(text).into_iter().map(str::trim).filter(|term| !term.is_empty());
        terms.map(parse_term).collect::<Result<_, _>>().map(Self)
    }

    /// From a `metav1.LabelSelector` in an object: an empty one selects everything, a missing one nothing.
    pub(crate) fn of_object(selector: &Value) -> Result<Self, BadSelector> {
        if selector.is_null() {
            return Ok(Self(vec![Term::Nothing]));
        }
        let mut terms: Vec<Term> =
            obj::entries(selector, "/matchLabels").map(|(key, value)| Term::In(key.into(), vec![value.into()])).collect();
        for expression in obj::list(selector, "/matchExpressions") {
            let key = obj::text(expression, "/key").to_owned();
            let values = || obj::list(expression, "/values").iter().filter_map(Value::as_str).map(str::to_owned).collect();
            terms.push(match obj::text(expression, "/operator") {
                "In" => Term::In(key, values()),
                "NotIn" => Term::NotIn(key, values()),
                "Exists" => Term::Exists(key),
                "DoesNotExist" => Term::Absent(key),
                other => return Err(BadSelector(format!("{other:?} is not a valid label selector operator"))),
            });
        }
        Ok(Self(terms))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn matches(&self, stored: &Stored) -> bool {
        self.matches_labels(|key| stored.label(key))
    }

    pub(crate) fn matches_object(&self, object: &Value) -> bool {
        let labels = object.pointer("/metadata/labels");
        self.matches_labels(|key| labels.and_then(|labels| labels.get(key)).and_then(Value::as_str))
    }

    pub(crate) fn matches_labels<'l>(&self, label: impl Fn(&str) -> Option<&'l str>) -> bool {
        self.0.iter().all(|term| match term {
            Term::In(key, values) => label(key).is_some_and(|value| values.iter().any(|v| v == value)),
            Term::NotIn(key, values) => label(key).is_none_or(|value| values.iter().all(|v| v != value)),
            Term::Exists(key) => label(key).is_some(),
            Term::Absent(key) => label(key).is_none(),
            Term::Nothing => false,
        })
    }
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let mut depth = 0u32;
    text.split(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .collect()
}

fn parse_term(term: &str) -> Result<Term, BadSelector> {
    let key = |text: &str| {
        let text = text.trim();
        let plain = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/'));
        if plain { Ok(text.to_owned()) } else { Err(BadSelector(format!("invalid label key {text:?}"))) }
    };
    if let Some(absent) = term.strip_prefix('!') {
        return Ok(Term::Absent(key(absent)?));
    }
    if let Some((before, values)) = term.strip_suffix(')').and_then(|term| term.split_once('(')) {
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        let before = before.trim();
        return match before.rsplit_once(char::is_whitespace) {
            Some((name, "in")) => Ok(Term::In(key(name)?, values)),
            Some((name, "notin")) => Ok(Term::NotIn(key(name)?, values)),
            _ => Err(BadSelector(term.to_owned())),
        };
    }
    let one = |value: &str| vec![value.trim().to_owned()];
    if let Some((name, value)) = term.split_once("!=") {
        return Ok(Term::NotIn(key(name)?, one(value)));
    }
    if let Some((name, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        return Ok(Term::In(key(name)?, one(value)));
    }
    Ok(Term::Exists(key(term)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(selector: &str, labels: &[(&str, &str)]) -> bool {
        let selector = LabelSelector::parse(selector).unwrap();
        selector.matches_labels(|key| labels.iter().find(|(k, _)| *k == key).map(|(_, v)| *v))
    }

    #[test]
    fn every_operator_of_label_selectors_selects() {
        let labels = [("app", "dcgm"), ("tier", "gpu")];
        for yes in [
            "",
            "app=dcgm",
            "app==dcgm",
            "app!=x",
            "none!=x",
            "app in (a, dcgm)",
            "app notin (a,b)",
            "none notin (a)",
            "app",
            "!none",
            "app=dcgm,tier in (gpu,cpu),!none",
        ] {
            assert!(matches(yes, &labels), "{yes}");
        }
        for no in ["app=x", "app!=dcgm", "app in (a,b)", "app notin (dcgm)", "none", "!app", "none in (a)", "app=dcgm,tier=cpu"] {
            assert!(!matches(no, &labels), "{no}");
        }
    }

    #[test]
    fn a_selector_that_cannot_be_read_is_refused() {
        for bad in ["=x", "a of (b)", "a b"] {
            assert!(LabelSelector::parse(bad).is_err(), "{bad}");
        }
    }
}
