//! How far an incident's commands have got: folded from their states, never from words.

use gpuheal_proto::{command::CommandState, time::Timestamp, words::Level};

use super::drains::Drains;
use crate::snapshot::{KnownCommand, Snapshot};

/// Where one kind of step stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not tried, or all that was tried came to nothing.
    None,
    /// Under way.
    Pending,
    /// Done.
    Done,
    /// Tried and not done.
    Failed(String),
    /// Nobody knows.
    Unknown(String),
}

/// The fold.
#[derive(Clone, Debug)]
pub(super) struct Progress<'a> {
    pub(super) mark: Stage,
    /// What was drained, and how far that got.
    pub(super) drains: Drains<'a>,
    pub(super) release: Stage,
    /// The command that marked, or is about to.
    pub(super) marking: Option<&'a KnownCommand>,
    /// Harmful commands that are not over.
    pub(super) harmful_open: Vec<&'a KnownCommand>,
    /// The restart of workloads that is not over. It does nothing to the node, so that no plan waits for it; only another person's does.
    pub(super) restart_open: Option<&'a KnownCommand>,
    /// The worst level that an Event was posted for, or is about to be.
    pub(super) told: Option<Level>,
    /// Commands whose Event came to nothing, oldest first.
    untold: Vec<&'a KnownCommand>,
    /// The last harmful command, if it came to nothing.
    pub(super) came_to_nothing: Option<&'a KnownCommand>,
    /// The last release, if it came to nothing or failed.
    pub(super) release_failed: Option<&'a KnownCommand>,
    /// When the first effect was heard of.
    pub(super) first_effect_at: Option<Timestamp>,
    /// How many harmful commands failed before any effect.
    failed_void: u32,
}

/// A command that failed before any effect (an API server away) is planned again, so often; then a person must look.
const FAILED_MAX: u32 = 3;

/// Folds the commands, oldest first.
pub(super) fn fold(snapshot: &Snapshot) -> Progress<'_> {
    let mut progress = Progress {
        mark: Stage::None,
        drains: Drains::default(),
        release: Stage::None,
        marking: None,
        harmful_open: Vec::new(),
        restart_open: None,
        told: None,
        untold: Vec::new(),
        came_to_nothing: None,
        release_failed: None,
        first_effect_at: None,
        failed_void: 0,
    };
    for command in &snapshot.commands {
        progress.take(command);
    }
    progress
}

impl<'a> Progress<'a> {
    fn take(&mut self, command: &'a KnownCommand) {
        let has = |step: &str| command.steps.iter().any(|name| name == step);
        if has("notify") {
            if told(command) {
                self.told = self.told.max(Some(command.level));
            } else {
                self.untold.push(command);
            }
        }
        if has("release") {
            self.release = stage(command, "release");
            self.release_failed = matches!(self.release, Stage::None | Stage::Failed(_) | Stage::Unknown(_)).then_some(command);
            return;
        }
        if has("restart") && !command.state.terminal() {
            self.restart_open = Some(command);
        }
        let (marks, drains) = (has("mark"), has("drain"));
        if !marks && !drains {
            return;
        }
        let again = void(command) && command.state == CommandState::Failed;
        self.failed_void += u32::from(again);
        let stage = |step| if again && self.failed_void < FAILED_MAX { Stage::None } else { stage(command, step) };
        if marks {
            later(&mut self.mark, stage("mark"));
            if self.mark != Stage::None && !void(command) {
                self.marking = Some(command);
                // What was undone before it is no more: this mark stands, and is to be undone in its turn.
                self.release = Stage::None;
                self.release_failed = None;
            }
        }
        if drains {
            self.drains.take(command.gpu.as_ref(), stage("drain"));
        }
        if !command.state.terminal() {
            self.harmful_open.push(command);
        }
        self.came_to_nothing = void(command).then_some(command);
        if effect(command) {
            self.first_effect_at = self.first_effect_at.or(Some(command.state_at));
        }
    }

    /// No command that does harm is under way, to the node or to what runs on it.
    pub(super) fn nothing_open(&self) -> bool {
        self.harmful_open.is_empty() && self.restart_open.is_none()
    }

    /// Something of ours is on the node as far as commands tell, or may be.
    pub(super) fn marked(&self) -> bool {
        self.release != Stage::Done && matches!(self.mark, Stage::Done | Stage::Unknown(_))
    }

    /// How many Events of this level or a worse one came to nothing, and when the last did.
    pub(super) fn untold(&self, level: Level) -> (u32, Option<Timestamp>) {
        let of_level = self.untold.iter().filter(|command| command.level >= level);
        let last = of_level.clone().map(|command| command.state_at).max();
        (u32::try_from(of_level.count()).unwrap_or(u32::MAX), last)
    }

    /// The trouble that only a person can end, in words.
    pub(super) fn trouble(&self) -> Option<String> {
        let of = |what: &str, stage: &Stage| match stage {
            Stage::Failed(why) => Some(format!("{what} failed: {why}")),
            Stage::Unknown(why) => Some(format!("the end of the {what} is unknown: {why}")),
            Stage::None | Stage::Pending | Stage::Done => None,
        };
        of("mark", &self.mark).or_else(|| self.drains.ended_ill().find_map(|stage| of("drain", stage)))
    }
}

/// What came to nothing hides nothing that was done before.
fn later(stage: &mut Stage, new: Stage) {
    if new != Stage::None {
        *stage = new;
    }
}

fn done(command: &KnownCommand, step: &str) -> bool {
    command.state == CommandState::Succeeded || command.steps_done.iter().any(|name| name == step)
}

/// Its Event was posted, or may still be. A command may succeed although its Event could not be posted: then its steps
/// say so.
fn told(command: &KnownCommand) -> bool {
    match stage(command, "notify") {
        Stage::Done => command.steps_done.is_empty() || command.steps_done.iter().any(|name| name == "notify"),
        Stage::Pending | Stage::Unknown(_) => true,
        Stage::None | Stage::Failed(_) => false,
    }
}

fn stage(command: &KnownCommand, step: &str) -> Stage {
    if done(command, step) {
        return Stage::Done;
    }
    match command.state {
        CommandState::Proposed
        | CommandState::AwaitingApproval
        | CommandState::Signed
        | CommandState::Dispatched
        | CommandState::Received
        | CommandState::Started => Stage::Pending,
        CommandState::Succeeded => Stage::Done,
        CommandState::Expired | CommandState::Refused | CommandState::Cancelled => Stage::None,
        CommandState::Failed => Stage::Failed(command.outcome.clone()),
        CommandState::Unknown => Stage::Unknown(command.outcome.clone()),
    }
}

/// A first effect may have happened.
fn effect(command: &KnownCommand) -> bool {
    let marked = done(command, "mark") || done(command, "drain");
    marked || matches!(command.state, CommandState::Started | CommandState::Unknown)
}

/// Over, and without any effect.
pub(super) fn void(command: &KnownCommand) -> bool {
    command.state.terminal() && !effect(command)
}
