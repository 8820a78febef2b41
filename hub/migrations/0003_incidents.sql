-- Incidents, the faults they hold, and what was decided about them.

CREATE TABLE incidents (
    cluster_id text NOT NULL,
    incident_id uuid NOT NULL,
    node_uid text NOT NULL,
    node_name text NOT NULL,
    level text NOT NULL,
    manual boolean NOT NULL DEFAULT false,
    state text NOT NULL,
    state_at timestamptz NOT NULL,
    reason text NOT NULL,
    decision_no integer NOT NULL DEFAULT 0,
    policy_revision bigint NOT NULL DEFAULT 0,
    opened_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL,
    recheck_at timestamptz,
    closed_at timestamptz,
    CONSTRAINT incidents_pkey PRIMARY KEY (cluster_id, incident_id),
    CONSTRAINT incidents_level_known CHECK (level IN ('P0', 'P1', 'P2')),
    CONSTRAINT incidents_state_known CHECK (state IN (
        'open', 'watching', 'recorded', 'suppressed', 'blocked', 'awaiting_approval', 'quarantining', 'draining', 'validating',
        'releasing', 'overriding', 'failed', 'escalated', 'released', 'overridden', 'gone', 'filed')),
    CONSTRAINT incidents_decision_natural CHECK (decision_no >= 0),
    CONSTRAINT incidents_closed_is_final CHECK ((closed_at IS NOT NULL) = (state IN ('released', 'overridden', 'gone', 'filed'))),
    CONSTRAINT incidents_closed_waits_for_nothing CHECK (closed_at IS NULL OR recheck_at IS NULL)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE UNIQUE INDEX incidents_one_open_per_node ON incidents (cluster_id, node_uid) WHERE closed_at IS NULL;
CREATE INDEX incident_open_state ON incidents (cluster_id, level) WHERE closed_at IS NULL;
CREATE INDEX incidents_by_opened ON incidents (cluster_id, opened_at);
CREATE INDEX incidents_by_node ON incidents (cluster_id, node_uid, opened_at);
COMMENT ON TABLE incidents IS 'Everything known and done about one node''s trouble: opens once, closes once';
COMMENT ON COLUMN incidents.cluster_id IS 'Cluster of the node';
COMMENT ON COLUMN incidents.incident_id IS 'Also the process-id in the node''s annotations';
COMMENT ON COLUMN incidents.node_uid IS 'The node';
COMMENT ON COLUMN incidents.node_name IS 'For people';
COMMENT ON COLUMN incidents.level IS 'Worst so far: P0 act now, P1 warn and watch, P2 record';
COMMENT ON COLUMN incidents.manual IS 'A person asked for it; no fault did';
COMMENT ON COLUMN incidents.state IS 'Where it stands';
COMMENT ON COLUMN incidents.state_at IS 'Since when';
COMMENT ON COLUMN incidents.reason IS 'Why it stands there, with numbers';
COMMENT ON COLUMN incidents.decision_no IS 'Number of the last decision';
COMMENT ON COLUMN incidents.policy_revision IS 'Policy of the last decision';
COMMENT ON COLUMN incidents.opened_at IS 'When it opened';
COMMENT ON COLUMN incidents.changed_at IS 'When state or reason changed last';
COMMENT ON COLUMN incidents.recheck_at IS 'When a waiting state is judged again';
COMMENT ON COLUMN incidents.closed_at IS 'When it closed; none while open';

CREATE TABLE incident_faults (
    cluster_id text NOT NULL,
    incident_id uuid NOT NULL,
    fault_key bytea NOT NULL,
    episode integer NOT NULL,
    level text NOT NULL,
    verdict text NOT NULL DEFAULT '',
    asked boolean NOT NULL DEFAULT false,
    added_at timestamptz NOT NULL,
    node_uid text NOT NULL,
    CONSTRAINT incident_faults_pkey PRIMARY KEY (cluster_id, incident_id, fault_key, episode),
    CONSTRAINT incident_faults_incident FOREIGN KEY (cluster_id, incident_id) REFERENCES incidents (cluster_id, incident_id),
    CONSTRAINT incident_faults_fault FOREIGN KEY (cluster_id, fault_key, episode) REFERENCES faults (cluster_id, fault_key, episode),
    CONSTRAINT incident_faults_level_known CHECK (level IN ('P0', 'P1', 'P2'))
);
CREATE INDEX incident_faults_by_fault ON incident_faults (cluster_id, fault_key, episode);
CREATE INDEX incident_faults_suspects ON incident_faults (cluster_id, added_at, node_uid) WHERE level <> 'P2';
COMMENT ON TABLE incident_faults IS 'Which episodes an incident holds; one that became worse after its incident closed is held by a second';
COMMENT ON COLUMN incident_faults.cluster_id IS 'Cluster of both';
COMMENT ON COLUMN incident_faults.incident_id IS 'The incident';
COMMENT ON COLUMN incident_faults.fault_key IS 'The fault';
COMMENT ON COLUMN incident_faults.episode IS 'Its episode';
COMMENT ON COLUMN incident_faults.level IS 'Level that policy last gave this fault';
COMMENT ON COLUMN incident_faults.verdict IS 'What the last decision made of it, and why';
COMMENT ON COLUMN incident_faults.asked IS 'It has asked for an eviction: a drain was made for it, or a person called';
COMMENT ON COLUMN incident_faults.added_at IS 'When it joined';
COMMENT ON COLUMN incident_faults.node_uid IS 'The incident''s node: how many nodes turned suspect lately is asked at each judgement, of the index alone';

CREATE TABLE decisions (
    cluster_id text NOT NULL,
    incident_id uuid NOT NULL,
    decision_no integer NOT NULL,
    outcome text NOT NULL,
    reason text NOT NULL,
    reasons jsonb NOT NULL DEFAULT '[]',
    level text NOT NULL,
    state_after text NOT NULL,
    policy_revision bigint NOT NULL,
    policy_digest text NOT NULL,
    decided_at timestamptz NOT NULL,
    CONSTRAINT decisions_pkey PRIMARY KEY (cluster_id, incident_id, decision_no),
    CONSTRAINT decisions_incident FOREIGN KEY (cluster_id, incident_id) REFERENCES incidents (cluster_id, incident_id),
    CONSTRAINT decisions_number_positive CHECK (decision_no > 0),
    CONSTRAINT decisions_has_reason CHECK (reason <> '')
);
COMMENT ON TABLE decisions IS 'Each judgement that changed something, in order; a second judgement is a new decision';
COMMENT ON COLUMN decisions.cluster_id IS 'Cluster of the incident';
COMMENT ON COLUMN decisions.incident_id IS 'The incident';
COMMENT ON COLUMN decisions.decision_no IS 'From 1, without holes';
COMMENT ON COLUMN decisions.outcome IS 'What was decided, in a word';
COMMENT ON COLUMN decisions.reason IS 'Why, with numbers';
COMMENT ON COLUMN decisions.reasons IS 'Every reason in the order in which it was met';
COMMENT ON COLUMN decisions.level IS 'Level of the incident then';
COMMENT ON COLUMN decisions.state_after IS 'State that it led to';
COMMENT ON COLUMN decisions.policy_revision IS 'Policy that it came from';
COMMENT ON COLUMN decisions.policy_digest IS 'Digest of that policy';
COMMENT ON COLUMN decisions.decided_at IS 'When';
