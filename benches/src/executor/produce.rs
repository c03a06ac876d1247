//! A producer: rows in, each accounted for and then written to the subpartition of its key.

use std::path::Path;

use shuffle_client::{PartitionSpec, Session, Writer, subpartition_of};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::{PartitionId, ResultId, ShuffleError};

use super::message::{Event, ProduceSpec, ProducerResult, Source};
use super::orders::Orders;
use super::progress::Progress;
use super::{ExecutorError, RESULT};
use crate::clock::Moment;
use crate::rows::{LineitemPart, RowDigest};
use crate::text::{ByteRange, KeyColumn, MissingColumn, ReadError, lines, lines_before, open_range};

/// Writes one result partition from its source.
pub(super) async fn run(session: &Session, task: ProduceSpec, orders: Orders) -> Result<Event, ExecutorError> {
    let partition = PartitionId {
        result: ResultId::new(RESULT),
        index: task.partition,
        attempt: 0,
    };
    let spec = PartitionSpec::new(partition, task.subpartitions)
        .buffers(task.min_buffers, None)
        .group(task.group.parse()?);
    let mut rows = RowWriter {
        writer: session.create_partition(spec).await?,
        digests: vec![RowDigest::default(); slot(task.subpartitions)],
        subpartitions: task.subpartitions,
        progress: Progress::new(),
    };
    if let Err(error) = write_all(&mut rows, &task.source, orders).await {
        if let ExecutorError::Other(message) = &error {
            // Its readers are to name the same cause.
            let cause = ShuffleError::new(ErrorKind::PartitionFailed, message.as_str());
            let _ = rows.writer.abort(cause).await;
        }
        return Err(error);
    }
    let report = rows.writer.finish().await?;
    let finished = Moment::now();
    let reported = report.records();
    let made: u64 = rows.digests.iter().map(|digest| digest.rows).sum();
    if reported != made {
        return Err(ExecutorError::Other(format!(
            "wrote {made} rows, but the finish report counts {reported}"
        )));
    }
    Ok(Event::Produced(ProducerResult {
        digests: rows.digests,
        finished,
    }))
}

async fn write_all(rows: &mut RowWriter, source: &Source, orders: Orders) -> Result<(), ExecutorError> {
    match source {
        Source::Lineitem { scale, part, parts } => {
            let part = LineitemPart {
                scale: *scale,
                part: *part,
                parts: *parts,
            };
            write_lineitem(rows, part).await
        }
        Source::File { path, range, key } => write_file(rows, path, *range, *key).await,
        Source::Blocks { name, key } => write_blocks(rows, orders, name, *key).await,
    }
}

/// A partition being written, and the account of it that is kept apart.
struct RowWriter {
    writer: Writer,
    digests: Vec<RowDigest>,
    subpartitions: u32,
    progress: Progress,
}

impl RowWriter {
    async fn write(&mut self, key: &[u8], row: &[u8]) -> Result<(), ExecutorError> {
        let target = subpartition_of(key, self.subpartitions);
        self.digests[slot(target.value())].add(row);
        self.writer.write(key, row).await?;
        self.progress.add(row).await;
        Ok(())
    }
}

fn slot(index: u32) -> usize {
    usize::try_from(index).expect("invariant: an index fits an address")
}

async fn write_lineitem(out: &mut RowWriter, part: LineitemPart) -> Result<(), ExecutorError> {
    let mut rows = part.rows();
    while let Some(row) = rows.next_row() {
        out.write(&row.order_key.to_le_bytes(), row.text).await?;
    }
    Ok(())
}

async fn write_file(out: &mut RowWriter, path: &Path, range: ByteRange, key: KeyColumn) -> Result<(), ExecutorError> {
    let named = |error: &dyn std::fmt::Display| ExecutorError::Other(format!("{}: {error}", path.display()));
    let (mut reader, start) = open_range(path, range).map_err(|error| named(&error))?;
    loop {
        let block = match reader.next_block() {
            Ok(Some(block)) => block,
            Ok(None) => return Ok(()),
            Err(ReadError::LineTooLong { line }) => {
                let before = lines_before(path, start).map_err(|error| named(&error))?;
                return Err(named(&ReadError::LineTooLong { line: before + line }));
            }
            Err(error) => return Err(named(&error)),
        };
        match write_lines(out, block.bytes, block.first_line, key).await {
            Ok(()) => {}
            Err(LineError::Shuffle(error)) => return Err(error),
            Err(LineError::Bad { line, problem }) => {
                // Only now is it worth the time to learn how many lines precede the range.
                let before = lines_before(path, start).map_err(|error| named(&error))?;
                let line = before + line;
                return Err(named(&format!("line {line}: {problem}")));
            }
        }
    }
}

async fn write_blocks(
    out: &mut RowWriter,
    mut orders: Orders,
    name: &str,
    key: KeyColumn,
) -> Result<(), ExecutorError> {
    while let Some(block) = orders.next_block().await? {
        match write_lines(out, &block.bytes, block.first_line, key).await {
            Ok(()) => {}
            Err(LineError::Shuffle(error)) => return Err(error),
            Err(LineError::Bad { line, problem }) => {
                return Err(ExecutorError::Other(format!("{name}: line {line}: {problem}")));
            }
        }
    }
    Ok(())
}

/// Why a line was not written.
enum LineError {
    Bad { line: u64, problem: MissingColumn },
    Shuffle(ExecutorError),
}

async fn write_lines(out: &mut RowWriter, block: &[u8], first_line: u64, key: KeyColumn) -> Result<(), LineError> {
    for (line, text) in (first_line..).zip(lines(block)) {
        let key = key.key(text).map_err(|problem| LineError::Bad { line, problem })?;
        out.write(key, text).await.map_err(LineError::Shuffle)?;
    }
    Ok(())
}
