//! All that a decision looks at, read in one go.
