//! The inventory: clusters, nodes, and which nodes are due to be judged.
