-- Faults as spokes sent them, and what could not be read.

CREATE TABLE faults (
    cluster_id text NOT NULL,
    fault_key bytea NOT NULL,
    episode integer NOT NULL,
    node_uid text NOT NULL,
    node_name text NOT NULL,
    boot_id text NOT NULL DEFAULT '',
    gpu_slot text NOT NULL DEFAULT '',
    gpu_uuid text NOT NULL DEFAULT '',
    gpu_model text NOT NULL DEFAULT '',
    class text NOT NULL,
    code text NOT NULL,
    onset text NOT NULL,
    value double precision NOT NULL DEFAULT 0,
    threshold double precision NOT NULL DEFAULT 0,
    count bigint NOT NULL DEFAULT 0,
    source text NOT NULL DEFAULT '',
    detail text NOT NULL DEFAULT '',
    workload text NOT NULL DEFAULT '',
    witnesses jsonb NOT NULL,
    first_at timestamptz NOT NULL,
    last_at timestamptz NOT NULL,
    observed_at timestamptz NOT NULL,
    evidence text NOT NULL DEFAULT 'seen',
    evidence_at timestamptz NOT NULL,
    evidence_since timestamptz NOT NULL,
    settled_at timestamptz,
    settled_level text,
    asked_at timestamptz,
    CONSTRAINT faults_pkey PRIMARY KEY (cluster_id, fault_key, episode),
    CONSTRAINT faults_key_length CHECK (octet_length(fault_key) = 32),
    CONSTRAINT faults_episode_positive CHECK (episode > 0),
    CONSTRAINT faults_onset_known CHECK (onset IN ('edge', 'standing')),
    CONSTRAINT faults_evidence_known CHECK (evidence IN ('seen', 'clear', 'stale')),
    CONSTRAINT faults_witnessed CHECK (witnesses <> '{}'::jsonb),
    CONSTRAINT faults_settled_has_level CHECK ((settled_at IS NULL) = (settled_level IS NULL)),
    CONSTRAINT faults_settled_level_known CHECK (settled_level IN ('P0', 'P1', 'P2'))
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
CREATE UNIQUE INDEX faults_one_open_episode ON faults (cluster_id, fault_key) WHERE settled_at IS NULL;
CREATE INDEX faults_open_by_node ON faults (cluster_id, node_uid) WHERE settled_at IS NULL;
CREATE INDEX faults_by_node ON faults (cluster_id, node_uid, first_at);
COMMENT ON TABLE faults IS 'One row per episode of a fault; the same thing seen twice is the same row';
COMMENT ON COLUMN faults.cluster_id IS 'Cluster that the fault is in';
COMMENT ON COLUMN faults.fault_key IS 'H(cluster, node uid, GPU slot or node, class, code)';
COMMENT ON COLUMN faults.episode IS 'Numbered here: a new one only after the last was settled and something new was seen';
COMMENT ON COLUMN faults.node_uid IS 'The node';
COMMENT ON COLUMN faults.node_name IS 'For people';
COMMENT ON COLUMN faults.boot_id IS 'Of the node when the fault was seen last';
COMMENT ON COLUMN faults.gpu_slot IS 'PCI address; empty for a fault of the whole node, and where nobody tells it';
COMMENT ON COLUMN faults.gpu_uuid IS 'Which GPU; empty when not told';
COMMENT ON COLUMN faults.gpu_model IS 'Its model; empty when not told';
COMMENT ON COLUMN faults.class IS 'Kind: xid, ecc, row_remap, thermal, gpu_lost, ...';
COMMENT ON COLUMN faults.code IS 'Code within the kind';
COMMENT ON COLUMN faults.onset IS 'edge: the change was seen; standing: found already there';
COMMENT ON COLUMN faults.value IS 'Highest reading of this episode';
COMMENT ON COLUMN faults.threshold IS 'The threshold that it passed';
COMMENT ON COLUMN faults.count IS 'Highest count in a window of this episode';
COMMENT ON COLUMN faults.source IS 'Observer that reported last';
COMMENT ON COLUMN faults.detail IS 'What it said';
COMMENT ON COLUMN faults.workload IS 'namespace/pod that used the GPU, when told';
COMMENT ON COLUMN faults.witnesses IS 'By kind of witness: onset, first and last receipt (ms), value, count, source';
COMMENT ON COLUMN faults.first_at IS 'First receipt of this episode';
COMMENT ON COLUMN faults.last_at IS 'Last receipt';
COMMENT ON COLUMN faults.observed_at IS 'When the spoke saw it last, by its own clock; decides nothing';
COMMENT ON COLUMN faults.evidence IS 'How it stands now: seen, clear or stale';
COMMENT ON COLUMN faults.evidence_at IS 'When that was last told';
COMMENT ON COLUMN faults.asked_at IS 'When a leader was last asked how it stands, since it had told nothing of it; NULL: never';
COMMENT ON COLUMN faults.evidence_since IS 'Since when it has been told without a break';
COMMENT ON COLUMN faults.settled_at IS 'When an incident that held it closed; none before';
COMMENT ON COLUMN faults.settled_level IS 'Up to which level that settled it: it opens nothing again unless it becomes worse';

CREATE TABLE poison (
    cluster_id text NOT NULL,
    stream_id text NOT NULL,
    seq bigint NOT NULL,
    raw bytea NOT NULL,
    error text NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT poison_pkey PRIMARY KEY (cluster_id, stream_id, seq)
);
COMMENT ON TABLE poison IS 'Fault records that could not be believed, as they came; acked, so that they block nothing';
COMMENT ON COLUMN poison.cluster_id IS 'Cluster that sent it';
COMMENT ON COLUMN poison.stream_id IS 'Its journal';
COMMENT ON COLUMN poison.seq IS 'Its number there';
COMMENT ON COLUMN poison.raw IS 'Its bytes';
COMMENT ON COLUMN poison.error IS 'What is wrong with it';
COMMENT ON COLUMN poison.received_at IS 'When it came';

CREATE TABLE gaps (
    cluster_id text NOT NULL,
    stream_id text NOT NULL,
    from_seq bigint NOT NULL,
    to_seq bigint,
    reason text NOT NULL,
    counts_by_class jsonb NOT NULL DEFAULT '{}',
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT gaps_pkey PRIMARY KEY (cluster_id, stream_id, from_seq),
    CONSTRAINT gaps_in_order CHECK (from_seq <= to_seq)
);
COMMENT ON TABLE gaps IS 'Records that never came: a spoke told that they are lost, or they are gone with its journal';
COMMENT ON COLUMN gaps.cluster_id IS 'Cluster that lost them';
COMMENT ON COLUMN gaps.stream_id IS 'Its journal';
COMMENT ON COLUMN gaps.from_seq IS 'First number that is missing';
COMMENT ON COLUMN gaps.to_seq IS 'Last number that is missing; none: nobody knows how many there were after the first, or whether there was any';
COMMENT ON COLUMN gaps.reason IS 'Why';
COMMENT ON COLUMN gaps.counts_by_class IS 'How many of each class';
COMMENT ON COLUMN gaps.received_at IS 'When it was told, or found';
