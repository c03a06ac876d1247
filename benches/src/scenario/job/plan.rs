//! The jobs: their graphs, and what the tasks of each stage do.

use std::path::{Path, PathBuf};

use coordinator::{Adaptive, Config, EdgeSpec, JobGraph, Rule, Stage, TaskId};
use shuffle_protocol::JobId;

use crate::cli::{JobArgs, JobKind};
use crate::error::BenchError;
use crate::job::Work;

/// Subpartitions between stages whose tasks are decided late: many more than tasks, so that ranges come out even.
const FINE: u32 = 64;
/// Most tasks of a stage whose tasks are decided late.
const MOST_TASKS: u32 = 16;

/// One job.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) job: JobId,
    pub(super) graph: JobGraph,
    pub(super) config: Config,
    pub(super) scale: f64,
}

impl Plan {
    pub(super) fn new(args: &JobArgs, job: u64) -> Result<Self, BenchError> {
        let tasks = args.tasks;
        let scan = Stage::new("scan").fixed(tasks);
        let builder = match args.kind {
            JobKind::Batch if args.rebalanced => JobGraph::builder()
                .stage(scan)
                .stage(Stage::new("convert").adaptive(1, MOST_TASKS).subpartitions(FINE))
                .stage(
                    Stage::new("total")
                        .adaptive(1, MOST_TASKS)
                        .subpartitions(FINE)
                        .keeps_state(),
                )
                .edge(EdgeSpec::rebalance("scan", "convert"))
                .edge(EdgeSpec::keyed("convert", "total")),
            JobKind::Batch => JobGraph::builder()
                .stage(scan)
                .stage(
                    Stage::new("aggregate")
                        .adaptive(1, MOST_TASKS)
                        .subpartitions(FINE)
                        .keeps_state(),
                )
                .stage(Stage::new("sort").adaptive(1, MOST_TASKS).subpartitions(FINE))
                .edge(EdgeSpec::keyed("scan", "aggregate"))
                .edge(EdgeSpec::keyed("aggregate", "sort")),
            JobKind::Pipelined | JobKind::Kill => JobGraph::builder()
                .stage(scan)
                .stage(Stage::new("convert").fixed(tasks))
                .stage(Stage::new("total").fixed(tasks).keeps_state())
                .edge(EdgeSpec::keyed("scan", "convert").pipelined())
                .edge(EdgeSpec::keyed("convert", "total").pipelined()),
        };
        let graph = builder
            .build()
            .map_err(|errors| BenchError::Usage(errors.to_string()))?;
        let config = Config {
            adaptive: Adaptive {
                rule: Rule::ByVolume { skew_factor: None },
                bytes_per_task: args.bytes_per_task,
                default_source: tasks,
            },
            // One task may be hit each time.
            max_attempts: Config::default().max_attempts + args.kills + u32::from(args.lost_servers),
            ..Config::default()
        };
        Ok(Self {
            job: JobId::new(job),
            graph,
            config,
            scale: args.scale(),
        })
    }

    /// What a task does.
    pub(super) fn work(&self, task: TaskId, dir: &Path) -> Work {
        match self.graph.stage(task.stage).name() {
            "scan" => Work::Scan { scale: self.scale },
            "aggregate" => Work::Aggregate,
            "convert" => Work::Convert,
            "sort" => Work::Sort {
                file: self.file(task, dir),
            },
            _ => Work::Total {
                file: self.file(task, dir),
            },
        }
    }

    /// Where a task of the last stage writes to.
    pub(super) fn file(&self, task: TaskId, dir: &Path) -> PathBuf {
        dir.join(format!("job-{}-{}-{}.out", self.job.value(), task.index, task.attempt))
    }
}
