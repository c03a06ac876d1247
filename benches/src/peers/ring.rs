//! Slot numbers in two rings in shared memory, and a futex for whoever sleeps.
//!
//! ```text
//! words of one page, each group on a cache line of its own
//! |tail full|head full|sleeps full|tail free|head free|sleeps free| entries full .. | entries free .. |
//!
//! giver: pop free, fill, push full        taker: pop full, read, push free
//! ```
//!
//! One process pushes to a ring and the other pops from it. An entry is written before its tail, and a
//! tail before a look at whether the other sleeps; who is about to sleep says so before it looks at the
//! tail for the last time. So either the sleeper sees the entry, or the pusher sees the sleeper.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use buffer_pool::{MappedArena, SharedWords};
use rustix::io::Errno;
use rustix::thread::futex;

use super::memory::{make, map_pieces, meet_giver, meet_taker, pieces_of};
use super::{End, PairLoad, changed, failed};
use crate::executor::ExecutorError;
use crate::load::{Done, Filler, Reader, wait_for_go};

/// One end of the pair.
pub(super) fn run(load: &PairLoad) -> Result<Done, ExecutorError> {
    match &load.end {
        End::Give { path } => {
            let (file, arena) = make("pieces", load.buffers, load.piece_bytes)?;
            let (rings, mapped) = make("rings", 1, control_bytes(load.buffers))?;
            let _socket = meet_taker(path, &[file.readonly_fd(), rings.writable_fd()])?;
            give(load, &arena, &mapped.words(0).map_err(failed("the rings"))?)
        }
        End::Take { address } => {
            let (_socket, descriptors) = meet_giver(address)?;
            let arena = map_pieces(pieces_of(&descriptors)?, load.buffers, load.piece_bytes)?;
            let rings = descriptors
                .get(1)
                .ok_or_else(|| ExecutorError::Other("no rings came".to_owned()))?;
            let mapped = MappedArena::map_writable(rings, 1, control_bytes(load.buffers))
                .map_err(failed("mapping the rings"))?;
            take(load, &arena, &mapped.words(0).map_err(failed("the rings"))?)
        }
    }
}

fn give(load: &PairLoad, arena: &MappedArena, words: &SharedWords) -> Result<Done, ExecutorError> {
    let (mut full, mut home) = (Ring::full(words, load.buffers), Ring::free(words, load.buffers));
    let mut free: Vec<u32> = (0..load.buffers).collect();
    let mut filler = Filler::new(load.index);
    let watch = wait_for_go()?;
    for _ in 0..load.pieces {
        // What came back last is warmest.
        while let Some((slot, _)) = home.pop() {
            free.push(slot);
        }
        let slot = match free.pop() {
            Some(slot) => slot,
            None => home.pop_or_sleep()?.0,
        };
        let mut buffer = arena.writable(slot).map_err(failed("a free slot"))?;
        filler.fill(&mut buffer);
        let checksum = if load.checksums { crc32fast::hash(&buffer) } else { 0 };
        buffer.hand_over();
        full.push(slot, checksum)?;
    }
    Ok(watch.stop(filler.totals()))
}

fn take(load: &PairLoad, arena: &MappedArena, words: &SharedWords) -> Result<Done, ExecutorError> {
    let (mut full, mut home) = (Ring::full(words, load.buffers), Ring::free(words, load.buffers));
    let mut reader = Reader::new();
    let watch = wait_for_go()?;
    for piece in 0..load.pieces {
        let (slot, checksum) = full.pop_or_sleep()?;
        let bytes = arena
            .shared(slot, 0, load.piece_bytes)
            .map_err(failed("a slot that came"))?;
        if load.checksums && crc32fast::hash(&bytes) != checksum {
            return Err(changed(piece));
        }
        reader.read(&bytes);
        drop(bytes);
        home.push(slot, 0)?;
    }
    Ok(watch.stop(reader.totals()))
}

/// One end of one ring. It never fills: there are as many entries as slots.
struct Ring<'a> {
    tail: &'a AtomicU32,
    sleeps: &'a AtomicU32,
    entries: &'a [AtomicU32],
    /// Next entry that this end pushes or pops.
    next: u32,
}

/// Words on a cache line, twice: processors fetch lines in pairs.
const LINE: usize = 32;
const ENTRIES: usize = 4 * LINE;
const ENTRY_WORDS: usize = 2;
const SPINS: u32 = 1_000;

fn words_of(buffers: u32) -> usize {
    ENTRY_WORDS * usize::try_from(buffers.next_power_of_two()).expect("invariant: a count fits an address")
}

/// Bytes of both rings, in whole pages.
fn control_bytes(buffers: u32) -> u32 {
    let bytes = 4 * (ENTRIES + 2 * words_of(buffers));
    u32::try_from(bytes.next_multiple_of(4096)).expect("invariant: a few MiB at most")
}

impl<'a> Ring<'a> {
    fn full(words: &'a SharedWords, buffers: u32) -> Self {
        Self::at(words, 0, ENTRIES, buffers)
    }

    fn free(words: &'a SharedWords, buffers: u32) -> Self {
        Self::at(words, 2 * LINE, ENTRIES + words_of(buffers), buffers)
    }

    fn at(words: &'a SharedWords, head: usize, entries: usize, buffers: u32) -> Self {
        let words = words.words();
        Self {
            tail: &words[head],
            sleeps: &words[head + LINE],
            entries: &words[entries..entries + words_of(buffers)],
            next: 0,
        }
    }

    /// The two words of the entry with this number.
    fn entry(&self, number: u32) -> (&'a AtomicU32, &'a AtomicU32) {
        let place = usize::try_from(number).expect("invariant: a number fits an address") * ENTRY_WORDS;
        let place = place & (self.entries.len() - 1);
        (&self.entries[place], &self.entries[place + 1])
    }

    fn push(&mut self, slot: u32, checksum: u32) -> Result<(), ExecutorError> {
        let (first, second) = self.entry(self.next);
        first.store(slot, Ordering::Relaxed);
        second.store(checksum, Ordering::Relaxed);
        self.next = self.next.wrapping_add(1);
        self.tail.store(self.next, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.sleeps.load(Ordering::Relaxed) == 1 {
            self.sleeps.store(0, Ordering::Relaxed);
            futex::wake(self.sleeps, futex::Flags::empty(), 1).map_err(failed("waking the other process"))?;
        }
        Ok(())
    }

    fn pop(&mut self) -> Option<(u32, u32)> {
        if self.tail.load(Ordering::Acquire) == self.next {
            return None;
        }
        let (first, second) = self.entry(self.next);
        self.next = self.next.wrapping_add(1);
        Some((first.load(Ordering::Relaxed), second.load(Ordering::Relaxed)))
    }

    fn pop_or_sleep(&mut self) -> Result<(u32, u32), ExecutorError> {
        loop {
            for _ in 0..SPINS {
                if let Some(entry) = self.pop() {
                    return Ok(entry);
                }
                spin_loop();
            }
            self.sleeps.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if let Some(entry) = self.pop() {
                self.sleeps.store(0, Ordering::Relaxed);
                return Ok(entry);
            }
            match futex::wait(self.sleeps, futex::Flags::empty(), 1, None) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(failed("sleeping")(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Ring, control_bytes, make};

    #[test]
    fn entries_come_out_in_order_and_wake_whoever_sleeps() {
        let (file, arena) = make("rings", 1, control_bytes(3)).expect("memory");
        let theirs = super::MappedArena::map_writable(file.writable_fd(), 1, control_bytes(3)).expect("mapped");
        let taker = std::thread::spawn(move || {
            let words = theirs.words(0).expect("free");
            let (mut full, mut home) = (Ring::full(&words, 3), Ring::free(&words, 3));
            for number in 0..10_000 {
                assert_eq!(full.pop_or_sleep().expect("an entry"), (number % 3, number));
                home.push(number % 3, 0).expect("pushed");
            }
        });
        let words = arena.words(0).expect("free");
        let (mut full, mut home) = (Ring::full(&words, 3), Ring::free(&words, 3));
        for number in 0..10_000 {
            if number % 100 == 0 {
                std::thread::yield_now();
            }
            full.push(number % 3, number).expect("pushed");
            assert_eq!(home.pop_or_sleep().expect("an entry").0, number % 3);
        }
        taker.join().expect("all came");
        assert!(home.pop().is_none());
    }
}
