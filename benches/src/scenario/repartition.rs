//! `repartition`: the lines of a text file by a key column over several files.

use std::fs;
use std::path::{Path, PathBuf};

use super::feed::Feed;
use super::parts::Parts;
use super::plan::{ConsumerPlan, Plan, Total, divide};
use super::{publish, run};
use crate::cli::RepartitionArgs;
use crate::console::Console;
use crate::error::{Attempt, BenchError};
use crate::executor::Source;
use crate::report::ShuffleReport;
use crate::text::{KeyColumn, split_ranges};

/// Distributes the lines of a file.
///
/// # Errors
/// It did not come to its end, or was not verified; then there are no new parts.
pub(crate) async fn repartition(args: &RepartitionArgs, console: &mut Console) -> Result<ShuffleReport, BenchError> {
    let input = Input::open(&args.input)?;
    let parts = Parts::prepare(&args.output, args.consumers, args.force)?;
    let mut plan = Plan::new(args.nodes, input.sources(args), consumers(args, &parts), &args.common)?;
    match input {
        Input::File { length, .. } => plan.total = Some(Total::Bytes(length)),
        Input::Stream(feed) => plan.feed = Some(feed),
    }
    let pool = plan.pool;
    let outcome = run::run(plan, console).await?;
    let report = publish("repartition", &outcome, pool.bytes(), &args.common, console)?;
    if report.verified {
        parts.publish()?;
        console.say(format!("{} parts in {}", args.consumers, args.output.display()));
    }
    Ok(report)
}

/// Where the text comes from.
enum Input {
    /// A file that can be read in ranges.
    File { path: PathBuf, length: u64 },
    /// Something that can be read only once, from its beginning.
    Stream(Feed),
}

impl Input {
    fn open(path: &Path) -> Result<Self, BenchError> {
        if path == Path::new("-") {
            return Ok(Self::Stream(Feed::Standard));
        }
        let attempt = || format!("cannot read {}", path.display());
        let metadata = fs::metadata(path).attempt(attempt)?;
        if metadata.is_dir() {
            return Err(BenchError::Usage(format!(
                "{} is a folder; give a text file",
                path.display()
            )));
        }
        if !metadata.is_file() {
            return Ok(Self::Stream(Feed::Path(path.to_owned())));
        }
        fs::File::open(path).attempt(attempt)?;
        Ok(Self::File {
            path: fs::canonicalize(path).attempt(attempt)?,
            length: metadata.len(),
        })
    }

    fn sources(&self, args: &RepartitionArgs) -> Vec<Source> {
        let key = KeyColumn {
            delimiter: args.delimiter,
            column: args.key,
        };
        let producers = u32::from(args.producers * args.nodes);
        match self {
            Self::File { path, length } => split_ranges(*length, producers)
                .into_iter()
                .map(|range| Source::File {
                    path: path.clone(),
                    range,
                    key,
                })
                .collect(),
            Self::Stream(feed) => (0..producers)
                .map(|_| Source::Blocks { name: feed.name(), key })
                .collect(),
        }
    }
}

/// Consumer processes, each with a range of parts.
fn consumers(args: &RepartitionArgs, parts: &Parts) -> Vec<ConsumerPlan> {
    let processes = args.consumers.min(CONSUMERS_PER_NODE * u32::from(args.nodes));
    divide(args.consumers, processes)
        .into_iter()
        .map(|(first, count)| ConsumerPlan {
            first,
            count,
            files: (first..first + count).map(|part| parts.unfinished(part)).collect(),
        })
        .collect()
}

const CONSUMERS_PER_NODE: u32 = 4;
