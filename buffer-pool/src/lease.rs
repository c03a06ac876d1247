//! One word per buffer says what this process may do with its bytes.
//!
//! ```text
//!            try_write             freeze            try_share (n + 1)
//!   Home  ------------> Writable ---------> Shared(1) <--------> Shared(n)
//!    ^  ^------------------'                  |  end_share (n - 1)
//!    |        end_write                       |
//!    +----------------------------------------+   end_share of the last;   try_reclaim: Shared(1) -> Writable
//! ```
//!
//! Writable excludes everything else, so `&mut [u8]` and `&[u8]` to one buffer never meet in a process. Every way home is
//! a release and every lease an acquire: who gets the buffer next sees all that was done to it.

use crate::sync::{AtomicU32, Ordering};

const HOME: u32 = 0;
const WRITABLE: u32 = u32::MAX;
const MOST_SHARED: u32 = u32::MAX / 2;

/// Home, writable, or shared by n.
#[derive(Debug)]
pub(crate) struct LeaseWord(AtomicU32);

impl LeaseWord {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(HOME))
    }

    /// Home to writable.
    pub(crate) fn try_write(&self) -> bool {
        self.0
            .compare_exchange(HOME, WRITABLE, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// One more sharer of a buffer that nobody writes.
    pub(crate) fn try_share(&self) -> bool {
        let more = |word| (word < MOST_SHARED).then(|| word + 1);
        self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_ok()
    }

    /// Writable to shared by one.
    pub(crate) fn freeze(&self) {
        self.leave_writable(1);
    }

    /// Writable to home.
    pub(crate) fn end_write(&self) {
        self.leave_writable(HOME);
    }

    /// Shared by one to writable: the last sharer takes it for itself.
    pub(crate) fn try_reclaim(&self) -> bool {
        self.0
            .compare_exchange(1, WRITABLE, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// One sharer less; home if it was the last.
    pub(crate) fn end_share(&self) {
        let before = self.0.fetch_sub(1, Ordering::Release);
        assert!(
            before != HOME && before <= MOST_SHARED,
            "invariant: a sharer ends its share once"
        );
    }

    fn leave_writable(&self, next: u32) {
        let before = self.0.swap(next, Ordering::Release);
        assert!(before == WRITABLE, "invariant: only the writer ends the writing");
    }
}

#[cfg(test)]
mod tests {
    #[cfg(loom)]
    use loom::{sync::Arc, thread};
    #[cfg(not(loom))]
    use std::{sync::Arc, thread};

    use super::LeaseWord;
    use crate::sync::{AtomicU32, Ordering};

    /// All interleavings under loom, some of them otherwise.
    fn explore(model: impl Fn() + Send + Sync + 'static) {
        #[cfg(loom)]
        loom::model(model);
        #[cfg(not(loom))]
        (0..500).for_each(|_| model());
    }

    /// The buffer is two words that every writer makes equal; `Relaxed`, so that only the lease orders them.
    struct Buffer {
        lease: LeaseWord,
        bytes: [AtomicU32; 2],
    }

    impl Buffer {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                lease: LeaseWord::new(),
                bytes: [AtomicU32::new(0), AtomicU32::new(0)],
            })
        }

        fn fill(&self, value: u32) {
            self.bytes.iter().for_each(|byte| byte.store(value, Ordering::Relaxed));
        }

        fn read(&self) -> u32 {
            let [first, second] = [0, 1].map(|at: usize| self.bytes[at].load(Ordering::Relaxed));
            assert_eq!(first, second, "a reader sees one writer's bytes");
            first
        }
    }

    #[test]
    fn loom_a_writer_and_a_reader_never_meet() {
        explore(|| {
            let buffer = Buffer::new();
            let writer = {
                let buffer = Arc::clone(&buffer);
                thread::spawn(move || {
                    if buffer.lease.try_write() {
                        buffer.fill(1);
                        buffer.lease.end_write();
                    }
                })
            };
            if buffer.lease.try_share() {
                buffer.read();
                buffer.lease.end_share();
            }
            writer.join().expect("the writer ends");
            assert!(buffer.lease.try_write(), "home after all");
        });
    }

    #[test]
    fn loom_two_writers_never_meet() {
        explore(|| {
            let buffer = Buffer::new();
            let other = {
                let buffer = Arc::clone(&buffer);
                thread::spawn(move || write(&buffer, 1))
            };
            let here = write(&buffer, 2);
            let there = other.join().expect("the writer ends");
            assert!(here || there, "one of two got it");
            assert!(buffer.lease.try_write(), "home after all");
            let last = buffer.read();
            assert!(
                last == 1 && there || last == 2 && here,
                "who got it was seen by the next"
            );
        });

        fn write(buffer: &Buffer, value: u32) -> bool {
            let got = buffer.lease.try_write();
            if got {
                buffer.read();
                buffer.fill(value);
                buffer.lease.end_write();
            }
            got
        }
    }

    #[test]
    fn loom_the_next_writer_comes_after_the_last_reader() {
        explore(|| {
            let buffer = Buffer::new();
            assert!(buffer.lease.try_write());
            buffer.fill(1);
            buffer.lease.freeze();
            assert!(buffer.lease.try_share());
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    let buffer = Arc::clone(&buffer);
                    thread::spawn(move || {
                        assert_eq!(buffer.read(), 1, "frozen bytes do not change");
                        buffer.lease.end_share();
                    })
                })
                .collect();
            if buffer.lease.try_write() {
                buffer.fill(2);
                buffer.lease.end_write();
            }
            readers
                .into_iter()
                .for_each(|reader| reader.join().expect("the reader ends"));
            assert!(buffer.lease.try_write(), "home after all");
        });
    }

    #[test]
    fn loom_only_a_sole_sharer_reclaims() {
        explore(|| {
            let buffer = Buffer::new();
            assert!(buffer.lease.try_write());
            buffer.lease.freeze();
            let newcomer = {
                let buffer = Arc::clone(&buffer);
                thread::spawn(move || {
                    if buffer.lease.try_share() {
                        buffer.read();
                        buffer.lease.end_share();
                    }
                })
            };
            if buffer.lease.try_reclaim() {
                buffer.fill(7);
                buffer.lease.end_write();
            } else {
                buffer.lease.end_share();
            }
            newcomer.join().expect("the newcomer ends");
            assert!(buffer.lease.try_write(), "home after all");
        });
    }
}
