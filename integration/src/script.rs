//! What a test tells an executor process, and what that answers: one JSON object a line.

use serde::{Deserialize, Serialize};
use shuffle_protocol::error::ErrorKind;

use crate::stamp::{Lengths, Source};

/// To the executor.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Command {
    /// Write stamped records, one subpartition after the other in turn.
    Produce {
        /// Named in the answers.
        task: u32,
        /// Which partition.
        source: Source,
        /// Its subpartitions.
        subpartitions: u32,
        /// Records in each subpartition.
        records: u64,
        /// Their lengths.
        lengths: Lengths,
        /// Minimum and maximum of the local pool (0: no limit), if not the default.
        buffers: Option<(u32, u32)>,
        /// Group of the partition.
        group: Option<Group>,
        /// What to do after the last record.
        then: Then,
    },
    /// Read channels and judge what comes.
    Consume {
        /// Named in the answers.
        task: u32,
        /// What to read.
        channels: Vec<Channel>,
        /// Records in each subpartition.
        records: u64,
        /// Their lengths.
        lengths: Lengths,
        /// Exclusive and floating credits, if not the default.
        credits: Option<(u32, u32)>,
        /// Group of the gate.
        group: Option<Group>,
        /// After that many records, stop reading for ever and keep every view.
        stop_after: Option<u64>,
    },
    /// Drop the session without a word and end the process.
    Exit {
        /// Status.
        code: i32,
    },
}

/// After the last record of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// Finish it.
    Finish,
    /// Abort it.
    Abort,
    /// Keep the writer open until it fails.
    Hold,
}

/// A pipelined group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Number.
    pub id: u64,
    /// Node that decides which failure was first.
    pub home: String,
    /// All nodes that have a part in it.
    pub nodes: Vec<String>,
}

/// One input of a gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channel {
    /// Producing node, none for the executor's own.
    pub node: Option<String>,
    /// Partition.
    pub source: Source,
    /// First subpartition.
    pub first: u32,
    /// Number of subpartitions.
    pub count: u32,
    /// The partition is broadcast, to so many consumers on this node.
    #[serde(default)]
    pub told_of: Option<u32>,
}

/// From the executor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Happened {
    /// Attached; commands are read.
    Ready,
    /// The partition or gate is open.
    Opened {
        /// Of which command.
        task: u32,
    },
    /// Some records have been written or read (sent at the first and then now and then).
    Progress {
        /// Of which command.
        task: u32,
        /// How many so far.
        records: u64,
    },
    /// A producer holds its writer, or a consumer its views.
    Holding {
        /// Of which command.
        task: u32,
        /// How many records so far.
        records: u64,
    },
    /// The command has ended well.
    Done {
        /// Of which command.
        task: u32,
        /// Records written or read.
        records: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// The service answered with an error.
    Failed {
        /// Of which command.
        task: u32,
        /// Name of the error's kind.
        kind: String,
        /// The error in words.
        text: String,
        /// Its first cause in words.
        first_cause: String,
        /// Name of the first cause's kind.
        first_kind: String,
    },
    /// The oracle found wrong data: a failed test whatever else happens.
    Wrong {
        /// Of which command.
        task: u32,
        /// What is wrong.
        text: String,
    },
}

/// Name of an error's kind, without what it carries: `NotRegistered`, `PeerLost`, ...
#[must_use]
pub fn kind_name(kind: &ErrorKind) -> String {
    let text = format!("{kind:?}");
    text.split([' ', '{', '(']).next().unwrap_or_default().to_owned()
}

impl Happened {
    /// The command it belongs to.
    #[must_use]
    pub fn task(&self) -> Option<u32> {
        match self {
            Self::Ready => None,
            Self::Opened { task }
            | Self::Progress { task, .. }
            | Self::Holding { task, .. }
            | Self::Done { task, .. }
            | Self::Failed { task, .. }
            | Self::Wrong { task, .. } => Some(*task),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Command, Then};
    use crate::stamp::{Lengths, Source};

    #[test]
    fn a_command_survives_its_line() {
        let command = Command::Produce {
            task: 3,
            source: Source {
                job: 7,
                result: 11,
                partition: 13,
                attempt: 5,
            },
            subpartitions: 2,
            records: 10,
            lengths: Lengths::Spread { least: 1, most: 9 },
            buffers: Some((2, 0)),
            group: None,
            then: Then::Hold,
        };
        let line = serde_json::to_string(&command).expect("a line");
        assert!(!line.contains('\n'));
        let back: Command = serde_json::from_str(&line).expect("the same");
        assert_eq!(format!("{back:?}"), format!("{command:?}"));
    }
}
