//! From which size on a zero-copy send is cheaper than a copying one: a measurement, run by hand in a release build.
//!
//! `cargo test --release -p shuffle-server --lib zero_copy_threshold -- --ignored --nocapture`

use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::rc::Rc;
use std::time::Instant;

use buffer_pool::{ArenaFile, MappedArena};

use super::memory::payload_of;
use crate::transport::uring::operation::{Completion, Manner, Tag, Wait};
use crate::transport::uring::piece::Gather;
use crate::transport::uring::ring::Ring;

const BYTES: usize = 1 << 30;
const ROUNDS: usize = 5;
const CHAIN: usize = 16;

struct Figures {
    gb_per_s: f64,
    cpu_s_per_gb: f64,
    copied: usize,
    notifications: usize,
}

#[test]
#[ignore = "a measurement"]
fn zero_copy_threshold() {
    println!("piece_bytes mode      GB/s(median) CPUs/GB(median) copied/notifications");
    for kib in [4_u32, 8, 16, 32, 64, 256, 1024] {
        let (mut copy, mut zero) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            copy.push(one_round(kib << 10, false));
            zero.push(one_round(kib << 10, true));
        }
        print("copy", kib, copy);
        print("zero-copy", kib, zero);
    }
}

fn print(mode: &str, kib: u32, mut rounds: Vec<Figures>) {
    rounds.sort_by(|a, b| a.gb_per_s.total_cmp(&b.gb_per_s));
    let speed = rounds[ROUNDS / 2].gb_per_s;
    let range = (rounds[0].gb_per_s, rounds[ROUNDS - 1].gb_per_s);
    rounds.sort_by(|a, b| a.cpu_s_per_gb.total_cmp(&b.cpu_s_per_gb));
    let middle = &rounds[ROUNDS / 2];
    println!(
        "{kib:6} KiB  {mode:9} {speed:5.2} ({:.2}..{:.2})  {:.3}  {}/{}",
        range.0, range.1, middle.cpu_s_per_gb, middle.copied, middle.notifications
    );
}

/// Two MiB circulate, so that they stay in cache.
fn one_round(piece: u32, zero_copy: bool) -> Figures {
    let buffers = (2 << 20) / piece;
    let total = u64::from(buffers) * u64::from(piece);
    let file = ArenaFile::create("threshold", total, total).unwrap();
    file.allocate(0).unwrap();
    let arena = MappedArena::map_writable(file.writable_fd(), buffers, piece).unwrap();
    let gathers: Vec<Rc<Gather>> = (0..buffers)
        .map(|slot| Rc::new(Gather::new(vec![payload_of(&arena, slot, piece)])))
        .collect();

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut there = listener.accept().unwrap().0;
    let reader = std::thread::spawn(move || {
        let (mut all, mut space) = (0, vec![0; 1 << 20]);
        while all < BYTES {
            all += there.read(&mut space).unwrap();
        }
    });
    let mut ring = Ring::open(64).unwrap();
    ring.make_tables(1, 1).unwrap();
    ring.set_file(0, here.as_fd()).unwrap();
    ring.set_extent(0, &arena, 0..buffers).unwrap();

    let (cpu, began) = (cpu_seconds(), Instant::now());
    let (mut copied, mut notifications, mut next, mut held) = (0, 0, 0, 0);
    let pieces = BYTES / usize::try_from(piece).unwrap();
    while next < pieces {
        let chain = CHAIN.min(pieces - next);
        assert!(ring.make_room(chain).unwrap());
        for step in 0..chain {
            let gather = &gathers[(next + step) % gathers.len()];
            let linked = step + 1 < chain;
            let manner = Manner { linked, more: false };
            let tag = Tag { line: 0, job: 0, step };
            if zero_copy {
                ring.send_zero_copy(0, gather, (0, 0), 0, manner, tag);
            } else {
                ring.send(0, gather, 0..1, 0, manner, tag);
            }
        }
        next += chain;
        held += chain;
        let mut unsent = chain;
        while unsent > 0 {
            ring.submit(Wait::Forever).unwrap();
            reap(&mut ring, |sent, released, was_copied| {
                unsent -= usize::from(sent);
                held -= usize::from(released);
                notifications += usize::from(was_copied.is_some());
                copied += usize::from(was_copied == Some(true));
            });
        }
    }
    while held > 0 {
        ring.submit(Wait::Forever).unwrap();
        reap(&mut ring, |_, released, was_copied| {
            held -= usize::from(released);
            notifications += usize::from(was_copied.is_some());
            copied += usize::from(was_copied == Some(true));
        });
    }
    reader.join().unwrap();
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let gb = BYTES as f64 / 1e9;
    Figures {
        gb_per_s: gb / began.elapsed().as_secs_f64(),
        cpu_s_per_gb: (cpu_seconds() - cpu) / gb,
        copied,
        notifications,
    }
}

fn reap(ring: &mut Ring, mut with: impl FnMut(bool, bool, Option<bool>)) {
    while let Some(completion) = ring.next_completion() {
        if let Completion::Send {
            sent, released, usage, ..
        } = completion
        {
            if let Some(result) = &sent {
                assert!(result.as_ref().is_ok_and(|count| *count > 0), "{result:?}");
            }
            with(sent.is_some(), released, usage.map(|usage| usage.copied));
        }
    }
}

/// Of the whole process, both ends: user and system.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks / 100.0
}
