-- Decisions in the order of their time: what spokes are told of.

CREATE INDEX decisions_by_time ON decisions (cluster_id, decided_at);
