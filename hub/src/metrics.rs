//! What the hub counts, each with a sentence. Labels are closed sets of words: never an id, a node, a UUID or a message.
//! Exposed by `http` as Prometheus text.

mod kinds;

pub use kinds::{Counter, Family, Gauge, Histogram};

/// TLS handshakes on the listeners by how they ended.
pub static HANDSHAKES: Family<2> = Family::counter(
    "gpu_selfhealing_hub_handshakes_total",
    "TLS handshakes, by listener (link, fleet) and outcome (ok, tls, timeout, identity, revoked).",
    ["listener", "outcome"],
);
/// Attach attempts.
pub static ATTACHES: Family<1> = Family::counter(
    "gpu_selfhealing_hub_attaches_total",
    "Attempts of spoke replicas to attach, by outcome (ok, foreign, quarantined, revoked, implausible, busy, invalid, no_hello, database).",
    ["outcome"],
);
/// Sessions now.
pub static SESSIONS: Gauge = Gauge::new("gpu_selfhealing_hub_sessions", "Spoke replicas that are attached to this hub process.");
/// Of these, those whose clock is far off.
pub static CLOCKS_APART: Gauge = Gauge::new(
    "gpu_selfhealing_hub_clocks_apart",
    "Spoke replicas attached to this hub process whose wall clock was more than 30 s from the database's when they attached.",
);
/// Identities seen in two places.
pub static CLONE_ALARMS: Family<1> = Family::counter(
    "gpu_selfhealing_hub_clone_alarms_total",
    "Times that a cluster's identity was seen in two places and was quarantined, by cause (boot_ids, kube_system_uid).",
    ["cause"],
);
/// And not cleared yet.
pub static QUARANTINED: Gauge = Gauge::new(
    "gpu_selfhealing_hub_clusters_quarantined",
    "Clusters under whose identity nobody may attach until a person clears it.",
);
/// After a restore, and when a cluster is new.
pub static CLUSTERS_TO_TAKE_OVER: Gauge = Gauge::new(
    "gpu_selfhealing_hub_clusters_to_take_over",
    "Clusters that have not told all that they have since the epoch of the database began: nothing new begins there.",
);
/// Why sessions ended.
pub static DETACHES: Family<1> = Family::counter(
    "gpu_selfhealing_hub_detaches_total",
    "Sessions that ended, by cause (closed, dead, stalled, age, taken_over, stale, shutdown, protocol, database, certificate, revoked, quarantined).",
    ["cause"],
);
/// Messages up.
pub static MESSAGES_UP: Family<1> =
    Family::counter("gpu_selfhealing_hub_link_received_total", "Messages received from spokes, by kind.", ["kind"]);
/// Messages down.
pub static MESSAGES_DOWN: Family<2> = Family::counter(
    "gpu_selfhealing_hub_link_sent_total",
    "Messages for spokes, by lane (control, cancel, command, bulk) and outcome (queued, full, too_large, closed).",
    ["lane", "outcome"],
);
/// From the arrival of a batch to its commit.
pub static ACK_SECONDS: Histogram = Histogram::new(
    "gpu_selfhealing_hub_fault_ack_duration_seconds",
    "From the arrival of a batch of faults to its commit in Postgres.",
);
/// Faults that came.
pub static FAULTS: Counter = Counter::new("gpu_selfhealing_hub_faults_received_total", "Fault records received, repeats included.");
/// Texts of spokes that were not fit to be stored.
pub static TEXTS_MENDED: Family<1> = Family::counter(
    "gpu_selfhealing_hub_texts_mended_total",
    "Texts from spokes that held zero bytes, which were replaced, by kind of message.",
    ["kind"],
);
/// Parts of messages that were passed over.
pub static SET_ASIDE: Family<1> = Family::counter(
    "gpu_selfhealing_hub_items_set_aside_total",
    "Parts of messages from spokes that could not be read and were passed over, by kind (node, evidence, undo).",
    ["kind"],
);
/// States that did not add up.
pub static STATE_DIFFERS: Counter = Counter::new(
    "gpu_selfhealing_hub_state_differs_total",
    "Clusters whose nodes were held otherwise than they had been told, by the digest that comes every five minutes. All of their state is asked for then.",
);
/// Journals that are gone.
pub static JOURNALS_VANISHED: Family<1> = Family::counter(
    "gpu_selfhealing_hub_journals_vanished_total",
    "Journals that are gone with their replicas' disks, by what is known of them: lost (records that were told of never came), unclosed (there may have been some).",
    ["what"],
);
/// Judging.
pub static DECIDE_SECONDS: Histogram = Histogram::new(
    "gpu_selfhealing_hub_decide_duration_seconds",
    "Judging all nodes of one transaction and writing what follows, without the commit.",
);
/// What judgements came to.
pub static DECISIONS: Family<1> = Family::counter(
    "gpu_selfhealing_hub_decisions_total",
    "Judgements committed, by the state in which they left an incident whose state or level changed, else unchanged.",
    ["outcome"],
);
/// Commands signed.
pub static SIGNED: Family<1> =
    Family::counter("gpu_selfhealing_hub_signed_total", "Envelopes signed, by kind (command, cancel, settings).", ["kind"]);
/// Commands that could not be signed.
pub static SIGN_FAILURES: Family<1> = Family::counter(
    "gpu_selfhealing_hub_sign_failures_total",
    "Commands that were not signed, by cause (term, invalid, too_large).",
    ["cause"],
);
/// Commands sent.
pub static COMMANDS_SENT: Family<1> = Family::counter(
    "gpu_selfhealing_hub_commands_sent_total",
    "Commands put on a stream, by cause (first, new_session, not_now).",
    ["cause"],
);
/// Times that commands were not sent.
pub static COMMANDS_HELD: Family<1> = Family::counter(
    "gpu_selfhealing_hub_commands_not_sent_total",
    "Times that a signed command was due and not sent, by cause (expired, superseded, lane_full).",
    ["cause"],
);
/// From signature to the stream.
pub static DELIVER_SECONDS: Histogram =
    Histogram::new("gpu_selfhealing_hub_deliver_duration_seconds", "From the signature of a command to its first send.");
/// Reports settled.
pub static STATUSES: Family<1> = Family::counter(
    "gpu_selfhealing_hub_command_statuses_total",
    "Reports of commands that spokes sent, by outcome (acked, failed, early: before the nodes of its cluster).",
    ["outcome"],
);
/// Settling.
pub static SETTLE_SECONDS: Histogram =
    Histogram::new("gpu_selfhealing_hub_settle_duration_seconds", "From a report of a command to its commit.");
/// Commands that ended.
pub static COMMANDS_ENDED: Family<1> = Family::counter(
    "gpu_selfhealing_hub_commands_ended_total",
    "Commands that ended or whose end was corrected, by state (SUCCEEDED, FAILED, REFUSED, EXPIRED, UNKNOWN, CANCELLED).",
    ["state"],
);
/// Appending to the audit.
pub static AUDIT_SECONDS: Histogram = Histogram::new(
    "gpu_selfhealing_hub_audit_append_duration_seconds",
    "Waiting for a chain's head and adding entries to it, without the commit.",
);
/// Appends to the audit.
pub static AUDIT_APPENDS: Family<1> =
    Family::counter("gpu_selfhealing_hub_audit_appends_total", "Appends to audit chains, by outcome (ok, failed).", ["outcome"]);
/// Chains that were verified.
pub static AUDIT_VERIFIED: Family<1> = Family::counter(
    "gpu_selfhealing_hub_audit_verified_total",
    "Audit chains that were verified, by outcome (intact, broken, failed).",
    ["outcome"],
);
/// Calls of the fleet API.
pub static FLEET_CALLS: Family<2> = Family::counter(
    "gpu_selfhealing_hub_fleet_calls_total",
    "Calls of the fleet API, by method and outcome (ok, refused, failed).",
    ["method", "outcome"],
);
/// A stage's loop failed.
pub static STAGE_FAILURES: Family<1> = Family::counter(
    "gpu_selfhealing_hub_stage_failures_total",
    "Rounds of a stage that failed and will be tried again, by stage (ingest, decide, sign, deliver, settle, flush, verdicts, guard, gone, prune).",
    ["stage"],
);
/// Certificates read again.
pub static TLS_RELOADS: Family<1> = Family::counter(
    "gpu_selfhealing_hub_tls_reloads_total",
    "Times that changed identity files were read, by outcome (ok, failed).",
    ["outcome"],
);

/// Everything, as Prometheus text.
#[must_use]
pub fn text() -> String {
    let mut out = String::new();
    for family in [&HANDSHAKES, &MESSAGES_DOWN, &FLEET_CALLS] {
        family.write(&mut out);
    }
    let single = [
        &ATTACHES,
        &CLONE_ALARMS,
        &DETACHES,
        &MESSAGES_UP,
        &TEXTS_MENDED,
        &SET_ASIDE,
        &JOURNALS_VANISHED,
        &DECISIONS,
        &SIGNED,
        &SIGN_FAILURES,
        &COMMANDS_SENT,
        &COMMANDS_HELD,
        &STATUSES,
        &COMMANDS_ENDED,
        &AUDIT_APPENDS,
        &AUDIT_VERIFIED,
        &STAGE_FAILURES,
        &TLS_RELOADS,
    ];
    for family in single {
        family.write(&mut out);
    }
    SESSIONS.write(&mut out);
    CLOCKS_APART.write(&mut out);
    QUARANTINED.write(&mut out);
    CLUSTERS_TO_TAKE_OVER.write(&mut out);
    FAULTS.write(&mut out);
    STATE_DIFFERS.write(&mut out);
    for histogram in [&ACK_SECONDS, &DECIDE_SECONDS, &DELIVER_SECONDS, &SETTLE_SECONDS, &AUDIT_SECONDS] {
        histogram.write(&mut out);
    }
    out
}
