//! Every metric of the hub, with a sentence each.
