//! Where bytes lie in a file, for whoever lets the kernel send them from there.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// `length` bytes at `offset` of a file that stays open as long as this does. Who made it says how long the bytes stay as they are.
#[derive(Clone, Debug)]
pub struct FileRange {
    file: Arc<OwnedFd>,
    offset: u64,
    length: u32,
}

impl FileRange {
    /// A part of an arena, or of any other file that can be read.
    pub fn new(file: Arc<OwnedFd>, offset: u64, length: u32) -> Self {
        Self { file, offset, length }
    }

    /// The file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Where the bytes begin, in bytes from the start of the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// How many bytes are left.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// The first `count` bytes are dealt with.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn advance(&mut self, count: u32) {
        self.length = self
            .length
            .checked_sub(count)
            .expect("a range is advanced within itself");
        self.offset += u64::from(count);
    }
}
