-- What people query. These views are an interface: a change that breaks one is a breaking change.

CREATE SCHEMA audit;
COMMENT ON SCHEMA audit IS 'Stable views for auditors and analysts; read-only role gpuheal_auditor sees only these';

CREATE VIEW audit.incidents AS
SELECT i.cluster_id, i.incident_id, i.node_name, i.node_uid, CASE WHEN i.manual AND i.level = 'P2' THEN 'manual' ELSE i.level END AS level, i.state, i.reason, i.opened_at, i.closed_at, i.policy_revision,
       (SELECT count(*) FROM incident_faults f WHERE f.cluster_id = i.cluster_id AND f.incident_id = i.incident_id) AS faults,
       (SELECT count(*) FROM commands c WHERE c.cluster_id = i.cluster_id AND c.incident_id = i.incident_id) AS commands
FROM incidents i;
COMMENT ON VIEW audit.incidents IS 'Each node''s trouble: when, how bad, where it stands and why';

CREATE VIEW audit.faults AS
SELECT f.cluster_id, encode(f.fault_key, 'hex') AS fault_key, f.episode, m.incident_id, f.node_name, f.node_uid, f.gpu_slot, f.gpu_uuid,
       f.gpu_model, f.class, f.code, m.level, f.onset, f.value, f.count, f.first_at, f.last_at, f.settled_at, f.settled_level
FROM faults f
LEFT JOIN incident_faults m ON m.cluster_id = f.cluster_id AND m.fault_key = f.fault_key AND m.episode = f.episode;
COMMENT ON VIEW audit.faults IS 'Each episode of each fault, with the incident that holds it';

CREATE VIEW audit.commands AS
SELECT c.cluster_id, c.command_id, c.incident_id, c.decision_no, c.action, c.state, c.node_name, c.node_uid, c.level, c.reason,
       c.refusal, c.result_reason, c.policy_revision, c.policy_digest, c.key_id, c.plan_rev, c.cmd_seq, c.created_at, c.signed_at,
       c.sent_at, c.received_at, c.started_at, c.finished_at
FROM commands c;
COMMENT ON VIEW audit.commands IS 'Each instruction to a cluster: why, under which policy, and how it went';

CREATE VIEW audit.actions AS
SELECT e.chain AS cluster_id, e.seq, e.at, e.kind, e.actor, e.subject, e.incident_id, e.body::jsonb AS body,
       encode(e.hash, 'hex') AS hash, encode(e.prev_hash, 'hex') AS prev_hash
FROM audit_entries e;
COMMENT ON VIEW audit.actions IS 'The audit chain in words';

-- The role belongs to the whole server: it may exist already, be made by another database at this moment, or be refused us.
DO $$
BEGIN
    CREATE ROLE gpuheal_auditor NOLOGIN;
EXCEPTION
    WHEN duplicate_object OR unique_violation OR insufficient_privilege THEN NULL;
END $$;
DO $$
BEGIN
    GRANT USAGE ON SCHEMA audit TO gpuheal_auditor;
    GRANT SELECT ON ALL TABLES IN SCHEMA audit TO gpuheal_auditor;
EXCEPTION
    WHEN undefined_object OR insufficient_privilege THEN NULL;
END $$;
