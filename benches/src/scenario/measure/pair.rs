//! Pairs of processes without a server between them: nobody in between, or bare relays.

use std::time::Duration;

use super::delivery::Delivery;
use super::stage::Stage;
use crate::console::Console;
use crate::error::BenchError;
use crate::load::Task;
use crate::peers::{Carrier, CarrierLoad, End, PairLoad, Way};

/// The work of some pairs at a time.
#[derive(Debug, Clone)]
pub(crate) struct Pairs {
    pub(crate) way: Way,
    pub(crate) between: Between,
    pub(crate) pairs: u32,
    pub(crate) piece_bytes: u32,
    /// Of all pairs together; rounded up to whole pieces.
    pub(crate) bytes: u64,
    /// In circulation in each pair.
    pub(crate) buffers: u32,
    pub(crate) checksums: bool,
    pub(crate) stall_timeout: Duration,
    pub(crate) verbose: bool,
}

/// Who stands between giver and taker of slot numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Between {
    Nobody,
    /// One relay on the same node.
    Relay,
    /// Two relays with TCP between them: gathers of so many bytes, and so many pieces a message to the taker.
    Nodes {
        gather_bytes: u32,
        batch: usize,
    },
}

impl Pairs {
    /// Delivers once.
    pub(crate) async fn deliver(&self, console: &mut Console) -> Result<Delivery, BenchError> {
        let mut stage = Stage::open(self.stall_timeout, self.verbose)?;
        for index in 0..self.pairs {
            let path = path(&stage, index, "giver");
            let give = self.load(index, End::Give { path: path.clone() });
            let address = stage
                .start_worker(&format!("giver-{index}"), Task::Pair(give), console)
                .await?;
            let mut address = address.unwrap_or(path);
            for (name, carrier) in self.carriers(&stage, index) {
                let carry = Task::Carry(self.carrier_load(carrier, address.clone()));
                let listens = stage.start_worker(&format!("{name}-{index}"), carry, console).await?;
                address = listens.unwrap_or(address);
            }
            let end = End::Take { address };
            let take = Task::Pair(self.load(index, end));
            stage.start_worker(&format!("taker-{index}"), take, console).await?;
        }
        let performance = stage.perform(console).await?;
        stage.close().await?;
        let each = performance.done.len() / usize::try_from(self.pairs).expect("invariant: a count fits an address");
        let of = |place: usize| {
            let own = performance.done.iter().skip(place).step_by(each);
            own.cloned().collect::<Vec<_>>()
        };
        let (filled, read) = (of(0), of(each - 1));
        Ok(Delivery::new(performance, &filled, &read, 1))
    }

    /// In the order in which pieces pass them, each with its name.
    fn carriers(&self, stage: &Stage, index: u32) -> Vec<(&'static str, Carrier)> {
        let path = path(stage, index, "relay");
        match self.between {
            Between::Nobody => Vec::new(),
            Between::Relay => vec![("relay", Carrier::Relay { path })],
            Between::Nodes { gather_bytes, batch } => vec![
                ("sender", Carrier::Sender { gather_bytes }),
                ("receiver", Carrier::Receiver { path, batch }),
            ],
        }
    }

    fn carrier_load(&self, carrier: Carrier, address: String) -> CarrierLoad {
        CarrierLoad {
            carrier,
            address,
            pieces: self.pieces(),
            piece_bytes: self.piece_bytes,
            buffers: self.buffers,
        }
    }

    /// Of one pair.
    fn pieces(&self) -> u64 {
        self.bytes
            .div_ceil(u64::from(self.pairs))
            .div_ceil(u64::from(self.piece_bytes))
    }

    fn load(&self, index: u32, end: End) -> PairLoad {
        PairLoad {
            way: self.way,
            index,
            end,
            pieces: self.pieces(),
            piece_bytes: self.piece_bytes,
            buffers: self.buffers,
            checksums: self.checksums,
        }
    }
}

/// A socket of one of the processes.
fn path(stage: &Stage, index: u32, who: &str) -> String {
    let path = stage.dir().join(format!("{who}-{index}.sock"));
    path.display().to_string()
}
