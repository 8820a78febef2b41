-- What holds us back: cooldowns, budgets with their holds, rates.

CREATE TABLE cooldowns (
    cluster_id text NOT NULL,
    node_uid text NOT NULL,
    incident_id uuid NOT NULL,
    state text NOT NULL,
    until_at timestamptz,
    changed_at timestamptz NOT NULL,
    CONSTRAINT cooldowns_pkey PRIMARY KEY (cluster_id, node_uid),
    CONSTRAINT cooldowns_state_known CHECK (state IN ('reserved', 'running', 'void')),
    CONSTRAINT cooldowns_running_ends CHECK ((state = 'running') = (until_at IS NOT NULL))
) WITH (fillfactor = 70);
COMMENT ON TABLE cooldowns IS 'After acting on a node nothing new is done to it until then';
COMMENT ON COLUMN cooldowns.cluster_id IS 'Cluster of the node';
COMMENT ON COLUMN cooldowns.node_uid IS 'The node';
COMMENT ON COLUMN cooldowns.incident_id IS 'Incident whose action it follows; it never holds back that one';
COMMENT ON COLUMN cooldowns.state IS 'reserved with the decision, running from the first effect, void when nothing came of it';
COMMENT ON COLUMN cooldowns.until_at IS 'When it ends; none unless it runs';
COMMENT ON COLUMN cooldowns.changed_at IS 'When it moved last';

CREATE TABLE budgets (
    scope text NOT NULL,
    cluster_id text NOT NULL DEFAULT '',
    kind text NOT NULL,
    out integer NOT NULL DEFAULT 0,
    allowed integer NOT NULL DEFAULT 0,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT budgets_pkey PRIMARY KEY (cluster_id, scope),
    CONSTRAINT budgets_out_natural CHECK (out >= 0),
    CONSTRAINT budgets_kind_known CHECK (kind IN ('fleet', 'cluster', 'pool', 'rack')),
    CONSTRAINT budgets_fleet_has_no_cluster CHECK ((kind = 'fleet') = (cluster_id = ''))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 500);
COMMENT ON TABLE budgets IS 'How many nodes are out, per scope; moves only with the insert and delete of a hold';
COMMENT ON COLUMN budgets.scope IS 'fleet, cluster, pool/NAME, rack/NAME';
COMMENT ON COLUMN budgets.cluster_id IS 'Cluster of the scope; empty for the fleet';
COMMENT ON COLUMN budgets.kind IS 'fleet, cluster, pool or rack: the order in which they are locked';
COMMENT ON COLUMN budgets.out IS 'Nodes that count as out';
COMMENT ON COLUMN budgets.allowed IS 'How many were allowed when it was last spent';
COMMENT ON COLUMN budgets.changed_at IS 'When it moved last';

CREATE TABLE holds (
    cluster_id text NOT NULL,
    node_uid text NOT NULL,
    incident_id uuid NOT NULL,
    scopes text[] NOT NULL,
    held_at timestamptz NOT NULL,
    CONSTRAINT holds_pkey PRIMARY KEY (cluster_id, node_uid),
    CONSTRAINT holds_has_scopes CHECK (cardinality(scopes) > 0)
) WITH (fillfactor = 70);
COMMENT ON TABLE holds IS 'Nodes that count as out: marked by us, or commanded and not yet heard of';
COMMENT ON COLUMN holds.cluster_id IS 'Cluster of the node';
COMMENT ON COLUMN holds.node_uid IS 'The node';
COMMENT ON COLUMN holds.incident_id IS 'Incident that holds it';
COMMENT ON COLUMN holds.scopes IS 'Budgets in which it counts';
COMMENT ON COLUMN holds.held_at IS 'Since when';

CREATE TABLE rate_buckets (
    scope text NOT NULL,
    cluster_id text NOT NULL DEFAULT '',
    milli_tokens bigint NOT NULL,
    filled_at timestamptz NOT NULL,
    CONSTRAINT rate_buckets_pkey PRIMARY KEY (cluster_id, scope),
    CONSTRAINT rate_buckets_tokens_natural CHECK (milli_tokens >= 0)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 500);
COMMENT ON TABLE rate_buckets IS 'How many more nodes may be acted on right now';
COMMENT ON COLUMN rate_buckets.scope IS 'fleet or cluster';
COMMENT ON COLUMN rate_buckets.cluster_id IS 'Cluster of the scope; empty for the fleet';
COMMENT ON COLUMN rate_buckets.milli_tokens IS 'Thousandths of a node that were left then';
COMMENT ON COLUMN rate_buckets.filled_at IS 'The moment at which that was left';
