//! The send strategy of connections that go through a ring.

use std::io;
use std::num::NonZero;
use std::os::fd::AsFd;
use std::rc::Rc;

use buffer_pool::SlotRef;
use shuffle_protocol::ShuffleError;
use tracing::{info, warn};

use super::engine::{Engine, Settings};
use super::line::Line;
use super::piece::Gather;
use crate::server::Service;
use crate::transport::outbox::{MAX_SLICES, Outbox, WRITE_BYTES};
use crate::transport::send::{Counted, SendStrategy, Strategy};

/// Rings are for machines with many connections: one for so many processors.
const PROCESSORS_PER_RING: usize = 8;
const MAX_RINGS: usize = 4;
const ENTRIES: u32 = 256;

/// Pieces go to a ring's thread; slots are done at the last completion of the gather they were sent in.
#[derive(Debug)]
pub(crate) struct UringSend {
    line: Line,
    counted: Counted,
}

impl UringSend {
    /// `None`: the connection is to go another way. Said once for the server where the rings cannot be had, and for each
    /// connection they have no place for.
    pub(crate) fn open(service: &Service, socket: impl AsFd) -> Option<Self> {
        let rings = service.rings.get_or_init(|| start(service)).as_ref()?;
        match Line::open(rings, socket) {
            Ok(line) => Some(Self {
                line,
                counted: Counted::new(&service.sending, Strategy::Uring),
            }),
            Err(error) => {
                warn!("a connection is copied: {error}");
                None
            }
        }
    }
}

impl UringSend {
    fn count_reports(&self) {
        self.counted.all().add_zero_copy(self.line.take_zero_copy_sends());
    }
}

fn start(service: &Service) -> Option<Rc<Engine>> {
    let pool = &service.config.pool;
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let settings = Settings {
        threads: (processors / PROCESSORS_PER_RING).clamp(1, MAX_RINGS),
        entries: ENTRIES,
        total_buffers: pool.buffers,
        buffer_bytes: pool.buffer_bytes,
        extent_buffers: pool.extent_buffers,
    };
    match Engine::start(settings) {
        Ok(engine) => {
            info!("io_uring: {} rings, each with its thread", settings.threads);
            let holder = engine.page_holder();
            service.with_backing(|backing| backing.set_page_holder(holder));
            Some(Rc::new(engine))
        }
        Err(unavailable) => {
            warn!("payload is copied: {unavailable}");
            None
        }
    }
}

impl SendStrategy for UringSend {
    fn strategy(&self) -> Strategy {
        Strategy::Uring
    }

    fn takes_file(&self, _length: u32) -> bool {
        false
    }

    fn try_send(&self, outbox: &mut Outbox, done: &mut Vec<SlotRef>) -> io::Result<()> {
        let news = self.line.take_news(done);
        self.count_reports();
        let mut moved = news?;
        if self.line.has_room() && !outbox.is_empty() {
            let before = outbox.unsent_payload();
            self.line.send(Gather::new(outbox.take(WRITE_BYTES, MAX_SLICES)));
            self.counted.all().add_ringed(before - outbox.unsent_payload());
            moved = true;
        }
        if moved {
            Ok(())
        } else {
            Err(io::ErrorKind::WouldBlock.into())
        }
    }

    fn is_idle(&self) -> bool {
        self.line.is_idle()
    }

    fn holds_slots(&self) -> bool {
        !self.line.is_idle()
    }

    async fn ready(&self) -> io::Result<()> {
        self.line.wait().await;
        Ok(())
    }

    async fn stirs(&self) {
        self.line.wait().await;
    }

    fn handle_pong(&self, _nonce: u64, _done: &mut Vec<SlotRef>) -> Result<(), ShuffleError> {
        Ok(())
    }

    async fn finish(mut self, done: &mut Vec<SlotRef>) {
        self.line.finish(done).await;
        self.count_reports();
    }
}
