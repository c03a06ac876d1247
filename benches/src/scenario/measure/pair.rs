//! Pairs of processes without a server between them.

use std::time::Duration;

use super::delivery::Delivery;
use super::stage::Stage;
use crate::console::Console;
use crate::error::BenchError;
use crate::load::Task;
use crate::peers::{End, PairLoad, Way};

/// The work of some pairs at a time.
#[derive(Debug, Clone)]
pub(crate) struct Pairs {
    pub(crate) way: Way,
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

impl Pairs {
    /// Delivers once.
    pub(crate) async fn deliver(&self, console: &mut Console) -> Result<Delivery, BenchError> {
        let mut stage = Stage::open(self.stall_timeout, self.verbose)?;
        for index in 0..self.pairs {
            let path = stage.dir().join(format!("pair-{index}.sock")).display().to_string();
            let give = self.load(index, End::Give { path: path.clone() });
            let address = stage
                .start_worker(&format!("giver-{index}"), Task::Pair(give), console)
                .await?;
            let end = End::Take {
                address: address.unwrap_or(path),
            };
            let take = Task::Pair(self.load(index, end));
            stage.start_worker(&format!("taker-{index}"), take, console).await?;
        }
        let performance = stage.perform(console).await?;
        stage.close().await?;
        let (givers, takers): (Vec<_>, Vec<_>) = performance
            .done
            .iter()
            .cloned()
            .enumerate()
            .partition(|(at, _)| at % 2 == 0);
        let side = |done: Vec<(usize, _)>| done.into_iter().map(|(_, done)| done).collect::<Vec<_>>();
        Ok(Delivery::new(performance, &side(givers), &side(takers)))
    }

    fn load(&self, index: u32, end: End) -> PairLoad {
        let each = self.bytes.div_ceil(u64::from(self.pairs));
        PairLoad {
            way: self.way,
            index,
            end,
            pieces: each.div_ceil(u64::from(self.piece_bytes)),
            piece_bytes: self.piece_bytes,
            buffers: self.buffers,
            checksums: self.checksums,
        }
    }
}
