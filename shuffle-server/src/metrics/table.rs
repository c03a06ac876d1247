//! Every metric of the server, once. A name that is not here is not published; a test holds the documentation to it.

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};

/// How a metric moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only up, from 0 at the start.
    Counter,
    /// Up and down.
    Gauge,
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Name, as in a status report; exporters see it behind `shuffle_`.
    pub name: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
    /// What is counted.
    pub unit: Unit,
    /// What it means.
    pub help: &'static str,
}

const fn metric(name: &'static str, kind: Kind, unit: Unit, help: &'static str) -> Metric {
    Metric { name, kind, unit, help }
}

use Kind::{Counter, Gauge};
use Unit::{Bytes, Count};

/// The table.
#[rustfmt::skip] // a table
pub const METRICS: &[Metric] = &[
    metric("buffers_produced", Counter, Count, "Buffers handed over by writers"),
    metric("bytes_produced", Counter, Bytes, "Payload handed over by writers"),
    metric("buffers_local", Counter, Count, "Buffers given to readers on the producing node"),
    metric("bytes_local", Counter, Bytes, "Payload given to readers on the producing node"),
    metric("buffers_sent", Counter, Count, "Buffers sent to other nodes, repeats included"),
    metric("bytes_sent", Counter, Bytes, "Payload sent to other nodes, repeats included"),
    metric("buffers_received", Counter, Count, "Buffers received from other nodes"),
    metric("bytes_received", Counter, Bytes, "Payload received from other nodes"),
    metric("buffers_resent", Counter, Count, "Buffers sent again after a connection broke, or since they did not have their checksum at their reader"),
    metric("mismatches_wire", Counter, Count, "Buffers without their checksum at a reader here, intact where they were produced: changed on the wire or in receiving memory"),
    metric("mismatches_producer_memory", Counter, Count, "Buffers without their checksum at a reader, changed in the memory of this node, which produced them"),
    metric("mismatches_disk", Counter, Count, "Buffers without their checksum at a reader, changed in a data file of this node"),
    metric("buffers_refetched", Counter, Count, "Buffers without their checksum that were given to a reader here once more"),
    metric("buffers_unwanted", Counter, Count, "Buffers that arrived twice or for a channel that nobody reads any more"),
    metric("buffers_discarded", Counter, Count, "Buffers thrown away because their reader was gone"),
    metric("relays_opened", Counter, Count, "Broadcast partitions of other nodes of which this node fetched a copy for its consumers"),
    metric("refetch_bytes", Counter, Bytes, "Payload of broadcast partitions that was fetched once more, for consumers that held up the others of this node"),
    metric("partitions_created", Counter, Count, "Result partitions registered"),
    metric("partitions_finished", Counter, Count, "Result partitions finished"),
    metric("partitions_failed", Counter, Count, "Result partitions failed"),
    metric("partitions_released", Counter, Count, "Result partitions released"),
    metric("partitions_recovered", Counter, Count, "Persistent partitions of earlier starts that are served again"),
    metric("bytes_spilled", Counter, Bytes, "Payload that left memory for a disk"),
    metric("bytes_loaded", Counter, Bytes, "Payload that was loaded from a disk for a reader"),
    metric("channels_opened", Counter, Count, "Input channels opened for readers on this node"),
    metric("channels_failed", Counter, Count, "Input channels failed"),
    metric("event_messages", Counter, Count, "Messages to drivers of jobs about partitions"),
    metric("events_told", Counter, Count, "Events of partitions in those messages"),
    metric("subscriptions_dropped", Counter, Count, "Drivers given up because they took in events too slowly"),
    metric("groups_failed", Counter, Count, "Pipelined groups failed"),
    metric("links_opened", Counter, Count, "Connections to other servers that came up"),
    metric("channels_resumed", Counter, Count, "Channels taken up again on a new connection"),
    metric("peers_lost", Counter, Count, "Other servers given up"),
    metric("refused", Counter, Count, "Frames refused because they broke the protocol, and messages dropped because too many wait for a peer"),
    metric("sessions", Gauge, Count, "Attached executors"),
    metric("partitions", Gauge, Count, "Result partitions registered now"),
    metric("subpartition_bytes", Gauge, Bytes, "Private memory for the books of all subpartitions, without what waits in them"),
    metric("gates", Gauge, Count, "Input gates open now"),
    metric("relays", Gauge, Count, "Copies of broadcast partitions of other nodes that are being read here"),
    metric("channels_serving", Gauge, Count, "Channels served now, to this node and others"),
    metric("channels_fetching", Gauge, Count, "Channels fetched from other nodes now"),
    metric("peer_links", Gauge, Count, "Pairs of nodes and stripes that are connected"),
    metric("jobs", Gauge, Count, "Jobs on this node"),
    metric("requests_waiting", Gauge, Count, "Requests that wait for buffers"),
    metric("subscriptions", Gauge, Count, "Drivers of jobs that are told of partitions"),
    metric("buffers_unassigned", Gauge, Count, "Buffers in the bank"),
    metric("buffers_free", Gauge, Count, "Buffers in an arena that nobody holds"),
    metric("buffers_granted", Gauge, Count, "Buffers granted to writers"),
    metric("buffers_queued", Gauge, Count, "Buffers queued or sent and not yet acknowledged"),
    metric("buffers_reserved", Gauge, Count, "Buffers promised as credit"),
    metric("buffers_receiving", Gauge, Count, "Buffers a frame is arriving in"),
    metric("buffers_viewed", Gauge, Count, "Buffers that readers look at"),
    metric("buffers_read_ahead", Gauge, Count, "Buffers read ahead from disk"),
    metric("buffers_kernel", Gauge, Count, "Buffers the kernel may still read"),
    metric("buffers_quarantined", Gauge, Count, "Buffers a fenced or cancelled holder may still touch"),
    metric("payload_bytes_copied", Counter, Bytes, "Payload copied in user space by the server"),
    metric("payload_bytes_read", Counter, Bytes, "Payload read in user space by the server"),
    metric("disk_bytes_written", Counter, Bytes, "Bytes written to storage directories, data and indexes"),
    metric("disk_bytes_read", Counter, Bytes, "Bytes of data read from storage directories"),
    metric("disk_operations", Counter, Count, "Operations given to storage directories"),
    metric("disk_errors", Counter, Count, "Operations of storage directories that failed"),
    metric("disk_bytes_used", Gauge, Bytes, "Bytes of this server in its storage directories"),
    metric("disk_directories_usable", Gauge, Count, "Storage directories that take new files"),
    metric("pool_bytes", Gauge, Bytes, "Size of the network buffer pool"),
    metric("server_private_bytes", Gauge, Bytes, "Resident memory that is not shared memory"),
    metric("server_peak_private_bytes", Gauge, Bytes, "Most resident memory that was not shared memory"),
    metric("server_arena_bytes", Gauge, Bytes, "Blocks allocated in the pool's memfds"),
    metric("server_peak_arena_bytes", Gauge, Bytes, "Most blocks that were allocated in the pool's memfds"),
    metric("server_open_files", Gauge, Count, "Open descriptors of the server"),
    metric("peer_connections", Gauge, Count, "TCP connections to other servers"),
    metric("peer_connections_peak", Gauge, Count, "Most TCP connections to other servers at one time"),
    metric("peer_connections_copy", Gauge, Count, "Connections to other servers on which the kernel copies what is sent"),
    metric("peer_connections_sendfile", Gauge, Count, "Connections to other servers on which sendfile sends"),
    metric("peer_connections_uring", Gauge, Count, "Connections to other servers on which io_uring sends"),
    metric("send_bytes_copied", Counter, Bytes, "Payload sent by copy and sendfile that the kernel copied"),
    metric("send_bytes_uncopied", Counter, Bytes, "Payload sent by sendfile, by reference to its pages"),
    metric("send_bytes_uring", Counter, Bytes, "Payload given to io_uring to be sent"),
    metric("send_bytes_uring_uncopied", Counter, Bytes, "Of these, sent without a copy, as the kernel has reported"),
    metric("send_zero_copy_copied", Counter, Count, "Zero-copy sends of io_uring that the kernel reports to have copied after all"),
    metric("send_zero_copy_uncopied", Counter, Count, "Zero-copy sends of io_uring that the kernel reports not to have copied"),
    metric("send_fallbacks", Counter, Count, "Connections to other servers that did not get the configured way to send"),
    metric("connections_refused", Counter, Count, "Connections closed in their handshake"),
    metric("accept_exhausted", Counter, Count, "Times a connection could not be accepted for want of descriptors or memory"),
];

/// Tells the installed recorder, if any, what the metrics mean.
pub(crate) fn describe() {
    for metric in METRICS {
        let name = format!("shuffle_{}", metric.name);
        match metric.kind {
            Counter => describe_counter!(name, metric.unit, metric.help),
            Gauge => describe_gauge!(name, metric.unit, metric.help),
        }
    }
}

/// Gives the values of a status report to the installed recorder.
pub(crate) fn publish(values: &[(String, u64)]) {
    for (name, value) in values {
        let Some(metric) = METRICS.iter().find(|metric| metric.name == name) else {
            debug_assert!(false, "metric {name} is not in the table");
            continue;
        };
        let name = format!("shuffle_{}", metric.name);
        match metric.kind {
            Counter => counter!(name).absolute(*value),
            // The facade knows gauges as floating point only; 53 bits are enough for any of these.
            Gauge => gauge!(name).set(approximate(*value)),
        }
    }
}

fn approximate(value: u64) -> f64 {
    let [high, low] = [value >> 32, value & u64::from(u32::MAX)].map(|half| u32::try_from(half).unwrap_or(u32::MAX));
    f64::from(high) * 4_294_967_296.0 + f64::from(low)
}

#[cfg(test)]
mod tests {
    use super::METRICS;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_plain() {
        let names: BTreeSet<_> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), METRICS.len());
        assert!(
            names
                .iter()
                .all(|name| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'))
        );
    }
}
