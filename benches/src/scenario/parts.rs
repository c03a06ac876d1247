//! The files that `repartition` leaves behind: all of them complete, or none.
//!
//! ```text
//! .part-00000.<pid>.tmp --(all complete and verified)--> part-00000
//! ```

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Attempt, BenchError};

/// The parts of one run. What is not published is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Parts {
    dir: PathBuf,
    count: u32,
    published: bool,
}

impl Parts {
    /// Makes the folder and looks whether it may be written.
    ///
    /// # Errors
    /// The folder cannot be used, or holds parts already and they are not to be replaced.
    pub(super) fn prepare(dir: &Path, count: u32, force: bool) -> Result<Self, BenchError> {
        let attempt = || format!("cannot use the folder {}", dir.display());
        fs::create_dir_all(dir).attempt(attempt)?;
        let dir = fs::canonicalize(dir).attempt(attempt)?;
        let existing = existing_parts(&dir).attempt(attempt)?;
        if let (Some(first), false) = (existing.first(), force) {
            return Err(BenchError::Usage(format!(
                "{} holds parts already ({}); --force replaces them",
                dir.display(),
                first.to_string_lossy()
            )));
        }
        Ok(Self {
            dir,
            count,
            published: false,
        })
    }

    /// Where a part is written until it is complete.
    pub(super) fn unfinished(&self, part: u32) -> PathBuf {
        let process = std::process::id();
        self.dir.join(format!(".part-{part:05}.{process}.tmp"))
    }

    /// Gives all parts their names, and removes older ones beyond them.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub(super) fn publish(mut self) -> Result<(), BenchError> {
        let attempt = || format!("cannot complete the parts in {}", self.dir.display());
        let older = existing_parts(&self.dir).attempt(attempt)?;
        let names: Vec<OsString> = (0..self.count).map(name).collect();
        for (part, name) in (0..self.count).zip(&names) {
            fs::rename(self.unfinished(part), self.dir.join(name)).attempt(attempt)?;
        }
        for part in older.iter().filter(|part| !names.contains(part)) {
            fs::remove_file(self.dir.join(part)).attempt(attempt)?;
        }
        self.published = true;
        Ok(())
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        if !self.published {
            for part in 0..self.count {
                // Not every part was begun.
                let _ = fs::remove_file(self.unfinished(part));
            }
        }
    }
}

fn name(part: u32) -> OsString {
    format!("part-{part:05}").into()
}

/// Files that are named as parts, in order.
fn existing_parts(dir: &Path) -> io::Result<Vec<OsString>> {
    let mut parts = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("part-"));
        if number.is_some_and(|number| number.len() >= 5 && number.bytes().all(|digit| digit.is_ascii_digit())) {
            parts.push(name);
        }
    }
    parts.sort();
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::Parts;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    fn write(parts: &Parts, count: u32) {
        for part in 0..count {
            fs::write(parts.unfinished(part), "text").expect("written");
        }
    }

    #[test]
    fn parts_appear_all_at_once_or_not_at_all() {
        let dir = tempfile::tempdir().expect("folder");
        let output = dir.path().join("deep/out");
        let parts = Parts::prepare(&output, 3, false).expect("prepared");
        write(&parts, 2);
        drop(parts);
        assert!(names(&output).is_empty());
        let parts = Parts::prepare(&output, 3, false).expect("prepared");
        write(&parts, 3);
        parts.publish().expect("published");
        assert_eq!(names(&output), ["part-00000", "part-00001", "part-00002"]);
    }

    #[test]
    fn parts_of_others_are_replaced_only_by_force() {
        let dir = tempfile::tempdir().expect("folder");
        for name in ["part-00000", "part-00007", "part-list", "other"] {
            fs::write(dir.path().join(name), "old").expect("written");
        }
        let error = Parts::prepare(dir.path(), 2, false).expect_err("refused");
        assert!(error.to_string().contains("part-00000"), "{error}");
        let parts = Parts::prepare(dir.path(), 2, true).expect("prepared");
        write(&parts, 2);
        parts.publish().expect("published");
        assert_eq!(names(dir.path()), ["other", "part-00000", "part-00001", "part-list"]);
        let text = fs::read_to_string(dir.path().join("part-00000")).expect("read");
        assert_eq!(text, "text");
    }
}
