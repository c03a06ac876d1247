//! A plain program that writes one file, or reads it: the same bytes, checksums and sums, without a shuffle.

use std::fs::File;
use std::io::{Read, Write};

use super::message::{Done, FileLoad};
use super::pattern::{Filler, Reader};
use super::worker::wait_for_go;
use crate::executor::ExecutorError;

/// Bytes of one write or read.
const CHUNK_BYTES: usize = 2 << 20;

/// Writes the file and syncs it, or reads all of it.
pub(super) fn run(load: &FileLoad) -> Result<Done, ExecutorError> {
    let watch = wait_for_go()?;
    let totals = if load.reads { read(load) } else { write(load) };
    let totals = totals.map_err(|error| ExecutorError::Other(format!("{}: {error}", load.path.display())))?;
    Ok(watch.stop(totals))
}

fn write(load: &FileLoad) -> std::io::Result<super::Totals> {
    let mut file = File::create(&load.path)?;
    let mut filler = Filler::new(0);
    let mut checksums = 0;
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut left = load.bytes;
    while left > 0 {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        for piece in chunk[..length].chunks_mut(load.piece as usize) {
            filler.fill(piece);
            checksums ^= crc32fast::hash(piece);
        }
        file.write_all(&chunk[..length])?;
        left -= length as u64;
    }
    std::hint::black_box(checksums);
    file.sync_all()?;
    Ok(filler.totals())
}

fn read(load: &FileLoad) -> std::io::Result<super::Totals> {
    let mut file = File::open(&load.path)?;
    let mut reader = Reader::new();
    let mut checksums = 0;
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut left = load.bytes;
    while left > 0 {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        file.read_exact(&mut chunk[..length])?;
        for piece in chunk[..length].chunks(load.piece as usize) {
            checksums ^= crc32fast::hash(piece);
            reader.read(piece);
        }
        left -= length as u64;
    }
    std::hint::black_box(checksums);
    Ok(reader.totals())
}
