//! What the tasks of each stage do with their rows.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use shuffle_client::{Gate, Writer, subpartition_of};
use shuffle_protocol::SubpartitionIndex;

use super::message::{Output, Report, TaskResult, TaskSpec, Work};
use super::rows::{Key, LineRow, Sums, range_of};
use crate::clock::Moment;
use crate::executor::{ExecutorError, emit};
use crate::rows::LineitemPart;

/// Where rows come from and go to.
pub(super) struct Hands {
    pub(super) gate: Option<Gate>,
    pub(super) writer: Option<Writer>,
    pub(super) subpartitions: u32,
    in_turn: bool,
    rows_in: u64,
    rows_out: u64,
    first_row: Option<Moment>,
    told: Instant,
}

impl Hands {
    pub(super) fn new(gate: Option<Gate>, writer: Option<Writer>, output: Option<&Output>) -> Self {
        Self {
            gate,
            writer,
            subpartitions: output.map_or(0, |output| output.subpartitions),
            in_turn: output.is_some_and(|output| output.in_turn),
            rows_in: 0,
            rows_out: 0,
            first_row: None,
            told: Instant::now(),
        }
    }

    /// Does all of it, up to the end of what it writes.
    pub(super) async fn work(mut self, spec: &TaskSpec) -> Result<TaskResult, ExecutorError> {
        match &spec.work {
            Work::Scan { scale } => self.scan(*scale, spec).await?,
            Work::Aggregate => self.aggregate().await?,
            Work::Sort { file } => self.sort(file).await?,
            Work::Convert => self.convert().await?,
            Work::Total { file } => self.total(file).await?,
        }
        let last_row = Moment::now();
        if let Some(writer) = self.writer.take() {
            writer.finish().await?;
        }
        Ok(TaskResult {
            rows_in: self.rows_in,
            rows_out: self.rows_out,
            first_row: self.first_row,
            last_row,
        })
    }

    async fn scan(&mut self, scale: f64, spec: &TaskSpec) -> Result<(), ExecutorError> {
        let number = |n: u32| u16::try_from(n).map_err(|_| ExecutorError::Other(format!("{n} parts are too many")));
        let part = LineitemPart {
            scale,
            part: number(spec.index)?,
            parts: number(spec.parallelism)?,
        };
        let mut rows = part.rows();
        while let Some(row) = rows.next_row() {
            let row = LineRow::parse(row.text).ok_or_else(|| ExecutorError::Other("no row of lineitem".to_owned()))?;
            self.write_on(&row).await?;
        }
        Ok(())
    }

    async fn aggregate(&mut self) -> Result<(), ExecutorError> {
        for (key, sums) in self.sum_up().await? {
            let to = range_of(sums.revenue, self.subpartitions);
            self.write(SubpartitionIndex::new(to), &LineRow { key, sums }).await?;
        }
        Ok(())
    }

    async fn convert(&mut self) -> Result<(), ExecutorError> {
        while let Some(row) = self.next().await? {
            self.write_on(&row).await?;
        }
        Ok(())
    }

    async fn sort(&mut self, file: &Path) -> Result<(), ExecutorError> {
        let mut rows = Vec::new();
        while let Some(row) = self.next().await? {
            rows.push(row);
        }
        rows.sort_unstable_by_key(LineRow::rank);
        self.save(file, &rows)
    }

    async fn total(&mut self, file: &Path) -> Result<(), ExecutorError> {
        let sums = self.sum_up().await?;
        let rows: Vec<_> = sums.into_iter().map(|(key, sums)| LineRow { key, sums }).collect();
        self.save(file, &rows)
    }

    async fn sum_up(&mut self) -> Result<HashMap<Key, Sums>, ExecutorError> {
        let mut sums: HashMap<Key, Sums> = HashMap::new();
        while let Some(row) = self.next().await? {
            sums.entry(row.key).or_default().add(&row.sums);
        }
        Ok(sums)
    }

    async fn next(&mut self) -> Result<Option<LineRow>, ExecutorError> {
        let Some(gate) = &mut self.gate else {
            return Ok(None);
        };
        let Some(record) = gate.next_record().await? else {
            return Ok(None);
        };
        self.first_row.get_or_insert_with(Moment::now);
        self.rows_in += 1;
        let row = LineRow::decode(&record.bytes);
        drop(record);
        self.pace().await;
        row.map(Some)
            .ok_or_else(|| ExecutorError::Other("a record that is no row".to_owned()))
    }

    /// By its key, or to whoever has room.
    async fn write_on(&mut self, row: &LineRow) -> Result<(), ExecutorError> {
        if self.in_turn
            && let Some(writer) = &mut self.writer
        {
            writer.write(&[], &row.encode()).await?;
            return self.wrote().await;
        }
        let to = subpartition_of(&row.key_bytes(), self.subpartitions);
        self.write(to, row).await
    }

    async fn write(&mut self, to: SubpartitionIndex, row: &LineRow) -> Result<(), ExecutorError> {
        if let Some(writer) = &mut self.writer {
            writer.write_to(to, &row.encode()).await?;
        }
        self.wrote().await
    }

    async fn wrote(&mut self) -> Result<(), ExecutorError> {
        self.rows_out += 1;
        self.pace().await;
        Ok(())
    }

    /// Now and then lets the runtime's other tasks run, and tells the engine.
    async fn pace(&mut self) {
        let rows = self.rows_in + self.rows_out;
        if rows.is_multiple_of(ROWS_BETWEEN_LOOKS) {
            tokio::task::yield_now().await;
            if self.told.elapsed() >= INTERVAL {
                self.told = Instant::now();
                emit(&Report::Progress(self.rows_in.max(self.rows_out)));
            }
        }
    }

    fn save(&mut self, file: &Path, rows: &[LineRow]) -> Result<(), ExecutorError> {
        let failed = |error: std::io::Error| ExecutorError::Other(format!("{}: {error}", file.display()));
        let mut out = std::io::BufWriter::new(std::fs::File::create(file).map_err(failed)?);
        for row in rows {
            out.write_all(row.line().as_bytes()).map_err(failed)?;
        }
        self.rows_out += rows.len() as u64;
        out.flush().map_err(failed)
    }
}

const ROWS_BETWEEN_LOOKS: u64 = 256;
const INTERVAL: Duration = Duration::from_millis(200);
