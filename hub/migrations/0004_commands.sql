-- Commands, what spokes reported of them, and requests that people made.

CREATE TABLE command_counters (
    cluster_id text NOT NULL,
    cmd_seq bigint NOT NULL DEFAULT 0,
    CONSTRAINT command_counters_pkey PRIMARY KEY (cluster_id),
    CONSTRAINT command_counters_natural CHECK (cmd_seq >= 0)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 500);
COMMENT ON TABLE command_counters IS 'The number of the last command of each cluster; raised in the issuing transaction';
COMMENT ON COLUMN command_counters.cluster_id IS 'The cluster';
COMMENT ON COLUMN command_counters.cmd_seq IS 'Number of its last command';

CREATE TABLE commands (
    cluster_id text NOT NULL,
    command_id uuid NOT NULL,
    incident_id uuid NOT NULL,
    decision_no integer NOT NULL,
    idempotency_key text NOT NULL,
    state text NOT NULL DEFAULT 'PROPOSED',
    state_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    action text NOT NULL,
    node_uid text NOT NULL,
    node_name text NOT NULL,
    boot_id text NOT NULL DEFAULT '',
    gpu jsonb,
    level text NOT NULL,
    reason text NOT NULL,
    policy_revision bigint NOT NULL,
    policy_digest text NOT NULL,
    fault_keys text[] NOT NULL DEFAULT '{}',
    ignore_cooldown boolean NOT NULL DEFAULT false,
    others jsonb NOT NULL DEFAULT '{"markers_ignored": [], "automations": []}',
    steps_asked jsonb NOT NULL,
    cmd_seq bigint NOT NULL,
    plan_rev bigint NOT NULL,
    hub_term bigint NOT NULL,
    key_epoch bigint,
    created_at timestamptz NOT NULL,
    deliver_by timestamptz NOT NULL,
    start_by timestamptz NOT NULL,
    finish_by timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    envelope bytea,
    envelope_sha256 text,
    key_id text,
    signed_at timestamptz,
    sent_at timestamptz,
    resend_at timestamptz,
    received_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    heard_at timestamptz,
    lease_transitions bigint NOT NULL DEFAULT 0,
    status_seq bigint NOT NULL DEFAULT 0,
    steps jsonb NOT NULL DEFAULT '[]',
    undo jsonb,
    refusal text,
    result_reason text NOT NULL DEFAULT '',
    corrections integer NOT NULL DEFAULT 0,
    cancel_reason text,
    cancel_asked_at timestamptz,
    cancel_envelope bytea,
    cancel_sent_at timestamptz,
    outcome_asked_at timestamptz,
    CONSTRAINT commands_pkey PRIMARY KEY (cluster_id, command_id),
    CONSTRAINT commands_idempotency UNIQUE (cluster_id, idempotency_key),
    CONSTRAINT commands_seq_unique UNIQUE (cluster_id, cmd_seq),
    CONSTRAINT commands_plan_rev_unique UNIQUE (cluster_id, node_uid, plan_rev),
    CONSTRAINT commands_decision FOREIGN KEY (cluster_id, incident_id, decision_no) REFERENCES decisions (cluster_id, incident_id, decision_no),
    CONSTRAINT commands_state_known CHECK (state IN (
        'PROPOSED', 'AWAITING_APPROVAL', 'SIGNED', 'DISPATCHED', 'EXPIRED', 'RECEIVED', 'STARTED', 'SUCCEEDED', 'FAILED',
        'UNKNOWN', 'REFUSED', 'CANCELLED')),
    CONSTRAINT commands_action_known CHECK (action IN ('notify', 'mark', 'restart', 'evict', 'release')),
    CONSTRAINT commands_times_in_order CHECK (created_at <= deliver_by AND deliver_by <= start_by AND start_by <= finish_by AND finish_by <= expires_at),
    CONSTRAINT commands_life_bounded CHECK (finish_by <= created_at + interval '24 hours'),
    CONSTRAINT commands_signed_whole CHECK ((envelope IS NULL) = (key_id IS NULL) AND (envelope IS NULL) = (signed_at IS NULL)
        AND (envelope IS NULL) = (envelope_sha256 IS NULL) AND (envelope IS NULL) = (key_epoch IS NULL)),
    CONSTRAINT commands_signed_before_sent CHECK (state NOT IN ('SIGNED', 'DISPATCHED', 'RECEIVED', 'STARTED', 'SUCCEEDED') OR envelope IS NOT NULL),
    CONSTRAINT commands_sent_was_dispatched CHECK (state <> 'DISPATCHED' OR sent_at IS NOT NULL),
    CONSTRAINT commands_envelope_bounded CHECK (octet_length(envelope) <= 65536),
    CONSTRAINT commands_has_reason CHECK (reason <> ''),
    CONSTRAINT commands_has_steps CHECK (jsonb_typeof(steps_asked) = 'array' AND jsonb_array_length(steps_asked) BETWEEN 1 AND 16),
    CONSTRAINT commands_policy_named CHECK (policy_revision > 0),
    CONSTRAINT commands_numbers_positive CHECK (cmd_seq > 0 AND plan_rev > 0 AND hub_term > 0)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX commands_to_sign ON commands (cluster_id, cmd_seq) WHERE state = 'PROPOSED';
CREATE INDEX commands_to_send ON commands (cluster_id, cmd_seq) WHERE state IN ('SIGNED', 'DISPATCHED', 'RECEIVED', 'STARTED');
CREATE INDEX commands_to_cancel ON commands (cluster_id) WHERE cancel_asked_at IS NOT NULL AND cancel_sent_at IS NULL;
CREATE INDEX commands_end_assumed ON commands (cluster_id, expires_at) WHERE state IN ('EXPIRED', 'UNKNOWN') OR (state = 'CANCELLED' AND status_seq = 0);
CREATE INDEX commands_open_by_deadline ON commands (start_by) WHERE state IN ('PROPOSED', 'AWAITING_APPROVAL', 'SIGNED', 'DISPATCHED', 'RECEIVED', 'STARTED');
CREATE INDEX commands_by_node ON commands (cluster_id, node_uid, created_at);
CREATE INDEX commands_by_incident ON commands (cluster_id, incident_id);
CREATE INDEX commands_by_envelope ON commands (cluster_id, envelope_sha256) WHERE envelope_sha256 IS NOT NULL;
COMMENT ON TABLE commands IS 'Signed, expiring, idempotent instructions to spokes, and how they went';
COMMENT ON COLUMN commands.cluster_id IS 'The one cluster that may execute it';
COMMENT ON COLUMN commands.command_id IS 'UUIDv7; the name of its HealAction';
COMMENT ON COLUMN commands.incident_id IS 'Incident that it belongs to';
COMMENT ON COLUMN commands.decision_no IS 'Decision that it came from';
COMMENT ON COLUMN commands.idempotency_key IS 'H(incident, decision, plan revision, action): the same thing is never asked twice';
COMMENT ON COLUMN commands.state IS 'PROPOSED, AWAITING_APPROVAL, SIGNED, DISPATCHED, RECEIVED, STARTED, then SUCCEEDED, FAILED, UNKNOWN, REFUSED, EXPIRED or CANCELLED';
COMMENT ON COLUMN commands.state_at IS 'When that state was stored';
COMMENT ON COLUMN commands.action IS 'Its most far-reaching step: notify, mark, restart, evict, release';
COMMENT ON COLUMN commands.node_uid IS 'The node';
COMMENT ON COLUMN commands.node_name IS 'For people';
COMMENT ON COLUMN commands.boot_id IS 'Of the node when it was decided';
COMMENT ON COLUMN commands.gpu IS 'The GPU, when the faults are one GPU''s: a drain is of its users alone';
COMMENT ON COLUMN commands.level IS 'P0, P1, P2 or manual';
COMMENT ON COLUMN commands.reason IS 'Why, with numbers';
COMMENT ON COLUMN commands.policy_revision IS 'Policy that led to it';
COMMENT ON COLUMN commands.policy_digest IS 'Digest of that policy';
COMMENT ON COLUMN commands.fault_keys IS 'Faults whose own fresh source must not have cleared them';
COMMENT ON COLUMN commands.ignore_cooldown IS 'A person waived the cooldown';
COMMENT ON COLUMN commands.others IS 'What policy says of others: marks that keep nobody off, field managers that are no persons';
COMMENT ON COLUMN commands.steps_asked IS 'Its steps in order';
COMMENT ON COLUMN commands.cmd_seq IS 'Number within the cluster';
COMMENT ON COLUMN commands.plan_rev IS 'Number within the node: only a higher one may write to it';
COMMENT ON COLUMN commands.hub_term IS 'Epoch of the database when it was issued';
COMMENT ON COLUMN commands.key_epoch IS 'Epoch of the signing keys';
COMMENT ON COLUMN commands.created_at IS 'When it was issued';
COMMENT ON COLUMN commands.deliver_by IS 'Undelivered by then: dead';
COMMENT ON COLUMN commands.start_by IS 'No first effect after it';
COMMENT ON COLUMN commands.finish_by IS 'No step after it';
COMMENT ON COLUMN commands.expires_at IS 'Nothing of it is remembered as open after it';
COMMENT ON COLUMN commands.envelope IS 'The signed bytes, as sent';
COMMENT ON COLUMN commands.envelope_sha256 IS 'Hex SHA-256 of them: how a spoke names what it could not verify';
COMMENT ON COLUMN commands.key_id IS 'Key that signed';
COMMENT ON COLUMN commands.signed_at IS 'When it was signed';
COMMENT ON COLUMN commands.sent_at IS 'When its bytes were last put on a stream';
COMMENT ON COLUMN commands.resend_at IS 'Not to be sent again before';
COMMENT ON COLUMN commands.received_at IS 'When the spoke''s intent was reported';
COMMENT ON COLUMN commands.started_at IS 'When a first effect was reported';
COMMENT ON COLUMN commands.finished_at IS 'When a final state was reached';
COMMENT ON COLUMN commands.heard_at IS 'When the spoke last reported on it';
COMMENT ON COLUMN commands.lease_transitions IS 'Leadership that reported last';
COMMENT ON COLUMN commands.status_seq IS 'Number of the last report that was taken';
COMMENT ON COLUMN commands.steps IS 'How each step went';
COMMENT ON COLUMN commands.undo IS 'What a release must restore';
COMMENT ON COLUMN commands.refusal IS 'Why the spoke said no, in a word';
COMMENT ON COLUMN commands.result_reason IS 'Why it ended as it did, with numbers';
COMMENT ON COLUMN commands.corrections IS 'Results that came after a final state was assumed';
COMMENT ON COLUMN commands.cancel_reason IS 'Why it was called off';
COMMENT ON COLUMN commands.cancel_asked_at IS 'When it was called off';
COMMENT ON COLUMN commands.cancel_envelope IS 'Signed cancellation, as sent';
COMMENT ON COLUMN commands.cancel_sent_at IS 'When that was put on a stream';
COMMENT ON COLUMN commands.outcome_asked_at IS 'When its cluster was last asked what became of it, since nobody had told its end';

CREATE TABLE reports (
    cluster_id text NOT NULL,
    subject text NOT NULL,
    status_seq bigint NOT NULL,
    state text NOT NULL,
    refusal text NOT NULL DEFAULT '',
    command_id uuid,
    reason text NOT NULL DEFAULT '',
    lease_transitions bigint NOT NULL DEFAULT 0,
    spoke_at timestamptz,
    first_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    times bigint NOT NULL DEFAULT 1,
    effect text NOT NULL,
    CONSTRAINT reports_pkey PRIMARY KEY (cluster_id, subject, status_seq, state, refusal),
    CONSTRAINT reports_effect_known CHECK (effect IN ('applied', 'correction', 'stale', 'unverified', 'not_now', 'unknown_command', 'unreadable'))
) WITH (fillfactor = 80);
COMMENT ON TABLE reports IS 'Every status that a spoke reported, repeats counted; refusals of what did not verify too';
COMMENT ON COLUMN reports.cluster_id IS 'Cluster that reported';
COMMENT ON COLUMN reports.subject IS 'Command id, or hex SHA-256 of an envelope that did not verify';
COMMENT ON COLUMN reports.status_seq IS 'Number of the report within the command';
COMMENT ON COLUMN reports.state IS 'State that it reported';
COMMENT ON COLUMN reports.refusal IS 'Why it was refused; empty when it was not';
COMMENT ON COLUMN reports.command_id IS 'The command, when the subject is one of ours';
COMMENT ON COLUMN reports.reason IS 'What the spoke said';
COMMENT ON COLUMN reports.lease_transitions IS 'Leadership that reported';
COMMENT ON COLUMN reports.spoke_at IS 'By the spoke''s own clock';
COMMENT ON COLUMN reports.first_at IS 'First receipt';
COMMENT ON COLUMN reports.last_at IS 'Last receipt';
COMMENT ON COLUMN reports.times IS 'How often it came';
COMMENT ON COLUMN reports.effect IS 'What it did here';

CREATE TABLE process_requests (
    cluster_id text NOT NULL,
    request_id text NOT NULL,
    node_name text NOT NULL,
    action text NOT NULL,
    caller text NOT NULL,
    reason text NOT NULL,
    override_cooldown boolean NOT NULL DEFAULT false,
    workloads text[] NOT NULL DEFAULT '{}',
    past_budgets boolean NOT NULL DEFAULT false,
    outcome text NOT NULL,
    command_id uuid,
    answer text NOT NULL,
    asked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT process_requests_pkey PRIMARY KEY (cluster_id, request_id),
    CONSTRAINT process_requests_outcome_known CHECK (outcome IN ('accepted', 'already_done', 'no_such_node', 'blocked', 'invalid')),
    CONSTRAINT process_requests_accepted_has_command CHECK (outcome <> 'accepted' OR command_id IS NOT NULL)
);
COMMENT ON TABLE process_requests IS 'What people asked for by hand; the same id gives the first answer again';
COMMENT ON COLUMN process_requests.cluster_id IS 'Cluster of the node';
COMMENT ON COLUMN process_requests.request_id IS 'The caller''s own id';
COMMENT ON COLUMN process_requests.node_name IS 'Node that was named';
COMMENT ON COLUMN process_requests.action IS 'mark, evict, release, notify or restart';
COMMENT ON COLUMN process_requests.caller IS 'Who asked';
COMMENT ON COLUMN process_requests.reason IS 'Why they asked';
COMMENT ON COLUMN process_requests.override_cooldown IS 'They waived the cooldown';
COMMENT ON COLUMN process_requests.workloads IS 'What a restart is of, as kind/namespace/name; empty for all else';
COMMENT ON COLUMN process_requests.past_budgets IS 'They let the eviction pass budgets at its deadline';
COMMENT ON COLUMN process_requests.outcome IS 'accepted, already_done, no_such_node, blocked or invalid';
COMMENT ON COLUMN process_requests.command_id IS 'The command that came of it';
COMMENT ON COLUMN process_requests.answer IS 'What was answered, with the arithmetic';
COMMENT ON COLUMN process_requests.asked_at IS 'When';
