-- Whose word counts no longer: certificates that were revoked, and clusters whose identity was seen in two places.

CREATE TABLE revocations (
    cluster_id text NOT NULL,
    not_before_min timestamptz,
    serials_denied text[] NOT NULL DEFAULT '{}',
    reason text NOT NULL,
    changed_by text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT revocations_pkey PRIMARY KEY (cluster_id),
    CONSTRAINT revocations_say_what CHECK (not_before_min IS NOT NULL OR cardinality(serials_denied) > 0),
    CONSTRAINT revocations_bounded CHECK (cardinality(serials_denied) <= 256),
    CONSTRAINT revocations_has_reason CHECK (reason <> '')
);
COMMENT ON TABLE revocations IS 'Certificates of clusters that count no longer, whatever their end says; every hub reads all of it twice a second';
COMMENT ON COLUMN revocations.cluster_id IS 'Cluster of the certificates';
COMMENT ON COLUMN revocations.not_before_min IS 'Certificates that began before are refused; none: no such limit. It only rises';
COMMENT ON COLUMN revocations.serials_denied IS 'Serial numbers that are refused, in lower hex without leading zeros; they only grow';
COMMENT ON COLUMN revocations.reason IS 'Why, as said last';
COMMENT ON COLUMN revocations.changed_by IS 'Who said so last';
COMMENT ON COLUMN revocations.changed_at IS 'When that was';

CREATE TABLE quarantines (
    cluster_id text NOT NULL,
    cause text NOT NULL,
    detail text NOT NULL,
    raised_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT quarantines_pkey PRIMARY KEY (cluster_id),
    CONSTRAINT quarantines_cause_known CHECK (cause IN ('boot_ids', 'kube_system_uid', 'decommissioned'))
);
COMMENT ON TABLE quarantines IS 'Clusters under whose identity nobody attaches: it was seen in two places, until a person clears it, or is decommissioned, for ever';
COMMENT ON COLUMN quarantines.cluster_id IS 'The identity';
COMMENT ON COLUMN quarantines.cause IS 'boot_ids: two processes took turns as one replica; kube_system_uid: another cluster showed this one''s certificate; decommissioned: the cluster is gone for good';
COMMENT ON COLUMN quarantines.detail IS 'What was seen';
COMMENT ON COLUMN quarantines.raised_at IS 'When';

ALTER TABLE sessions
    ADD COLUMN boots text[] NOT NULL DEFAULT '{}',
    ADD COLUMN boots_at timestamptz[] NOT NULL DEFAULT '{}',
    ADD COLUMN certificate_serial text NOT NULL DEFAULT '',
    ADD COLUMN certificate_not_before timestamptz;
COMMENT ON COLUMN sessions.boots IS 'Boot ids of this replica in the order in which they took over from each other, the last 16';
COMMENT ON COLUMN sessions.boots_at IS 'When each of them did';
COMMENT ON COLUMN sessions.certificate_serial IS 'Serial number of the certificate that the replica attached with, in lower hex';
COMMENT ON COLUMN sessions.certificate_not_before IS 'When that certificate began';

-- Clusters that are not taken over under the database's epoch: looked for at each judgement, hardly ever there.
CREATE INDEX clusters_by_taken_over ON clusters (taken_over_term);
