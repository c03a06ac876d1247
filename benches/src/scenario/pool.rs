//! How large the buffers of a run are: so that every writer and every gate can be guaranteed what it
//! needs to run at full speed.

use crate::cli::CommonArgs;
use crate::error::BenchError;

/// What the writers and gates of one node are guaranteed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Guarantees {
    pub(super) writers: u32,
    /// One buffer for each subpartition that a writer has open.
    pub(super) buffers_per_writer: u32,
    pub(super) gates: u32,
    /// One for each credit bound to a channel from another node.
    pub(super) buffers_per_gate: u32,
}

/// The pool of each server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PoolSize {
    pub(super) buffers: u32,
    pub(super) buffer_bytes: u32,
}

impl PoolSize {
    pub(super) fn bytes(self) -> u64 {
        u64::from(self.buffers) * u64::from(self.buffer_bytes)
    }

    /// The pool that was asked for; otherwise 64 MiB with the largest buffers, up to 32 KiB, that give
    /// every node its guarantees.
    ///
    /// # Errors
    /// No such pool.
    pub(super) fn choose(common: &CommonArgs, nodes: &[Guarantees]) -> Result<Self, BenchError> {
        let fits = |pool: &Self| nodes.iter().all(|node| node.fit(pool.buffers));
        let sized = |buffer_bytes: u32| Self {
            buffers: POOL_BYTES / buffer_bytes.max(1),
            buffer_bytes,
        };
        let pool = match (common.pool_buffers, common.buffer_size) {
            (Some(buffers), size) => Self {
                buffers,
                buffer_bytes: size.unwrap_or(MOST_BYTES),
            },
            (None, Some(size)) => sized(size),
            (None, None) => [MOST_BYTES, 16 << 10, 8 << 10, LEAST_BYTES]
                .map(sized)
                .into_iter()
                .find(fits)
                .unwrap_or_else(|| sized(LEAST_BYTES)),
        };
        if fits(&pool) {
            return Ok(pool);
        }
        let most = nodes.iter().map(Guarantees::least_pool).max().unwrap_or(0);
        Err(BenchError::Usage(format!(
            "a pool of {} buffers of {} bytes is too small, it takes {most}: a buffer for each writer and subpartition \
             (at most three quarters of the pool) and the credits of all gates; take fewer executors, smaller buffers \
             (--buffer-size) or more of them (--pool-buffers)",
            pool.buffers, pool.buffer_bytes
        )))
    }
}

impl Guarantees {
    fn writing(&self) -> u64 {
        u64::from(self.writers) * u64::from(self.buffers_per_writer)
    }

    fn total(&self) -> u64 {
        self.writing() + u64::from(self.gates) * u64::from(self.buffers_per_gate.max(1))
    }

    /// Buffers of the smallest pool that will do. Writers may have three quarters of it, and either arena may need one
    /// extent more than is guaranteed, because memory moves by extents.
    fn least_pool(&self) -> u64 {
        let writing = (self.writing() + EXTENT).saturating_mul(4).div_ceil(3);
        writing.max(self.total() + 2 * EXTENT)
    }

    fn fit(&self, buffers: u32) -> bool {
        self.least_pool() <= u64::from(buffers)
    }
}

const POOL_BYTES: u32 = 64 << 20;
const MOST_BYTES: u32 = 32 << 10;
const LEAST_BYTES: u32 = 4 << 10;
const EXTENT: u64 = 8;

#[cfg(test)]
mod tests {
    use super::{Guarantees, PoolSize};
    use crate::cli::{CommonArgs, OutputArgs};

    fn common(pool_buffers: Option<u32>, buffer_size: Option<u32>) -> CommonArgs {
        CommonArgs {
            pool_buffers,
            buffer_size,
            output: OutputArgs {
                json: None,
                stall_timeout: 60,
                verbose: false,
            },
        }
    }

    fn node(executors: u32) -> Guarantees {
        Guarantees {
            writers: executors,
            buffers_per_writer: 2 * executors,
            gates: executors,
            buffers_per_gate: 2 * executors,
        }
    }

    #[test]
    fn a_small_run_has_the_default_pool() {
        let pool = PoolSize::choose(&common(None, None), &[node(2), node(2)]).expect("a pool");
        assert_eq!((pool.buffers, pool.buffer_bytes), (2048, 32 << 10));
        assert_eq!(pool.bytes(), 64 << 20);
    }

    #[test]
    fn many_executors_get_smaller_buffers_of_the_same_pool() {
        let pool = PoolSize::choose(&common(None, None), &[node(32), node(32)]).expect("a pool");
        assert_eq!((pool.buffers, pool.buffer_bytes), (8192, 8 << 10));
    }

    #[test]
    fn what_was_asked_for_is_taken_or_refused() {
        let pool = PoolSize::choose(&common(Some(100), Some(4096)), &[node(2)]).expect("a pool");
        assert_eq!((pool.buffers, pool.buffer_bytes), (100, 4096));
        let pool = PoolSize::choose(&common(None, Some(65_536)), &[node(2)]).expect("a pool");
        assert_eq!((pool.buffers, pool.buffer_bytes), (1024, 65_536));
        let error = PoolSize::choose(&common(Some(2048), None), &[node(32)]).expect_err("too small");
        assert!(error.to_string().contains("it takes 4112"), "{error}");
        assert!(PoolSize::choose(&common(None, None), &[node(256)]).is_err());
    }
}
