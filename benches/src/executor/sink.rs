//! Where a consumer's rows go.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use super::ExecutorError;
use super::message::Sink;

/// An opened [`Sink`].
#[derive(Debug)]
pub(super) struct Outputs {
    /// By subpartition of the consumer's range; empty if rows are only accounted for.
    files: Vec<(PathBuf, BufWriter<File>)>,
}

impl Outputs {
    pub(super) fn open(sink: Sink) -> Result<Self, ExecutorError> {
        let paths = match sink {
            Sink::Digest => Vec::new(),
            Sink::Files(paths) => paths,
        };
        let files = paths.into_iter().map(|path| {
            let file = File::create_new(&path)
                .map_err(|error| ExecutorError::Other(format!("{}: {error}", path.display())))?;
            Ok((path, BufWriter::with_capacity(BUFFER_BYTES, file)))
        });
        Ok(Self {
            files: files.collect::<Result<_, ExecutorError>>()?,
        })
    }

    /// Writes a row as a line to the file with this index, if there are files.
    pub(super) fn write(&mut self, index: usize, row: &[u8]) -> Result<(), ExecutorError> {
        let Some((path, file)) = self.files.get_mut(index) else {
            return Ok(());
        };
        file.write_all(row)
            .and_then(|()| file.write_all(b"\n"))
            .map_err(|error| ExecutorError::Other(format!("{}: {error}", path.display())))
    }

    /// Completes all files.
    pub(super) fn finish(self) -> Result<(), ExecutorError> {
        for (path, mut file) in self.files {
            file.flush()
                .map_err(|error| ExecutorError::Other(format!("{}: {error}", path.display())))?;
        }
        Ok(())
    }
}

const BUFFER_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::{Outputs, Sink};

    #[test]
    fn rows_become_lines_of_their_file() {
        let dir = tempfile::tempdir().expect("folder");
        let paths = ["x", "y"].map(|name| dir.path().join(name));
        let mut outputs = Outputs::open(Sink::Files(paths.to_vec())).expect("opened");
        for (index, row) in [(0, "a"), (1, "b"), (0, ""), (0, "c\r")] {
            outputs.write(index, row.as_bytes()).expect("written");
        }
        outputs.finish().expect("complete");
        let texts = paths.map(|path| std::fs::read_to_string(path).expect("read"));
        assert_eq!(texts, ["a\n\nc\r\n", "b\n"]);
    }

    #[test]
    fn an_existing_file_is_not_overwritten() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("x");
        std::fs::write(&path, "mine").expect("written");
        assert!(Outputs::open(Sink::Files(vec![path])).is_err());
    }
}
