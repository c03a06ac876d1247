//! Writable, shared, home: who is told what, and when.

use std::sync::{Arc, Mutex};

use buffer_pool::{ArenaFile, Home, LeaseError, MappedArena, POISON};

const BUFFERS: u32 = 4;
const BUFFER_BYTES: u32 = 4096;

#[derive(Default)]
struct Told(Mutex<Vec<(u32, u64)>>);

impl Told {
    fn all(&self) -> Vec<(u32, u64)> {
        self.0.lock().expect("not poisoned").clone()
    }
}

impl Home for Told {
    fn handle_home(&self, slot: u32, tag: u64) {
        self.0.lock().expect("not poisoned").push((slot, tag));
    }
}

fn arena() -> (MappedArena, Arc<Told>) {
    let bytes = u64::from(BUFFERS * BUFFER_BYTES);
    let file = ArenaFile::create("test", bytes, bytes).expect("a memfd");
    file.allocate(0).expect("16 KiB");
    let arena = MappedArena::map_writable(file.writable_fd(), BUFFERS, BUFFER_BYTES).expect("mapped");
    (arena, Arc::default())
}

#[test]
fn the_last_drop_tells_home_once() {
    let (arena, told) = arena();
    let mut writable = arena.writable_from(2, told.clone(), 40).expect("nobody has it");
    writable[..11].copy_from_slice(b"hello world");
    let shared = writable.freeze(..11);
    let clone = shared.clone();
    let bytes = shared.slice(6..).into_bytes();
    let part = bytes.slice(1..3);
    drop((shared, clone, bytes));
    assert_eq!((&part[..], told.all()), (&b"or"[..], vec![]));
    drop(part);
    assert_eq!(told.all(), [(2, 40)]);
}

#[test]
fn bytes_are_the_buffer_itself() {
    let (arena, _) = arena();
    let mut writable = arena.writable(0).expect("nobody has it");
    let address = writable.as_mut_ptr();
    let bytes = writable.freeze(3..9).into_bytes();
    assert_eq!((bytes.as_ptr(), bytes.len()), (address.wrapping_add(3).cast_const(), 6));
}

#[test]
fn a_dropped_writable_goes_home_poisoned() {
    let (arena, told) = arena();
    let mut writable = arena.writable_from(1, told.clone(), 5).expect("nobody has it");
    writable.fill(1);
    drop(writable);
    assert_eq!(told.all(), [(1, 5)]);
    let expected = if cfg!(debug_assertions) { POISON } else { 1 };
    assert!(
        arena
            .shared(1, 0, BUFFER_BYTES)
            .expect("nobody writes it")
            .iter()
            .all(|&byte| byte == expected)
    );
}

#[test]
fn a_frozen_buffer_goes_home_poisoned_and_a_received_one_untouched() {
    let (arena, _) = arena();
    let first = |arena: &MappedArena| arena.shared(0, 0, 1).expect("nobody writes it")[0];
    let mut writable = arena.writable(0).expect("nobody has it");
    writable.fill(1);
    drop(writable.freeze(..));
    assert_eq!(first(&arena), if cfg!(debug_assertions) { POISON } else { 1 });
    let mut writable = arena.writable(0).expect("nobody has it");
    writable.fill(2);
    writable.hand_over();
    assert_eq!(
        (first(&arena), first(&arena)),
        (2, 2),
        "a reader does not poison what others may still read"
    );
}

#[test]
fn handed_over_is_not_home() {
    let (arena, told) = arena();
    let writable = arena.writable_from(3, told.clone(), 0).expect("nobody has it");
    assert_eq!(writable.hand_over(), 3);
    assert_eq!(told.all(), []);
    drop(arena.shared(3, 0, 0).expect("its lease has ended"));
}

#[test]
fn two_views_of_one_buffer_report_apart() {
    let (arena, told) = arena();
    let one = arena.shared_from(0, 0, 8, told.clone(), 1).expect("nobody writes it");
    let two = arena.shared_from(0, 4, 8, told.clone(), 2).expect("nobody writes it");
    drop((two.clone(), one));
    assert_eq!(told.all(), [(0, 1)]);
    assert_eq!(arena.writable(0).err(), Some(LeaseError::InUse { slot: 0 }));
    drop(two);
    assert_eq!(told.all(), [(0, 1), (0, 2)]);
    assert!(arena.writable(0).is_ok());
}

#[test]
fn home_may_lease_the_buffer_again_at_once() {
    struct Again(MappedArena);
    impl Home for Again {
        fn handle_home(&self, slot: u32, _tag: u64) {
            assert!(
                self.0.writable(slot).is_ok(),
                "the lease has ended before home hears of it"
            );
        }
    }
    let (arena, _) = arena();
    let again: Arc<Again> = Arc::new(Again(arena.clone()));
    drop(arena.writable_from(0, again.clone(), 0).expect("nobody has it"));
    drop(arena.shared_from(0, 0, 1, again, 0).expect("nobody writes it"));
}

#[test]
fn what_lies_outside_is_refused() {
    let (arena, _) = arena();
    for (offset, length) in [
        (0, BUFFER_BYTES + 1),
        (BUFFER_BYTES, 1),
        (u32::MAX, 1),
        (1, u32::MAX),
        (BUFFER_BYTES + 1, 0),
    ] {
        let refused = LeaseError::OutOfRange {
            offset,
            length,
            buffer_bytes: BUFFER_BYTES,
        };
        assert_eq!(arena.shared(0, offset, length).err(), Some(refused));
    }
    assert!(arena.shared(0, BUFFER_BYTES, 0).expect("an empty view").is_empty());
    for slot in [BUFFERS, u32::MAX] {
        assert_eq!(
            arena.shared(slot, 0, 0).err(),
            Some(LeaseError::NoSuchSlot { slot, buffers: BUFFERS })
        );
        assert_eq!(
            arena.writable(slot).err(),
            Some(LeaseError::NoSuchSlot { slot, buffers: BUFFERS })
        );
    }
}

#[test]
#[should_panic(expected = "range 0..4097 lies within 4096 bytes")]
fn freezing_more_than_the_buffer_is_a_mistake_of_the_caller() {
    let (arena, _) = arena();
    let _ = arena.writable(0).expect("nobody has it").freeze(..4097);
}

#[test]
fn a_handle_outlives_the_arena() {
    let (arena, _) = arena();
    let mut writable = arena.writable(0).expect("nobody has it");
    drop(arena);
    writable.fill(3);
    let bytes = writable.freeze(..).into_bytes();
    let other = std::thread::spawn(move || bytes.iter().all(|&byte| byte == 3));
    assert!(other.join().expect("the thread ends"));
}

#[test]
fn words_are_seen_by_every_mapping_and_by_no_other_handle() {
    let bytes = u64::from(BUFFERS * BUFFER_BYTES);
    let file = ArenaFile::create("test", bytes, bytes).expect("a memfd");
    file.allocate(0).expect("16 KiB");
    let map = || MappedArena::map_writable(file.writable_fd(), BUFFERS, BUFFER_BYTES).expect("mapped");
    let (ours, theirs) = (map(), map());
    let (mine, yours) = (ours.words(3).expect("free"), theirs.words(3).expect("free"));
    assert_eq!(mine.words().len(), 1024);
    mine.words()[1023].store(7, std::sync::atomic::Ordering::Release);
    assert_eq!(yours.words()[1023].load(std::sync::atomic::Ordering::Acquire), 7);
    assert_eq!(ours.writable(3).err(), Some(LeaseError::InUse { slot: 3 }));
    assert_eq!(ours.shared(3, 0, 8).err(), Some(LeaseError::InUse { slot: 3 }));
    drop(mine);
    let readonly = MappedArena::map_readonly(file.readonly_fd(), BUFFERS, BUFFER_BYTES).expect("mapped");
    assert_eq!(
        readonly.words(3).err().map(|error| error.to_string()).as_deref(),
        Some("slot 3 lies in an arena that is mapped read-only")
    );
}

#[test]
fn a_sole_lease_gives_its_bytes_and_ends_with_its_holder() {
    let (arena, _) = arena();
    let mut buffer = arena.writable(1).expect("free");
    buffer[..4].copy_from_slice(b"abcd");
    buffer.hand_over();
    let leased = arena.leased(1, 1, 3).expect("handed over");
    assert_eq!((leased.slot(), &*leased), (1, &b"bcd"[..]));
    arena.writable(1).expect_err("it is read");
    let rest = leased.skip(2);
    assert_eq!(&*rest, b"d");
    assert_eq!(rest.arena().buffers(), arena.buffers());
    let beyond = arena.leased(1, arena.buffer_bytes() - 1, 2);
    beyond.expect_err("beyond its end");
    drop(rest);
    arena.writable(1).expect("nobody reads it");
}
