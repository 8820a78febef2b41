-- The fleet as it is known: clusters, who is attached, journals' positions, nodes, and which nodes are due to be judged.

CREATE TABLE hub_state (
    only_row boolean NOT NULL DEFAULT true,
    hub_term bigint NOT NULL,
    raised_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason text NOT NULL,
    stop_reason text,
    recognised_run text,
    CONSTRAINT hub_state_pkey PRIMARY KEY (only_row),
    CONSTRAINT hub_state_one_row CHECK (only_row),
    CONSTRAINT hub_state_term_positive CHECK (hub_term > 0)
);
COMMENT ON TABLE hub_state IS 'One row: what is true of this database as a whole';
COMMENT ON COLUMN hub_state.only_row IS 'Always true: there is one row';
COMMENT ON COLUMN hub_state.hub_term IS 'Epoch of the database: raised at each promotion or restore, never lowered';
COMMENT ON COLUMN hub_state.raised_at IS 'When the term was raised last';
COMMENT ON COLUMN hub_state.reason IS 'Why it was raised';
COMMENT ON COLUMN hub_state.recognised_run IS 'The run of the server that a hub has recognised last, as server_run() names it: in any other, commits may have been lost since';
COMMENT ON COLUMN hub_state.stop_reason IS 'Why the whole fleet is stopped; none: it is not';
INSERT INTO hub_state (hub_term, reason) VALUES (1, 'new database');

CREATE TABLE hub_marks (
    hub_id text NOT NULL,
    mark uuid NOT NULL,
    left_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT hub_marks_pkey PRIMARY KEY (hub_id)
) WITH (fillfactor = 50);
COMMENT ON TABLE hub_marks IS 'A mark of each hub, another twice a second: one that a hub has left and does not find again was lost with all that was committed since';
COMMENT ON COLUMN hub_marks.hub_id IS 'The process that left it';
COMMENT ON COLUMN hub_marks.mark IS 'Chosen at random each time';
COMMENT ON COLUMN hub_marks.left_at IS 'When; rows of hubs that are gone for a day are deleted';

CREATE FUNCTION hub_term() RETURNS bigint LANGUAGE sql STABLE AS 'SELECT hub_term FROM hub_state';
COMMENT ON FUNCTION hub_term() IS 'Epoch of the database';

CREATE FUNCTION server_run() RETURNS text LANGUAGE sql STABLE AS
    'SELECT format(''database %s, server started at %s'', oid, extract(epoch FROM pg_postmaster_start_time())) FROM pg_database WHERE datname = current_database()';
COMMENT ON FUNCTION server_run() IS 'Which database in which run of which server this is: no two of them have the same name';

CREATE TABLE clusters (
    cluster_id text NOT NULL,
    name text NOT NULL DEFAULT '',
    kube_system_uid text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    spoke_version text NOT NULL DEFAULT '',
    settings_version bigint NOT NULL DEFAULT 0,
    settings_errors jsonb NOT NULL DEFAULT '[]',
    config_resource_version text NOT NULL DEFAULT '',
    config_yaml text NOT NULL DEFAULT '',
    config_errors jsonb NOT NULL DEFAULT '[]',
    sources jsonb NOT NULL DEFAULT '{}',
    state_lease_transitions bigint NOT NULL DEFAULT 0,
    state_seq bigint NOT NULL DEFAULT 0,
    state_as_of timestamptz,
    told_upto timestamptz,
    state_received_at timestamptz,
    first_term bigint NOT NULL DEFAULT hub_term(),
    snapshot_term bigint,
    taken_over_term bigint,
    CONSTRAINT clusters_pkey PRIMARY KEY (cluster_id),
    CONSTRAINT clusters_id_form CHECK (cluster_id ~ '^[a-z0-9][a-z0-9-]{0,62}$')
);
COMMENT ON TABLE clusters IS 'One row per Kubernetes cluster that has ever attached';
COMMENT ON COLUMN clusters.cluster_id IS 'Opaque id, from the certificate of its spoke';
COMMENT ON COLUMN clusters.name IS 'For people; the id when nobody named it';
COMMENT ON COLUMN clusters.kube_system_uid IS 'UID of its kube-system namespace: another one under this id is a clone';
COMMENT ON COLUMN clusters.created_at IS 'First seen';
COMMENT ON COLUMN clusters.spoke_version IS 'Version of the spoke that attached last';
COMMENT ON COLUMN clusters.settings_version IS 'Detection settings that the spoke has taken';
COMMENT ON COLUMN clusters.settings_errors IS 'Why the spoke did not take the last settings; empty when it did';
COMMENT ON COLUMN clusters.config_resource_version IS 'Version of the cluster owner''s ConfigMap';
COMMENT ON COLUMN clusters.config_yaml IS 'The cluster owner''s own settings; empty when the ConfigMap is absent';
COMMENT ON COLUMN clusters.config_errors IS 'What the spoke found wrong in them';
COMMENT ON COLUMN clusters.sources IS 'Freshness of each signal source, by source and node';
COMMENT ON COLUMN clusters.state_lease_transitions IS 'Leadership under which the last state was reported';
COMMENT ON COLUMN clusters.state_seq IS 'Number of the last state message under that leadership';
COMMENT ON COLUMN clusters.state_as_of IS 'The moment that the last state describes, by the spoke''s account of hub time';
COMMENT ON COLUMN clusters.told_upto IS 'All that the cluster''s sources showed up to this moment is known here; no release is decided without it';
COMMENT ON COLUMN clusters.state_received_at IS 'When the last state came';
COMMENT ON COLUMN clusters.first_term IS 'Epoch of the database in which the cluster was first seen';
COMMENT ON COLUMN clusters.snapshot_term IS 'Epoch of the database in which the last whole snapshot came; none: the inventory is not known';
COMMENT ON COLUMN clusters.taken_over_term IS 'Epoch of the database under which all that the cluster has was last known to be here: its nodes, the faults that stand, the commands on record; any other than hub_state.hub_term, or none: it is still to be taken over, and nothing new is begun there';

CREATE TABLE cluster_sizes (
    cluster_id text NOT NULL,
    gpu_nodes integer NOT NULL,
    CONSTRAINT cluster_sizes_pkey PRIMARY KEY (cluster_id),
    CONSTRAINT cluster_sizes_natural CHECK (gpu_nodes >= 0)
) WITH (fillfactor = 50);
COMMENT ON TABLE cluster_sizes IS 'What budgets are a share of. Each judgement adds up the fleet from these few narrow rows and never counts its nodes';
COMMENT ON COLUMN cluster_sizes.cluster_id IS 'The cluster';
COMMENT ON COLUMN cluster_sizes.gpu_nodes IS 'Its nodes that are there and should offer a GPU, counted again with each state that changes one';

CREATE TABLE sessions (
    cluster_id text NOT NULL,
    replica_id text NOT NULL,
    session_generation bigint NOT NULL DEFAULT 1,
    boot_id text NOT NULL,
    hub_id text NOT NULL,
    version text NOT NULL DEFAULT '',
    caps text[] NOT NULL DEFAULT '{}',
    lease_transitions bigint,
    attached_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    leads_since timestamptz,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    detached_at timestamptz,
    clock_skew_ms bigint,
    CONSTRAINT sessions_pkey PRIMARY KEY (cluster_id, replica_id),
    CONSTRAINT sessions_generation_positive CHECK (session_generation > 0)
) WITH (fillfactor = 70);
COMMENT ON TABLE sessions IS 'Who owns the stream of each spoke replica; a higher generation takes over';
COMMENT ON COLUMN sessions.cluster_id IS 'Cluster of the replica';
COMMENT ON COLUMN sessions.replica_id IS 'The replica: its pod''s name';
COMMENT ON COLUMN sessions.session_generation IS 'Raised at each attach; whoever holds a lower one is out';
COMMENT ON COLUMN sessions.boot_id IS 'New at each start of the replica''s process';
COMMENT ON COLUMN sessions.hub_id IS 'Which hub process holds the stream';
COMMENT ON COLUMN sessions.version IS 'Version of the replica';
COMMENT ON COLUMN sessions.caps IS 'Optional messages that the replica understands';
COMMENT ON COLUMN sessions.lease_transitions IS 'Proof of leadership; none when it does not lead';
COMMENT ON COLUMN sessions.attached_at IS 'When this generation began';
COMMENT ON COLUMN sessions.leads_since IS 'When it last proved that it had begun to lead after attaching; what was sent before went to another';
COMMENT ON COLUMN sessions.seen_at IS 'Last sign of life, written in bulk';
COMMENT ON COLUMN sessions.detached_at IS 'When the stream ended; none while it is open';
COMMENT ON COLUMN sessions.clock_skew_ms IS 'How far the replica''s wall clock was ahead of this database''s when it attached; none: it did not tell';

CREATE TABLE streams (
    cluster_id text NOT NULL,
    stream_id text NOT NULL,
    acked_upto bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT streams_pkey PRIMARY KEY (cluster_id, stream_id),
    CONSTRAINT streams_acked_natural CHECK (acked_upto >= 0)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);
COMMENT ON TABLE streams IS 'How far each journal of each spoke is committed: one row stands for millions of record numbers';
COMMENT ON COLUMN streams.cluster_id IS 'Cluster of the journal';
COMMENT ON COLUMN streams.stream_id IS 'The journal; new when it was new, damaged or not closed cleanly';
COMMENT ON COLUMN streams.acked_upto IS 'Every record up to this number is committed here';
COMMENT ON COLUMN streams.created_at IS 'First seen';
COMMENT ON COLUMN streams.updated_at IS 'When it moved last';

CREATE TABLE journals (
    cluster_id text NOT NULL,
    stream_id text NOT NULL,
    replica_id text NOT NULL,
    told_upto bigint NOT NULL DEFAULT 0,
    ended boolean NOT NULL DEFAULT false,
    named_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    vanished_at timestamptz,
    CONSTRAINT journals_pkey PRIMARY KEY (cluster_id, stream_id),
    CONSTRAINT journals_told_natural CHECK (told_upto >= 0)
);
CREATE INDEX journals_by_replica ON journals (cluster_id, replica_id) WHERE vanished_at IS NULL;
COMMENT ON TABLE journals IS 'Which replica holds each journal, and how far it said that it goes; how far that is committed is in streams, which no attach touches';
COMMENT ON COLUMN journals.cluster_id IS 'Cluster of the journal';
COMMENT ON COLUMN journals.stream_id IS 'The journal';
COMMENT ON COLUMN journals.replica_id IS 'The replica that named it last';
COMMENT ON COLUMN journals.told_upto IS 'Highest record number that the replica has told of, committed here or not';
COMMENT ON COLUMN journals.ended IS 'told_upto is its end: another is written in its place, or its replica said at last that it is closed';
COMMENT ON COLUMN journals.named_at IS 'When a replica last said, at an attach, that it holds it';
COMMENT ON COLUMN journals.vanished_at IS 'When it was found to be gone with what was not committed; none: it is not';

CREATE TABLE nodes (
    cluster_id text NOT NULL,
    node_uid text NOT NULL,
    node_name text NOT NULL,
    boot_id text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL,
    labels jsonb NOT NULL DEFAULT '{}',
    gpus jsonb NOT NULL DEFAULT '[]',
    gpus_capacity integer NOT NULL DEFAULT 0,
    gpus_allocatable integer NOT NULL DEFAULT 0,
    ready text NOT NULL DEFAULT 'unknown',
    unschedulable boolean NOT NULL DEFAULT false,
    unschedulable_by text NOT NULL DEFAULT '',
    labelled boolean NOT NULL DEFAULT false,
    tainted boolean NOT NULL DEFAULT false,
    cordoned_by_us boolean NOT NULL DEFAULT false,
    mark_incident_id text NOT NULL DEFAULT '',
    last_process_at timestamptz,
    plan_revision bigint NOT NULL DEFAULT 0,
    plan_rev_issued bigint NOT NULL DEFAULT 0,
    opted_out boolean NOT NULL DEFAULT false,
    foreign_markers text[] NOT NULL DEFAULT '{}',
    gpu_pods jsonb NOT NULL DEFAULT '[]',
    state_as_of timestamptz NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    gone_at timestamptz,
    CONSTRAINT nodes_pkey PRIMARY KEY (cluster_id, node_uid),
    CONSTRAINT nodes_ready_known CHECK (ready IN ('ready', 'not_ready', 'unknown')),
    CONSTRAINT nodes_plan_natural CHECK (plan_revision >= 0 AND plan_rev_issued >= 0),
    CONSTRAINT nodes_gpus_natural CHECK (gpus_capacity >= 0 AND gpus_allocatable >= 0)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE UNIQUE INDEX nodes_one_per_name ON nodes (cluster_id, node_name) WHERE gone_at IS NULL;
CREATE INDEX nodes_never_issued ON nodes (cluster_id) WHERE plan_revision > plan_rev_issued;
CREATE INDEX nodes_marked ON nodes (cluster_id, node_uid) WHERE gone_at IS NULL AND (labelled OR tainted OR cordoned_by_us);
CREATE INDEX nodes_with_gpus ON nodes (cluster_id) WHERE gone_at IS NULL AND gpus_capacity > 0;
COMMENT ON TABLE nodes IS 'GPU nodes as their cluster last showed them';
COMMENT ON COLUMN nodes.cluster_id IS 'Their cluster';
COMMENT ON COLUMN nodes.node_uid IS 'metadata.uid: another machine under an old name has another one';
COMMENT ON COLUMN nodes.node_name IS 'For people';
COMMENT ON COLUMN nodes.boot_id IS 'Of its running system';
COMMENT ON COLUMN nodes.created_at IS 'When Kubernetes created the node';
COMMENT ON COLUMN nodes.labels IS 'Those that policy may use';
COMMENT ON COLUMN nodes.gpus IS 'Slot, UUID and model of each GPU';
COMMENT ON COLUMN nodes.gpus_capacity IS 'GPUs that the node should offer';
COMMENT ON COLUMN nodes.gpus_allocatable IS 'GPUs that it does offer';
COMMENT ON COLUMN nodes.ready IS 'Its Ready condition: ready, not_ready or unknown';
COMMENT ON COLUMN nodes.unschedulable IS 'spec.unschedulable';
COMMENT ON COLUMN nodes.unschedulable_by IS 'Field manager that wrote it, when known';
COMMENT ON COLUMN nodes.labelled IS 'Our label is on it';
COMMENT ON COLUMN nodes.tainted IS 'Our taint is on it';
COMMENT ON COLUMN nodes.cordoned_by_us IS 'The cordon is ours';
COMMENT ON COLUMN nodes.mark_incident_id IS 'Incident named in its annotations; empty when none';
COMMENT ON COLUMN nodes.last_process_at IS 'When something was last done to it, from its annotations';
COMMENT ON COLUMN nodes.plan_revision IS 'Highest plan revision that wrote to it, from its annotations';
COMMENT ON COLUMN nodes.plan_rev_issued IS 'Highest plan revision that this hub has issued for it';
COMMENT ON COLUMN nodes.opted_out IS 'Its owner keeps us off';
COMMENT ON COLUMN nodes.foreign_markers IS 'Who else is at work on it';
COMMENT ON COLUMN nodes.gpu_pods IS 'Its GPU pods in short';
COMMENT ON COLUMN nodes.state_as_of IS 'The moment that this row describes';
COMMENT ON COLUMN nodes.changed_at IS 'When this row changed last';
COMMENT ON COLUMN nodes.gone_at IS 'When the node was seen deleted, or was absent from a whole snapshot; none while it exists';

CREATE TABLE judgements (
    cluster_id text NOT NULL,
    node_uid text NOT NULL,
    due_at timestamptz,
    asked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempts integer NOT NULL DEFAULT 0,
    why text NOT NULL,
    CONSTRAINT judgements_pkey PRIMARY KEY (cluster_id, node_uid),
    CONSTRAINT judgements_attempts_natural CHECK (attempts >= 0)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 500);
CREATE INDEX judgements_due ON judgements (due_at) WHERE due_at IS NOT NULL;
COMMENT ON TABLE judgements IS 'When each node is to be judged next. Its row is the node''s lock: whoever changes what is known of a node takes it first';
COMMENT ON COLUMN judgements.cluster_id IS 'Cluster of the node';
COMMENT ON COLUMN judgements.node_uid IS 'The node';
COMMENT ON COLUMN judgements.due_at IS 'When to judge it; none: nothing to judge';
COMMENT ON COLUMN judgements.asked_at IS 'When something last asked for it';
COMMENT ON COLUMN judgements.attempts IS 'Judgements that failed in a row';
COMMENT ON COLUMN judgements.why IS 'What asked for it';
