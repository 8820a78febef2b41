//! Who is attached, and which session owns a cluster's leader.
