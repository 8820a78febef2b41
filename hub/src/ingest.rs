//! Stage 4: faults and cluster state into Postgres; the ack follows the commit.
