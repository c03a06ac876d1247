//! Reading the parent's orders from standard input.
//!
//! ```text
//! go\n                                        start
//! block <first line> <bytes>\n <bytes>        lines of text, for producers that read no file
//! end\n                                       no more text
//! ```

use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Stdin};
use tokio::time::timeout;

use super::ExecutorError;

/// The order that ends the text.
pub(crate) const END_OF_TEXT: &[u8] = b"end\n";

/// The order to start.
pub(crate) const GO: &[u8] = b"go\n";

/// The head of a block of text.
pub(crate) fn block_order(first_line: u64, bytes: usize) -> String {
    format!("block {first_line} {bytes}\n")
}

/// Standard input.
#[derive(Debug)]
pub(crate) struct Orders {
    input: BufReader<Stdin>,
}

/// Lines of text from the parent.
#[derive(Debug)]
pub(super) struct OwnedBlock {
    /// Number of the first line in the whole input, from 1.
    pub(super) first_line: u64,
    pub(super) bytes: Vec<u8>,
}

impl Orders {
    pub(crate) fn new() -> Self {
        Self {
            input: BufReader::with_capacity(INPUT_BYTES, tokio::io::stdin()),
        }
    }

    /// Waits for the start.
    pub(crate) async fn wait_for_go(&mut self) -> Result<(), ExecutorError> {
        let line = timeout(START_TIMEOUT, self.line())
            .await
            .map_err(|_| ExecutorError::Other(format!("no start within {START_TIMEOUT:?}")))??;
        if line != "go" {
            return Err(ExecutorError::Other(format!("expected the start, got {line:?}")));
        }
        Ok(())
    }

    /// The next block of text, `None` at the end. The parent's own input decides when it comes, so
    /// that this wait has no deadline but the parent's.
    pub(super) async fn next_block(&mut self) -> Result<Option<OwnedBlock>, ExecutorError> {
        let line = self.line().await?;
        if line == "end" {
            return Ok(None);
        }
        let (first_line, length) =
            parse_block(&line).ok_or_else(|| ExecutorError::Other(format!("expected text, got {line:?}")))?;
        let mut bytes = vec![0; length];
        self.input
            .read_exact(&mut bytes)
            .await
            .map_err(|error| ExecutorError::Other(format!("the text broke off: {error}")))?;
        Ok(Some(OwnedBlock { first_line, bytes }))
    }

    async fn line(&mut self) -> Result<String, ExecutorError> {
        let mut line = String::new();
        match self.input.read_line(&mut line).await {
            Ok(0) => Err(ExecutorError::Other("the parent is gone".to_owned())),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) => Err(ExecutorError::Other(format!("cannot read orders: {error}"))),
        }
    }
}

fn parse_block(line: &str) -> Option<(u64, usize)> {
    let (first_line, length) = line.strip_prefix("block ")?.split_once(' ')?;
    Some((first_line.parse().ok()?, length.parse().ok()?))
}

/// All others are started first, of which there may be thousands. A parent that dies ends its workers anyway.
const START_TIMEOUT: Duration = Duration::from_secs(600);
const INPUT_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::{block_order, parse_block};

    #[test]
    fn block_heads_read_as_they_are_written() {
        let head = block_order(17, 4096);
        assert_eq!(parse_block(head.trim_end()), Some((17, 4096)));
        assert_eq!(parse_block("block 17"), None);
        assert_eq!(parse_block("end"), None);
    }
}
