//! Every crash that is played: who dies where, after what, and which row of the failure table it is about.

/// Who dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The only hub.
    Hub,
    /// The spoke that leads.
    Leader,
    /// The spoke that takes over from a leader which died at another point; it dies with what that one had begun in its hands.
    Heir {
        /// Where the leader died.
        after: &'static str,
    },
}

/// What happens first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// One GPU falls off the bus: Xid 79, and a GPU less to allocate.
    Xid,
    /// The same on several nodes, of which a single webhook tells before anybody has seen it.
    Many,
    /// A person asks for a mark.
    Person,
    /// A person asks for the eviction of a node's pods, which their budget does not let go: at the drain's deadline it is passed.
    PastBudget,
    /// A person asks for the restart of two workloads: whoever takes over finds one of them restarted, or none.
    Restart,
    /// The same as [`Cause::Xid`], healed, repaired and released by a person: only then comes the point.
    Back,
}

/// One crash.
#[derive(Clone, Copy, Debug)]
pub struct Crash {
    /// Of the failure table.
    pub row: &'static str,
    /// Its fail point.
    pub point: &'static str,
    /// Whose.
    pub who: Who,
    /// After what.
    pub cause: Cause,
}

const fn hub(row: &'static str, point: &'static str, cause: Cause) -> Crash {
    Crash { row, point, who: Who::Hub, cause }
}

const fn leader(row: &'static str, point: &'static str) -> Crash {
    Crash { row, point, who: Who::Leader, cause: Cause::Xid }
}

const fn heir(row: &'static str, point: &'static str, after: &'static str) -> Crash {
    Crash { row, point, who: Who::Heir { after }, cause: Cause::Xid }
}

const fn back(row: &'static str, point: &'static str) -> Crash {
    Crash { row, point, who: Who::Leader, cause: Cause::Back }
}

const fn past(row: &'static str, point: &'static str, who: Who) -> Crash {
    Crash { row, point, who, cause: Cause::PastBudget }
}

const fn restart(row: &'static str, point: &'static str, who: Who) -> Crash {
    Crash { row, point, who, cause: Cause::Restart }
}

/// Every fail point of hub and spoke, and what the second replica dies of where the first one has left off.
pub const CRASHES: [Crash; 45] = [
    leader("1", "journal.before-write"),
    leader("1", "journal.before-sync"),
    leader("2", "journal.synced"),
    leader("2", "send.before"),
    hub("3", "ingest.received", Cause::Xid),
    hub("3", "ingest.before-commit", Cause::Xid),
    hub("4", "ingest.committed", Cause::Xid),
    leader("4", "send.acked"),
    hub("5", "decide.claimed", Cause::Many),
    hub("6", "decide.before-commit", Cause::Many),
    hub("7", "sign.before", Cause::Person),
    hub("7", "sign.before-commit", Cause::Person),
    hub("8", "deliver.put", Cause::Xid),
    hub("8", "deliver.before-note", Cause::Xid),
    leader("10", "verify.received"),
    leader("10", "execute.before-intent"),
    leader("11", "execute.intent-written"),
    leader("11", "execute.before-patch"),
    leader("12", "execute.node-patched"),
    leader("12", "execute.step-done"),
    leader("12", "execute.before-evict"),
    leader("12", "execute.evicted"),
    leader("12", "execute.progress-written"),
    heir("11", "execute.taken-up", "execute.intent-written"),
    heir("12", "execute.node-patched", "execute.before-patch"),
    heir("12", "execute.before-evict", "execute.node-patched"),
    heir("12", "execute.taken-up", "execute.evicted"),
    heir("14", "execute.before-outcome", "execute.evicted"),
    past("12", "execute.before-delete", Who::Leader),
    past("12", "execute.deleted", Who::Leader),
    past("12", "execute.before-delete", Who::Heir { after: "execute.before-delete" }),
    past("12", "execute.taken-up", Who::Heir { after: "execute.deleted" }),
    restart("12", "execute.before-restart", Who::Leader),
    restart("14", "execute.restarted", Who::Leader),
    restart("12", "execute.taken-up", Who::Heir { after: "execute.before-restart" }),
    restart("12", "execute.before-restart", Who::Heir { after: "execute.restarted" }),
    restart("14", "execute.restarted", Who::Heir { after: "execute.restarted" }),
    restart("14", "execute.before-outcome", Who::Heir { after: "execute.restarted" }),
    back("12", "execute.before-release"),
    back("14", "execute.released"),
    leader("14", "execute.before-outcome"),
    leader("15", "execute.outcome-written"),
    leader("15", "report.acked"),
    hub("15", "settle.before-commit", Cause::Xid),
    hub("15", "settle.committed", Cause::Xid),
];
