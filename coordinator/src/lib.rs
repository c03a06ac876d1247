//! What a job's driver decides about its shuffles.
//!
//! ```text
//!   Pipeline --plan--> JobGraph --> Coordinator
//!                                     |   handle_event: nodes, partitions by node, tasks
//!                                     |      groups       who runs beside whom
//!                                     |      admission    slots for all of a group or for nobody
//!                                     |      parallelism  how many tasks, from the bytes they will read
//!                                     |      ranges       which task reads which subpartitions
//!                                     |      completion   when success may be seen
//!                                     v   poll_action: deploy, update, cancel, fence, fail, release, notify
//! ```
//!
//! The crate is pure: it knows no socket, no file, no clock and no runtime. Any engine can embed it; servers and clients never
//! depend on it.
//!
#![doc = include_str!("../../docs/coordinator.md")]
#![forbid(unsafe_code)]

mod adjacency;
mod admission;
mod bits;
mod completion;
mod coordinator;
pub mod graph;
pub mod groups;
mod ids;
pub mod parallelism;
pub mod plan;
pub mod ranges;

pub use admission::{Cluster, Need, NeverFits};
pub use completion::Notice;
pub use coordinator::{
    Action, Config, Coordinator, DeployedInput, DeployedOutput, Deployment, Event, EventError, Indeterminate,
    LocationRun, MAX_SUBPARTITION_BYTES, Outcome, PartitionChange, PartitionState, SubmitError,
};
pub use graph::{
    Dependency, Distribution, Edge, EdgeSpec, GraphBuilder, GraphError, GraphErrors, Idiom, Idioms, JobGraph,
    JobResult, Parallelism, Stage,
};
pub use groups::{GroupError, Groups, Unsupported};
pub use ids::{EdgeId, StageId, TaskId};
pub use parallelism::{Adaptive, ConfigError, InputVolume, Limits, Rule};
pub use ranges::{Assignment, Piece, Ranges, TaskShare};
