//! The only two places where server code touches payload in user space, each with its counter.
//!
//! The servers pass descriptors on and let the kernel move bytes; these counters stay 0 on every regular path and say so
//! in the metrics.

use std::sync::atomic::{AtomicU64, Ordering};

static COPIED: AtomicU64 = AtomicU64::new(0);
static READ: AtomicU64 = AtomicU64::new(0);

/// Copies payload and counts it.
///
/// # Panics
/// If the lengths differ, as `copy_from_slice` does.
pub fn copy_payload(destination: &mut [u8], source: &[u8]) {
    destination.copy_from_slice(source);
    count(&COPIED, source.len());
}

/// Payload that is going to be read (a checksum traced, say), counted.
pub fn read_payload(payload: &[u8]) -> &[u8] {
    count(&READ, payload.len());
    payload
}

/// Bytes that went through [`copy_payload`] in this process.
pub fn payload_bytes_copied() -> u64 {
    COPIED.load(Ordering::Relaxed)
}

/// Bytes that went through [`read_payload`] in this process.
pub fn payload_bytes_read() -> u64 {
    READ.load(Ordering::Relaxed)
}

fn count(counter: &AtomicU64, bytes: usize) {
    counter.fetch_add(
        u64::try_from(bytes).expect("invariant: usize fits u64"),
        Ordering::Relaxed,
    );
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_byte_is_counted_once() {
        let (copied, read) = (super::payload_bytes_copied(), super::payload_bytes_read());
        let mut destination = [0; 5];
        super::copy_payload(&mut destination, b"bytes");
        assert_eq!(super::read_payload(&destination), b"bytes");
        assert_eq!(
            (
                super::payload_bytes_copied() - copied,
                super::payload_bytes_read() - read
            ),
            (5, 5)
        );
    }
}
