//! Revisions of the fleet's policy.
