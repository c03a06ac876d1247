//! What an earlier server left in a directory.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, IoSliceMut};

use super::failure::{Blame, Deed, Failure};
use super::file::{read_all, remove_files};
use super::memory::wide;
use super::names::{FileName, LOCK, Part};
use super::system::FileSystem;
use super::{HEADER_BYTES, Index, IndexSummary, StoreName};

/// What was found. The files of everything lost are gone, unless they could not be read.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Complete ones, with their index and its length in bytes.
    pub(crate) sealed: Vec<(FileName, Index, u64)>,
    /// What cannot be had any more, and why.
    pub(crate) lost: Vec<(StoreName, String)>,
    /// Files that no server of this program makes: they are left alone.
    pub(crate) foreign: Vec<OsString>,
    /// The highest serial number of any file.
    pub(crate) last_serial: u64,
}

/// Looks at everything in a directory that is locked, and takes away what is of no use.
///
/// # Errors
/// The directory itself cannot be read.
pub(crate) fn recover<F: FileSystem>(fs: &F, dir: &F::Dir) -> io::Result<Found> {
    let mut found = Found::default();
    let mut stores: BTreeMap<(u64, String), (FileName, Vec<Part>)> = BTreeMap::new();
    for name in fs.names(dir)? {
        match name.to_str().map(|text| (text, FileName::parse(text))) {
            Some((LOCK, _)) => {}
            Some((_, Some((name, part)))) => {
                found.last_serial = found.last_serial.max(name.serial);
                let store = stores.entry((name.serial, name.of(Part::Data)));
                store.or_insert((name, Vec::new())).1.push(part);
            }
            _ => found.foreign.push(name),
        }
    }
    for (name, parts) in stores.into_values() {
        let has = |part| parts.contains(&part);
        if has(Part::NewIndex) && fs.remove(dir, &name.of(Part::NewIndex)).is_err() {
            // It is tried again at the next start.
            tracing::warn!("{} cannot be removed", name.of(Part::NewIndex));
        }
        if !has(Part::Index) {
            if has(Part::Data) {
                let why = "it was not finished, or was released, when the server ended";
                found.lost.push((name.store, why.to_owned()));
                sweep(fs, dir, &name, false);
            }
            continue;
        }
        match check(fs, dir, &name) {
            Ok((index, bytes)) => found.sealed.push((name, index, bytes)),
            Err(Damage { why, is_certain }) => {
                found.lost.push((name.store, why));
                if is_certain {
                    sweep(fs, dir, &name, true);
                }
            }
        }
    }
    fs.sync_dir(dir)?;
    Ok(found)
}

fn sweep<F: FileSystem>(fs: &F, dir: &F::Dir, name: &FileName, indexed: bool) {
    if let Err(failure) = remove_files(fs, dir, name, indexed) {
        tracing::warn!("{} cannot be removed: {}", name.of(failure.part), failure.source);
    }
}

struct Damage {
    why: String,
    /// Reading it once more would change nothing.
    is_certain: bool,
}

impl From<String> for Damage {
    fn from(why: String) -> Self {
        Self { why, is_certain: true }
    }
}

impl From<Failure> for Damage {
    fn from(failure: Failure) -> Self {
        let is_gone = matches!(
            failure.source.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof
        );
        Self {
            why: format!("{:?} file: {}", failure.part, failure.source),
            is_certain: is_gone && failure.blame() == Blame::File,
        }
    }
}

/// The index of a pair that is whole, and its length.
fn check<F: FileSystem>(fs: &F, dir: &F::Dir, name: &FileName) -> Result<(Index, u64), Damage> {
    let (bytes, length) = read_index(fs, dir, name)?;
    let index = Index::decode(&bytes).map_err(|error| error.to_string())?;
    if index.job != name.store.job || index.partition != name.store.partition {
        let why = format!("its index is of job {}, partition {}", index.job, index.partition);
        return Err(why.into());
    }
    let data = fs
        .open(dir, &name.of(Part::Data))
        .map_err(Failure::of(Deed::Open, Part::Data))?;
    let there = fs.length(&data).map_err(Failure::of(Deed::Measure, Part::Data))?;
    if there != index.data_bytes {
        let why = format!("its data file has {there} bytes, its index says {}", index.data_bytes);
        return Err(why.into());
    }
    Ok((index, length))
}

/// The whole index file: its header says how long it is before anything of that length is allocated.
fn read_index<F: FileSystem>(fs: &F, dir: &F::Dir, name: &FileName) -> Result<(Vec<u8>, u64), Damage> {
    let of = |deed| Failure::of(deed, Part::Index);
    let file = fs.open(dir, &name.of(Part::Index)).map_err(of(Deed::Open))?;
    let length = fs.length(&file).map_err(of(Deed::Measure))?;
    let mut header = [0; HEADER_BYTES];
    read_into(fs, &file, &mut header)?;
    let expected = IndexSummary::of(&header)
        .map_err(|error| error.to_string())?
        .index_bytes;
    let bytes = usize::try_from(expected).ok().filter(|_| expected == length);
    let Some(bytes) = bytes else {
        return Err(format!("its index has {length} bytes where {expected} are needed").into());
    };
    let mut whole = vec![0; bytes];
    read_into(fs, &file, &mut whole)?;
    Ok((whole, length))
}

fn read_into<F: FileSystem>(fs: &F, file: &F::File, into: &mut [u8]) -> Result<(), Damage> {
    let bytes = wide(into.len());
    read_all(fs, file, 0, &mut [IoSliceMut::new(into)], bytes).map_err(Failure::of(Deed::Read, Part::Index))?;
    Ok(())
}
