//! Changes single bits where data lies: in the memory of this process after it was handed over, and in data files.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::stamp::{Place, STAMP_BYTES, fill};

/// Bytes of an entry of `/proc/self/pagemap`, whose highest bit says that the page is there.
const ENTRY_BYTES: u64 = 8;
const PRESENT: u64 = 1 << 63;

/// One bit of some bytes.
#[derive(Debug, Clone, Copy)]
pub struct Bit {
    /// Which byte.
    pub at: u64,
    /// Which bit of it, from 0 to 7.
    pub bit: u8,
}

/// Flips a bit of a record that this process has written into the write arena of its job and handed over, as a process does that
/// writes where it must not. Pages that it never touched are left alone: a look at them would allocate them.
///
/// # Errors
/// What the system says; not found, if the record lies in no writable arena or crosses the end of what is there.
pub fn flip_in_arena(place: Place, length: usize, bit: Bit) -> io::Result<()> {
    let mut record = vec![0; length];
    fill(&mut record, place);
    let wanted = &record[..STAMP_BYTES.min(length)];
    let memory = OpenOptions::new().read(true).write(true).open("/proc/self/mem")?;
    for range in writable_arenas()? {
        for run in present(range)? {
            let mut bytes = vec![0; usize::try_from(run.end - run.start).map_err(io::Error::other)?];
            memory.read_exact_at(&mut bytes, run.start)?;
            let found = bytes.windows(wanted.len()).position(|window| window == wanted);
            if let Some(found) = found {
                let start = run.start + u64::try_from(found).map_err(io::Error::other)?;
                return flip_at(
                    &memory,
                    Bit {
                        at: start + bit.at,
                        ..bit
                    },
                );
            }
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// Flips a bit of a file.
///
/// # Errors
/// What the system says; a bit that is not there.
pub fn flip_in_file(path: &Path, bit: Bit) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    flip_at(&file, bit)
}

/// The data file of a partition in a storage directory of a server (docs/storage.md), and its length in bytes.
///
/// # Errors
/// What the system says; not found, if there is none.
pub fn data_file(directory: &Path, place: Place) -> io::Result<(PathBuf, u64)> {
    let source = place.source;
    let name = format!(
        "{:016x}-{:016x}-{:08x}-{:08x}-",
        source.job, source.result, source.partition, source.attempt
    );
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let found = entry.file_name().into_string().unwrap_or_default();
        if found.starts_with(&name) && found.ends_with(".data") {
            return Ok((entry.path(), entry.metadata()?.len()));
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

fn flip_at(file: &File, bit: Bit) -> io::Result<()> {
    let mut byte = [0];
    file.read_exact_at(&mut byte, bit.at)?;
    byte[0] ^= 1 << bit.bit;
    file.write_all_at(&byte, bit.at)
}

/// Where memfds are mapped for reading and writing.
fn writable_arenas() -> io::Result<Vec<Range<u64>>> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let lines = maps
        .lines()
        .filter(|line| line.contains("/memfd:") && line.contains(" rw-s "));
    lines
        .map(|line| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let (start, end) = range.ok_or(io::ErrorKind::InvalidData)?;
            let address = |text| u64::from_str_radix(text, 16).map_err(io::Error::other);
            Ok(address(start)?..address(end)?)
        })
        .collect()
}

/// The parts of a mapping that this process has touched.
fn present(range: Range<u64>) -> io::Result<Vec<Range<u64>>> {
    let page = u64::try_from(rustix::param::page_size()).map_err(io::Error::other)?;
    let pagemap = File::open("/proc/self/pagemap")?;
    let pages = (range.end - range.start) / page;
    let mut entries = vec![0; usize::try_from(pages * ENTRY_BYTES).map_err(io::Error::other)?];
    pagemap.read_exact_at(&mut entries, range.start / page * ENTRY_BYTES)?;
    let mut runs: Vec<Range<u64>> = Vec::new();
    for (start, entry) in (range.start..)
        .step_by(rustix::param::page_size())
        .zip(entries.chunks_exact(8))
    {
        if u64::from_le_bytes(entry.try_into().map_err(io::Error::other)?) & PRESENT == 0 {
            continue;
        }
        match runs.last_mut().filter(|run| run.end == start) {
            Some(run) => run.end += page,
            None => runs.push(start..start + page),
        }
    }
    Ok(runs)
}
