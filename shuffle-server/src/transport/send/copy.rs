//! The portable way: gather, write, forget. What is written has been copied by the kernel.

use std::io::{self, IoSlice};

use buffer_pool::SlotRef;
use shuffle_protocol::ShuffleError;

use super::{SendStrategy, Strategy};
use crate::transport::outbox::{MAX_SLICES, Outbox};
use crate::transport::wire::Wire;

/// Gathering vectored writes to any stream socket.
#[derive(Debug)]
pub(crate) struct CopySend<W> {
    wire: W,
}

impl<W: Wire> CopySend<W> {
    pub(crate) fn new(wire: W) -> Self {
        Self { wire }
    }
}

impl<W: Wire> SendStrategy for CopySend<W> {
    fn strategy(&self) -> Strategy {
        Strategy::Copy
    }

    fn takes_file(&self, _length: u32) -> bool {
        false
    }

    fn try_send(&self, outbox: &mut Outbox, done: &mut Vec<SlotRef>) -> io::Result<()> {
        let written = {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let filled = outbox.gather(&mut slices);
            self.wire.try_write(&slices[..filled])?
        };
        outbox.advance(written, done);
        Ok(())
    }

    fn is_idle(&self) -> bool {
        true
    }

    fn holds_slots(&self) -> bool {
        false
    }

    async fn ready(&self) -> io::Result<()> {
        self.wire.wait_writable().await
    }

    fn handle_pong(&self, _nonce: u64, _done: &mut Vec<SlotRef>) -> Result<(), ShuffleError> {
        Ok(())
    }

    async fn finish(self, _done: &mut Vec<SlotRef>) {}
}
