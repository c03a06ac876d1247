//! Every maximum of the protocol, in one place, and the inequalities between them.
//!
//! A length or count that comes from the other side is compared with one of these before anything is allocated
//! or added to it.

use std::time::Duration;

/// Oldest protocol version this build speaks.
pub const VERSION_MIN: u32 = 1;
/// Newest protocol version this build speaks.
pub const VERSION_MAX: u32 = 1;

/// Largest body of a control frame, in bytes. Only the two messages with a list of channels or of subpartitions
/// may be this long; see [`MAX_SMALL_CONTROL_BYTES`].
pub const MAX_CONTROL_BYTES: u32 = 8 << 20;
/// Largest body of every other control frame, and of each field in a large one, in bytes.
pub const MAX_SMALL_CONTROL_BYTES: u32 = 512 << 10;
/// Largest control frame before the handshake is done, in bytes: what a stranger can make us keep.
pub const MAX_HANDSHAKE_BYTES: u32 = 8 << 10;

/// Most entries in one batch frame.
pub const MAX_BATCH_ENTRIES: u32 = 1024;
/// Most slices in one data frame.
pub const MAX_SLICES: u32 = 256;
/// Most slices that a writer makes of one slot: what bounds the books of a server by the buffers it has.
pub const MAX_SLICES_OF_SLOT: u32 = 256;

/// Smallest buffer of a pool, in bytes.
pub const MIN_BUFFER_BYTES: u32 = 4 << 10;
/// Buffer size where none is configured, in bytes.
pub const DEFAULT_BUFFER_BYTES: u32 = 32 << 10;
/// Largest buffer of a pool, and largest payload of one data frame, in bytes.
pub const MAX_BUFFER_BYTES: u32 = 16 << 20;

/// Most subpartitions of one partition.
pub const MAX_SUBPARTITIONS: u32 = 1 << 17;
/// Most channels of one gate.
pub const MAX_CHANNELS_PER_GATE: u32 = 1 << 16;
/// Most nodes named in one group or one fence.
pub const MAX_GROUP_NODES: u32 = 1024;
/// Most counters in one status report.
pub const MAX_COUNTERS: u32 = 4096;

/// Most that is packed into one message with events of partitions, in bytes; one event alone may be longer.
pub const MAX_EVENTS_BYTES: u32 = 448 << 10;
/// Most subpartitions whose bytes are in one event.
pub const MAX_SUBPARTITIONS_PER_EVENT: u32 = 32 << 10;
/// Most messages with events that a server sends before it hears that they were seen.
pub const MAX_UNSEEN_EVENTS: u32 = 32;

/// Most buffers that the credit of one channel may promise beyond what was sent.
pub const MAX_CREDIT_WINDOW: u64 = 1 << 16;

/// Longest node address ("host:port"), in bytes.
pub const MAX_NODE_BYTES: u32 = 255;
/// Longest name of an executor, in bytes.
pub const MAX_NAME_BYTES: u32 = 128;
/// Longest encoded job token, in bytes.
pub const MAX_TOKEN_BYTES: u32 = 512;
/// Shortest cluster secret, in bytes.
pub const MIN_SECRET_BYTES: u32 = 16;
/// Longest cluster secret, in bytes.
pub const MAX_SECRET_BYTES: u32 = 1024;

/// Most connections between one pair of nodes.
pub const MAX_STRIPES: u32 = 64;

/// Longest chain of causes an error takes across the wire; of a longer one the first cause is kept and the middle
/// left out.
pub const MAX_ERROR_DEPTH: u32 = 8;
/// Longest text (message, path, detail) an error takes across the wire, in bytes; what is longer is cut.
pub const MAX_ERROR_TEXT_BYTES: u32 = 4 << 10;
/// Most numbers, and most texts, among the details of one error.
pub const MAX_ERROR_DETAILS: u32 = 8;

/// Longest timeout of any kind.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(31 * 24 * 60 * 60);

/// Where a node's server listens for its executors unless configured otherwise.
pub const DEFAULT_SOCKET: &str = "/tmp/shuffle/shuffle.sock";

/// Longest encoding of one `SubpartitionTotals` in a `FinishPartition`, in bytes: tag and length, a 32-bit and
/// four 64-bit varints with their tags.
const MAX_TOTALS_BYTES: u32 = 2 + (1 + 5) + 4 * (1 + 10);

const _: () = {
    assert!(VERSION_MIN <= VERSION_MAX);
    // A partition that could be created can be finished.
    assert!(MAX_SUBPARTITIONS as u64 * MAX_TOTALS_BYTES as u64 + 64 <= MAX_CONTROL_BYTES as u64);
    // A group and an error fit where only small messages are allowed.
    assert!(MAX_GROUP_NODES * (MAX_NODE_BYTES + 3) < MAX_SMALL_CONTROL_BYTES);
    assert!(MAX_ERROR_DEPTH * (MAX_ERROR_DETAILS + 2) * (MAX_ERROR_TEXT_BYTES + 64) < MAX_SMALL_CONTROL_BYTES);
    assert!(MAX_SUBPARTITIONS_PER_EVENT * 10 + 64 < MAX_SMALL_CONTROL_BYTES);
    assert!(MAX_EVENTS_BYTES < MAX_SMALL_CONTROL_BYTES);
    assert!(MAX_COUNTERS * 100 < MAX_SMALL_CONTROL_BYTES);
    assert!(MAX_SMALL_CONTROL_BYTES < MAX_CONTROL_BYTES);
    assert!(MAX_NODE_BYTES * 2 + MAX_NAME_BYTES + MAX_TOKEN_BYTES + 256 <= MAX_HANDSHAKE_BYTES);
    assert!(MIN_BUFFER_BYTES <= DEFAULT_BUFFER_BYTES && DEFAULT_BUFFER_BYTES <= MAX_BUFFER_BYTES);
    assert!(MAX_SLICES <= MAX_BATCH_ENTRIES);
    // The length of a frame, slice table and payload together, is far from the end of its 32 bits.
    assert!(MAX_SLICES as u64 * 48 + (MAX_BUFFER_BYTES as u64) < (u32::MAX / 2) as u64);
    // Timeouts travel as milliseconds in 32 bits.
    assert!(MAX_TIMEOUT.as_millis() <= u32::MAX as u128);
    assert!(MIN_SECRET_BYTES <= MAX_SECRET_BYTES);
};
