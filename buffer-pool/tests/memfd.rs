//! The memory itself: seals, descriptors, extents that arrive as zero, never more blocks than the pool, no SIGBUS.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    process::Command,
};

use buffer_pool::{
    ArenaFile, ArenaKind, Backing, BufferState, JobKey, LeaseError, LocalPoolSpec, MappedArena, MemfdBacking,
    NetworkPool, PoolConfig, PoolError, SlotRef, verify_seals,
};
use rustix::{
    fs::{MemfdFlags, Mode, OFlags, SealFlags},
    io::Errno,
};

const A: JobKey = JobKey(7);
const B: JobKey = JobKey(11);

/// 8 extents of 4 buffers of 16 KiB.
const CONFIG: PoolConfig = PoolConfig {
    total_buffers: 32,
    buffer_bytes: 16 << 10,
    extent_buffers: 4,
    read_reserve_buffers: 8,
};

fn backing() -> MemfdBacking {
    let mut backing = MemfdBacking::new(CONFIG).expect("half a MiB");
    for job in [A, B] {
        backing.create_job(job).expect("two memfds");
    }
    backing
}

fn write_fd(backing: &MemfdBacking, job: JobKey) -> OwnedFd {
    backing
        .write_arena_fd(job)
        .expect("it has a write arena")
        .try_clone_to_owned()
        .expect("a descriptor")
}

fn readonly_fd(backing: &MemfdBacking, job: JobKey) -> OwnedFd {
    let fd = backing
        .readonly_fd(job, ArenaKind::Write)
        .expect("it has a write arena");
    fd.try_clone_to_owned().expect("a descriptor")
}

fn map(fd: &OwnedFd) -> MappedArena {
    MappedArena::map_writable(fd, CONFIG.total_buffers, CONFIG.buffer_bytes).expect("it can be mapped")
}

#[test]
fn the_whole_pool_is_allocated_at_start_and_only_moves() {
    let mut backing = backing();
    assert_eq!(backing.allocated_bytes().expect("fstat"), CONFIG.total_bytes());
    for extent in [0, 5, 2] {
        backing.move_in(A, ArenaKind::Write, extent).expect("the bank has it");
        assert_eq!(backing.allocated_bytes().expect("fstat"), CONFIG.total_bytes());
    }
    let arena = backing.mapped(A, ArenaKind::Write).expect("mapped");
    for slot in [0, 3, 8, 20, 23] {
        arena.writable(slot).expect("nobody has it").fill(1);
    }
    assert_eq!(backing.allocated_bytes().expect("fstat"), CONFIG.total_bytes());
    for extent in [5, 0, 2] {
        backing.move_out(A, ArenaKind::Write, extent).expect("it goes home");
        assert_eq!(backing.allocated_bytes().expect("fstat"), CONFIG.total_bytes());
    }
    assert_eq!(backing.short_bytes(), 0);
}

/// F119: what one job wrote is never seen by another.
#[test]
fn a_moved_extent_reads_zero() {
    let mut backing = backing();
    backing.move_in(A, ArenaKind::Write, 1).expect("the bank has it");
    let theirs = backing.mapped(A, ArenaKind::Write).expect("mapped");
    for slot in 4..8 {
        theirs.writable(slot).expect("nobody has it").fill(0x5E);
    }
    backing.move_out(A, ArenaKind::Write, 1).expect("it goes home");
    for (job, kind) in [(B, ArenaKind::Write), (B, ArenaKind::Read), (A, ArenaKind::Write)] {
        backing.move_in(job, kind, 1).expect("the bank has it");
        let arena = backing.mapped(job, kind).expect("mapped");
        for slot in 4..8 {
            let view = arena.shared(slot, 0, CONFIG.buffer_bytes).expect("nobody writes it");
            assert!(view.iter().all(|&byte| byte == 0), "{job} {kind} slot {slot}");
        }
        backing.move_out(job, kind, 1).expect("it goes home");
    }
}

/// F119 through the books: one job fills all it can get, then another scans all it can get.
#[test]
fn a_job_never_reads_what_another_left() {
    let mut pool = NetworkPool::new(CONFIG, MemfdBacking::new(CONFIG).expect("half a MiB")).expect("valid");
    for round in 0..3 {
        for (job, marker) in [(A, 0xAA), (B, 0xBB)] {
            pool.add_job(job).expect("a new job");
            let spec = LocalPoolSpec {
                minimum: 3,
                maximum: None,
                weight: 1,
                label: "all".to_owned(),
            };
            let id = pool.create_local_pool(job, ArenaKind::Read, spec).expect("all is free");
            let slots: Vec<SlotRef> = std::iter::from_fn(|| pool.take(id)).collect();
            assert_eq!(slots.len(), 32);
            let arena = pool.backing_mut().mapped(job, ArenaKind::Read).expect("mapped");
            for slot in slots {
                let mut buffer = arena.writable(slot.slot).expect("nobody has it");
                assert!(buffer.iter().all(|&byte| byte == 0), "{slot} in round {round}");
                buffer.fill(marker);
                buffer.hand_over();
                pool.release(slot, BufferState::Granted);
            }
            pool.remove_job(job).expect("all is home");
            assert_eq!(pool.backing().allocated_bytes().expect("fstat"), CONFIG.total_bytes());
        }
    }
}

/// F94: whoever has a descriptor cannot change the length of the file under somebody's mapping.
#[test]
fn nobody_can_shrink_grow_or_reseal_an_arena() {
    let backing = backing();
    let fd = write_fd(&backing, A);
    let seals = rustix::fs::fcntl_get_seals(&fd).expect("a memfd");
    assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL));
    for bytes in [0, CONFIG.total_bytes() - 1, CONFIG.total_bytes() + 1] {
        assert_eq!(rustix::fs::ftruncate(&fd, bytes), Err(Errno::PERM));
    }
    assert_eq!(rustix::fs::fcntl_add_seals(&fd, SealFlags::WRITE), Err(Errno::PERM));
    verify_seals(&fd, CONFIG.total_bytes()).expect("as it must be");
    assert!(
        verify_seals(&fd, CONFIG.total_bytes() + 1).is_err(),
        "too short for that mapping"
    );
}

#[test]
fn what_is_not_sealed_is_not_mapped() {
    let memfd = rustix::fs::memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).expect("a memfd");
    rustix::fs::ftruncate(&memfd, 8192).expect("longer");
    let file = tempfile::tempfile().expect("a file");
    file.set_len(8192).expect("longer");
    for error in [
        MappedArena::map_writable(&memfd, 2, 4096).expect_err("no seals"),
        MappedArena::map_readonly(&file, 2, 4096).expect_err("a file of a disk"),
    ] {
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
    }
}

#[test]
fn a_readonly_descriptor_stays_readonly() {
    let mut backing = backing();
    backing.move_in(A, ArenaKind::Write, 0).expect("the bank has it");
    let fd = readonly_fd(&backing, A);
    let error = MappedArena::map_writable(&fd, CONFIG.total_buffers, CONFIG.buffer_bytes).expect_err("read-only");
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(rustix::io::write(&fd, b"x"), Err(Errno::BADF));

    let arena = MappedArena::map_readonly(&fd, CONFIG.total_buffers, CONFIG.buffer_bytes).expect("for reading");
    assert_eq!(arena.writable(0).err(), Some(LeaseError::ReadOnly { slot: 0 }));
    map(&write_fd(&backing, A)).writable(0).expect("nobody has it")[..5].copy_from_slice(b"bytes");
    // Another process would see the bytes; here the writer's handle has gone home, which poisons them in debug builds.
    assert_eq!(
        arena.shared(0, 0, 5).expect("nobody writes it")[0],
        if cfg!(debug_assertions) { 0xA5 } else { b'b' }
    );
    assert_eq!(
        rustix::fs::fstat(&fd).expect("fstat").st_mode & 0o777,
        0,
        "mode 0: nobody else opens it anew"
    );
}

/// Needs root, to become somebody else; without it the mode alone is checked above.
#[test]
fn another_user_cannot_open_a_readonly_descriptor_for_writing() {
    let backing = backing();
    let fd = readonly_fd(&backing, A);
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    if !rustix::process::geteuid().is_root() {
        let reopened = rustix::fs::open(&path, OFlags::RDWR, Mode::empty());
        assert_eq!(reopened.err(), Some(Errno::ACCESS));
        return;
    }
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::empty()).expect("inherited");
    let script = format!("exec 9<>/proc/self/fd/{}", fd.as_raw_fd());
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", &script])
        .output()
        .expect("setpriv of util-linux");
    assert!(!output.status.success(), "{output:?}");
}

#[test]
fn an_executor_that_takes_more_pages_than_granted_is_seen() {
    let mut backing = backing();
    backing.move_in(A, ArenaKind::Write, 0).expect("the bank has it");
    backing.move_in(B, ArenaKind::Write, 3).expect("the bank has it");
    let arena = map(&write_fd(&backing, A));
    arena.writable(0).expect("nobody has it").fill(1);
    assert_eq!(backing.overdrawn_jobs().expect("fstat"), []);
    arena.writable(9).expect("nobody has it here")[0] = 1;
    assert_eq!(backing.overdrawn_jobs().expect("fstat"), [A]);
    assert!(backing.allocated_bytes().expect("fstat") > CONFIG.total_bytes());
    backing.move_out(A, ArenaKind::Write, 0).expect("it goes home");
    backing.remove_job(A);
    assert_eq!(backing.allocated_bytes().expect("fstat"), CONFIG.total_bytes());
    let view = arena.shared(9, 0, 1).expect("still mapped here");
    assert_eq!(view[0], 0, "its pages went with the job");
}

#[test]
fn both_sides_see_the_same_bytes_and_one_mapping_serves_all() {
    let mut backing = backing();
    backing.move_in(A, ArenaKind::Write, 2).expect("the bank has it");
    let executor = map(&write_fd(&backing, A));
    let mut buffer = executor.writable(8).expect("nobody has it");
    buffer[..5].copy_from_slice(b"bytes");
    buffer.hand_over();
    let server = backing.mapped(A, ArenaKind::Write).expect("mapped");
    assert_eq!(&*server.shared(8, 1, 3).expect("nobody writes it"), b"yte");
    let again = backing.mapped(A, ArenaKind::Write).expect("mapped");
    let writing = server.writable(9).expect("nobody has it");
    assert_eq!(
        again.writable(9).err(),
        Some(LeaseError::InUse { slot: 9 }),
        "the same leases"
    );
    drop(writing);
    assert_eq!(
        backing
            .mapped(JobKey(99), ArenaKind::Read)
            .expect_err("no such job")
            .kind(),
        io::ErrorKind::NotFound
    );
}

/// F95: more than there is, is refused at start and in numbers.
#[test]
fn a_pool_larger_than_the_machine_is_refused() {
    let config = PoolConfig {
        buffer_bytes: 1 << 20,
        ..PoolConfig::with_buffers(64 << 20)
    };
    let error = MemfdBacking::new(config).expect_err("64 TiB");
    assert!(
        matches!(error, PoolError::Budget { need_bytes, have_bytes, .. } if need_bytes == 64 << 40 && have_bytes > 0)
    );
    assert!(
        error
            .to_string()
            .starts_with("the buffer pool needs 70368744177664 bytes, there are "),
        "{error}"
    );
}

/// F95: the limit that would raise SIGXFSZ, for a whole process.
#[test]
fn a_file_size_limit_is_an_error_not_a_signal() {
    const LIMITED: &str = "BUFFER_POOL_TEST_LIMITED";
    if std::env::var_os(LIMITED).is_some() {
        let error = MemfdBacking::new(CONFIG).expect_err("the limit is below the pool");
        println!("refused: {error}");
        return;
    }
    let output = Command::new("prlimit")
        .arg("--fsize=262144")
        .arg(std::env::current_exe().expect("this test"))
        .args(["--exact", "--nocapture", "a_file_size_limit_is_an_error_not_a_signal"])
        .env(LIMITED, "1")
        .output()
        .expect("prlimit of util-linux");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(
        said.contains("refused: the buffer pool needs 524288 bytes, there are 262144: the file size limit"),
        "{said}"
    );
}

#[test]
fn buffers_are_whole_pages() {
    let error = MemfdBacking::new(PoolConfig {
        buffer_bytes: 5000,
        ..CONFIG
    })
    .expect_err("not a multiple");
    assert!(
        matches!(error, PoolError::Config(ref why) if why.contains("page size")),
        "{error}"
    );
}

#[test]
fn a_hole_reads_zero_and_every_page_can_be_touched() {
    let file = ArenaFile::create("test", 1 << 20, 64 << 10).expect("a memfd");
    assert_eq!(file.allocated_bytes().expect("fstat"), 0);
    file.allocate(3).expect("64 KiB");
    assert_eq!(file.allocated_bytes().expect("fstat"), 64 << 10);
    let arena = MappedArena::map_writable(file.writable_fd(), 16, 64 << 10).expect("mapped");
    for slot in 0..16 {
        let mut buffer = arena.writable(slot).expect("nobody has it");
        assert!(buffer.iter().all(|&byte| byte == 0));
        buffer.fill(1);
    }
    (0..16).for_each(|extent| file.punch(extent).expect("punched"));
    assert_eq!(file.allocated_bytes().expect("fstat"), 0);
    assert_eq!(read_first(file.readonly_fd()), 0);
}

fn read_first(fd: BorrowedFd<'_>) -> u8 {
    let mut byte = [7];
    let mut file = File::from(fd.try_clone_to_owned().expect("a descriptor"));
    file.read_exact(&mut byte).expect("a byte");
    byte[0]
}

/// Notes what it is asked to let go of; refuses one extent.
#[derive(Default)]
struct Pins(std::sync::Mutex<Vec<u32>>);

impl buffer_pool::PageHolder for Pins {
    fn let_go(&self, job: JobKey, arena: ArenaKind, extent: u32) -> io::Result<()> {
        assert_eq!((job, arena), (A, ArenaKind::Write));
        self.0.lock().expect("nobody panics").push(extent);
        if extent == 5 {
            Err(io::ErrorKind::TimedOut.into())
        } else {
            Ok(())
        }
    }
}

#[test]
fn whoever_holds_pages_is_asked_before_they_go_and_may_refuse() {
    let mut backing = backing();
    let pins = std::sync::Arc::new(Pins::default());
    backing.set_page_holder(pins.clone());
    for extent in [2, 5] {
        backing.move_in(A, ArenaKind::Write, extent).expect("the bank has it");
    }
    let arena = backing.mapped(A, ArenaKind::Write).expect("mapped");
    arena.writable(20).expect("nobody has it").fill(1);
    backing.move_out(A, ArenaKind::Write, 2).expect("it goes home");
    let refused = backing.move_out(A, ArenaKind::Write, 5).expect_err("it is held");
    assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
    assert_eq!(*pins.0.lock().expect("nobody panics"), [2, 5]);
    let kept = arena.shared(20, 0, 1).expect("nobody writes it");
    assert_ne!(kept[0], 0, "an extent that is held keeps its pages");
    assert_eq!(backing.allocated_bytes().expect("fstat"), CONFIG.total_bytes());
}
