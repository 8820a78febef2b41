-- Asking for a node's judgement without waiting for whoever holds the node.

CREATE TABLE asks (
    ask_id bigint GENERATED ALWAYS AS IDENTITY,
    cluster_id text NOT NULL,
    node_uid text NOT NULL,
    asked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    why text NOT NULL,
    CONSTRAINT asks_pkey PRIMARY KEY (ask_id)
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 500);
COMMENT ON TABLE asks IS 'Asks for the judgement of nodes whose row in judgements another held at that moment; whoever judges next makes those nodes due and takes the asks away. Empty most of the time';
COMMENT ON COLUMN asks.ask_id IS 'Of no meaning but to tell rows apart: nothing is taken by its order';
COMMENT ON COLUMN asks.cluster_id IS 'Cluster of the node';
COMMENT ON COLUMN asks.node_uid IS 'The node';
COMMENT ON COLUMN asks.asked_at IS 'When it was asked';
COMMENT ON COLUMN asks.why IS 'What asked for it';
