//! Stage 7: due envelopes to the stream of their cluster's leader.
