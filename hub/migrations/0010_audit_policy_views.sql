-- Two more views for auditors: what was decided under which policy, and the policies themselves.

CREATE VIEW audit.decisions AS
SELECT d.cluster_id, d.incident_id, d.decision_no, i.node_name, i.node_uid, d.decided_at, d.outcome, d.level, d.state_after, d.reason,
       d.reasons, d.policy_revision, d.policy_digest
FROM decisions d
JOIN incidents i ON i.cluster_id = d.cluster_id AND i.incident_id = d.incident_id;
COMMENT ON VIEW audit.decisions IS 'Each decision about each incident: the strongest action commanded, or the state in which it waits';

CREATE VIEW audit.policies AS
SELECT p.revision, p.digest, p.applied_by, p.applied_at, p.yaml
FROM policies p;
COMMENT ON VIEW audit.policies IS 'Each revision of the fleet''s policy, as it was given';

DO $$
BEGIN
    GRANT SELECT ON audit.decisions, audit.policies TO gpuheal_auditor;
EXCEPTION
    WHEN undefined_object OR insufficient_privilege THEN NULL;
END $$;
