-- The audit chain, and policies, which are as immutable.

CREATE TABLE audit_heads (
    chain text NOT NULL,
    seq bigint NOT NULL DEFAULT 0,
    hash bytea NOT NULL,
    CONSTRAINT audit_heads_pkey PRIMARY KEY (chain),
    CONSTRAINT audit_heads_seq_natural CHECK (seq >= 0),
    CONSTRAINT audit_heads_hash_length CHECK (octet_length(hash) = 32)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 500);
COMMENT ON TABLE audit_heads IS 'Last entry of each chain; its row lock gives the chain its order';
COMMENT ON COLUMN audit_heads.chain IS 'A cluster''s id, or _fleet';
COMMENT ON COLUMN audit_heads.seq IS 'Number of the last entry';
COMMENT ON COLUMN audit_heads.hash IS 'Its hash';

CREATE TABLE audit_entries (
    chain text NOT NULL,
    seq bigint NOT NULL,
    at timestamptz NOT NULL,
    kind text NOT NULL,
    actor text NOT NULL,
    subject text NOT NULL,
    incident_id uuid,
    body text NOT NULL,
    prev_hash bytea NOT NULL,
    hash bytea NOT NULL,
    CONSTRAINT audit_entries_pkey PRIMARY KEY (chain, seq),
    CONSTRAINT audit_entries_seq_positive CHECK (seq > 0),
    CONSTRAINT audit_entries_hash_length CHECK (octet_length(hash) = 32 AND octet_length(prev_hash) = 32)
);
CREATE INDEX audit_entries_at ON audit_entries USING brin (at) WITH (pages_per_range = 32);
CREATE INDEX audit_entries_by_incident ON audit_entries (chain, incident_id) WHERE incident_id IS NOT NULL;
COMMENT ON TABLE audit_entries IS 'All that was done and decided, in order; entries are only ever added';
COMMENT ON COLUMN audit_entries.chain IS 'A cluster''s id, or _fleet';
COMMENT ON COLUMN audit_entries.seq IS 'From 1, without holes';
COMMENT ON COLUMN audit_entries.at IS 'When, in whole milliseconds: they are hashed';
COMMENT ON COLUMN audit_entries.kind IS 'What happened, in a word';
COMMENT ON COLUMN audit_entries.actor IS 'Who did it: a stage of the hub, a spoke, a person';
COMMENT ON COLUMN audit_entries.subject IS 'What it was done to';
COMMENT ON COLUMN audit_entries.incident_id IS 'Incident that it belongs to, when to one';
COMMENT ON COLUMN audit_entries.body IS 'JSON, kept as the text that was hashed';
COMMENT ON COLUMN audit_entries.prev_hash IS 'Hash of the entry before; zeros for the first';
COMMENT ON COLUMN audit_entries.hash IS 'Hash of this entry and the one before';

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% only grows: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = TG_TABLE_NAME || '_append_only';
END $$;
COMMENT ON FUNCTION refuse_change() IS 'Trigger of tables whose rows are never changed or deleted';
CREATE TRIGGER audit_entries_append_only BEFORE UPDATE OR DELETE ON audit_entries FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER audit_entries_never_truncated BEFORE TRUNCATE ON audit_entries FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE TABLE policies (
    revision bigint NOT NULL,
    digest text NOT NULL,
    yaml text NOT NULL,
    applied_by text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT policies_pkey PRIMARY KEY (revision),
    CONSTRAINT policies_revision_positive CHECK (revision > 0),
    CONSTRAINT policies_digest_form CHECK (digest ~ '^[0-9a-f]{64}$'),
    CONSTRAINT policies_bounded CHECK (octet_length(yaml) <= 262144)
);
COMMENT ON TABLE policies IS 'Revisions of the fleet''s policy; the highest is in force';
COMMENT ON COLUMN policies.revision IS 'From 1';
COMMENT ON COLUMN policies.digest IS 'Hex SHA-256 of the text';
COMMENT ON COLUMN policies.yaml IS 'The document as it was given';
COMMENT ON COLUMN policies.applied_by IS 'Who or what gave it';
COMMENT ON COLUMN policies.applied_at IS 'When';
CREATE TRIGGER policies_append_only BEFORE UPDATE OR DELETE ON policies FOR EACH ROW EXECUTE FUNCTION refuse_change();
