//! The limits that both ends of the link keep, each with its arithmetic.

use std::time::Duration;

/// Largest message that either side puts on the stream. Checked at enqueue: what cannot be sent is set aside.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// What tonic accepts either way: the above and a sixteenth, so that a limit of ours is met first and explained.
pub const TRANSPORT_BYTES_MAX: usize = MESSAGE_BYTES_MAX + (64 << 10);
/// What a message may take in memory, as `frame.rs` reckons it: eight times its largest form on the wire. The fullest snapshot of a
/// real cluster takes three times; a frame of empty faults, two bytes each, would take three hundred times.
pub const DECODED_BYTES_MAX: usize = 8 * MESSAGE_BYTES_MAX;
/// Faults in a batch: at about 600 bytes each, 256 make 150 KiB, inside [`BATCH_BYTES_MAX`].
pub const BATCH_FAULTS_MAX: usize = 256;
/// Bytes in a batch.
pub const BATCH_BYTES_MAX: usize = 256 << 10;
/// A signed command: 16 steps and an undo record are about 8 KiB; 64 KiB leaves room and fits an etcd object.
pub const ENVELOPE_BYTES_MAX: usize = 64 << 10;
/// Signatures in one envelope: two keys during a rotation, and room for an approver's.
pub const SIGNATURES_MAX: usize = 8;
/// Steps of one command.
pub const STEPS_MAX: usize = 16;
/// Workloads of one restart: each is named in 368 bytes at most (kind 11, namespace 63, name 253, UID 36, with what stands between), so
/// 16 make 6 KiB, inside [`ENVELOPE_BYTES_MAX`].
pub const WORKLOADS_MAX: usize = 16;
/// Marks of others that a policy may have ignored, and each command carries: 32 of [`MARKER_BYTES_MAX`] are 12 KiB, and with the automations'
/// 4 KiB a quarter of [`ENVELOPE_BYTES_MAX`].
pub const MARKERS_IGNORED_MAX: usize = 32;
/// One such mark: a label's key of 317 bytes, `=`, and a value of 63.
pub const MARKER_BYTES_MAX: usize = 384;
/// Field managers that a policy may call automations, and each command carries.
pub const AUTOMATIONS_MAX: usize = 32;
/// A field manager's name, as long as Kubernetes takes it.
pub const AUTOMATION_BYTES_MAX: usize = 128;
/// Nodes in one part of a snapshot: at about 1.5 KiB each, 500 make 750 KiB, inside [`MESSAGE_BYTES_MAX`].
pub const SNAPSHOT_NODES_MAX: usize = 500;
/// Parts of one snapshot, each of half a message of nodes at most: 64 are 32 MiB, or 32,000 nodes, six times what Kubernetes supports. Either
/// side refuses more.
pub const SNAPSHOT_PARTS_MAX: usize = 64;
/// Items of evidence in one message.
pub const EVIDENCE_MAX: usize = 256;
/// A fault's code.
pub const CODE_BYTES_MAX: usize = 128;
/// A fault's source, for people.
pub const SOURCE_BYTES_MAX: usize = 256;
/// A fault's detail: what the source itself said.
pub const DETAIL_BYTES_MAX: usize = 512;
/// A reason in a status.
pub const REASON_BYTES_MAX: usize = 1024;
/// A policy document.
pub const POLICY_BYTES_MAX: usize = 256 << 10;
/// Journals that a Hello names: the one that is written and those before it, with room for a few crashes. A replica that holds more names the
/// newest, and sends the others from their first number on: what the hub has of them it drops.
pub const JOURNALS_NAMED_MAX: usize = 8;
/// Faults that a spoke may have sent and not had acked: four full batches.
pub const CREDIT: u32 = 1024;

/// Highest number of a journal's record, of a node's plan and of a cluster's command: 100,000 a second for 2,850 years.
pub const SEQ_MAX: u64 = 1 << 53;
/// What a Lease's transitions can be: 31 bits.
pub const REIGN_MAX: u64 = i32::MAX as u64;
/// How far a database that is restored may be behind the commands of one cluster: 1,000 a second for 34 years. A hub believes no Hello that
/// is further ahead.
pub const COMMANDS_AHEAD_MAX: u64 = 1 << 40;
/// How often either side says that it lives. Three missed ones make [`DEAD_AFTER`].
pub const HEARTBEAT: Duration = Duration::from_secs(15);
/// Silence after which a stream is torn down.
pub const DEAD_AFTER: Duration = Duration::from_secs(45);
/// First wait before attaching again; doubled up to [`RECONNECT_MAX`], with full jitter.
pub const RECONNECT_BASE: Duration = Duration::from_secs(1);
/// Longest wait before attaching again.
pub const RECONNECT_MAX: Duration = Duration::from_secs(30);
/// Largest uncertainty of the spoke's view of hub time at which it still starts something harmful.
pub const CLOCK_UNCERTAINTY_MAX: Duration = Duration::from_secs(30);
/// No command may be good for longer than this.
pub const COMMAND_LIFE_MAX: Duration = Duration::from_secs(24 * 3600);
