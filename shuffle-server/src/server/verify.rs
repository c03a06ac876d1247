//! Sums the buffers that the core wants summed, since one did not have its checksum at its reader: the only payload that a server
//! reads, and it is counted.

use std::io;
use std::time::Instant;

use buffer_pool::counted::read_payload;
use shuffle_protocol::error::{ErrorKind, Initiator};
use shuffle_protocol::{JobId, ShuffleError};

use super::service::Core;
use crate::node::Verify;

/// Does at once what is wanted: a buffer is summed in microseconds, and it happens only when memory, a disk or a wire is broken.
pub(super) fn run(core: &mut Core) {
    while let Some(verify) = core.poll_verify() {
        let outcome = sum(core, &verify).map_err(|error| {
            let message = format!("buffer {} cannot be looked at: {error}", verify.slot.slot);
            ShuffleError::new(ErrorKind::Io, message)
                .by(Initiator::Own)
                .job(JobId::new(verify.slot.job.0))
        });
        core.handle_verified(Instant::now(), verify.ticket, outcome);
    }
}

fn sum(core: &mut Core, verify: &Verify) -> io::Result<u32> {
    let Verify {
        slot, offset, length, ..
    } = *verify;
    let mapped = core.pool_mut().backing_mut().mapped(slot.job, slot.arena)?;
    let payload = mapped.leased(slot.slot, offset, length).map_err(io::Error::other)?;
    Ok(crc32fast::hash(read_payload(&payload)))
}
