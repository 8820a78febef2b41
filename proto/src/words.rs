//! The closed sets of words: level, mode, action. Each prints as people write it.

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $text)] $variant),+
        }

        impl $name {
            /// Every value, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word as it is written.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// The value of a word, or nothing.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}
pub(crate) use words;

words!(
    /// How bad: P0 act now, P1 warn and watch a window, P2 record. Ordered from least to worst.
    Level {
        /// Record only.
        P2 = "P2",
        /// Warn now, act if it lasts past the observation window.
        P1 = "P1",
        /// Act now.
        P0 = "P0",
    }
);

words!(
    /// How far a policy may go; each includes the ones before it. The first is the careful default.
    Mode {
        /// Record and explain; nothing leaves the hub.
        Observe = "observe",
        /// Say it: Kubernetes Events and notifications.
        Notify = "notify",
        /// Label and taint the node.
        Mark = "mark",
        /// Heal once a person has approved.
        Approve = "approve",
        /// Mark and drain without asking.
        Heal = "heal",
    }
);

words!(
    /// What a command is for, in one word for tables and metrics.
    Action {
        /// Post an Event.
        Notify = "notify",
        /// Label and taint.
        Mark = "mark",
        /// Restart workloads by their templates.
        Restart = "restart",
        /// Mark, then evict GPU pods.
        Evict = "evict",
        /// Undo exactly what we did.
        Release = "release",
    }
);

/// What a label of an alert may say, as policy spells it.
pub const ALERT_LABEL_MEANINGS: [&str; 12] = [
    "node",
    "node_hint",
    "instance",
    "gpu_uuid",
    "gpu_slot",
    "gpu_index",
    "xid_code",
    "xid_count",
    "gpu_temp",
    "workload_pod",
    "workload_namespace",
    "workload_container",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_careful_value_comes_first() {
        assert_eq!(Mode::ALL[0], Mode::Observe);
        assert!(Mode::Observe < Mode::Mark && Mode::Mark < Mode::Heal);
        assert!(Level::P2 < Level::P0);
        assert_eq!(Level::parse("P0"), Some(Level::P0));
        assert_eq!(Level::parse("p0"), None);
    }
}
