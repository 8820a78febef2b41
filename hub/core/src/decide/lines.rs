//! Faults that differ in nothing but their GPU are told in one line: `xid 31 on 8 GPUs`. Nothing here decides.

use super::judge::Judged;

/// One line about one fault, or about several of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) words: String,
    pub(super) would: Option<String>,
}

/// Lines in the order in which their first fault comes.
pub(super) fn lines<'a, 'f: 'a>(judged: impl Iterator<Item = &'a Judged<'f>>) -> Vec<Line> {
    let mut groups: Vec<Vec<&Judged<'f>>> = Vec::new();
    for one in judged {
        match groups.iter_mut().find(|group| alike(group[0], one)) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    groups.iter().map(|group| line(group)).collect()
}

/// Of one kind, with one outcome, for reasons that differ in their numbers alone.
fn alike(a: &Judged<'_>, b: &Judged<'_>) -> bool {
    let kind = |one: &Judged<'_>| (one.fault.class, one.fault.code.clone(), one.outcome, one.fault.gpu.is_some());
    let shape = |one: &Judged<'_>| one.reason.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
    kind(a) == kind(b) && a.fault.gpu.is_some() && shape(a) == shape(b)
}

fn line(group: &[&Judged<'_>]) -> Line {
    let first = group[0];
    let own = first.name();
    let name = match group.len() {
        1 => own.clone(),
        many => format!("{} {} on {many} GPUs", first.fault.class, first.fault.code),
    };
    let would = first.would.as_ref().map(|would| would.replace(&own, &name));
    Line { words: format!("{name}: {}", first.reason), would }
}
