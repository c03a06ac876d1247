//! Where an error happened.

use std::fmt;

use crate::ids::{JobId, NodeAddress, PartitionId, StreamId, SubpartitionIndex};

/// Where an error happened, as far as it is known and applies.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Location {
    /// The job.
    pub job: Option<JobId>,
    /// The result partition and attempt.
    pub partition: Option<PartitionId>,
    /// The subpartition of it.
    pub subpartition: Option<SubpartitionIndex>,
    /// The node, usually the other side's.
    pub node: Option<NodeAddress>,
    /// The file, directory or socket.
    pub path: Option<String>,
    /// The channel.
    pub stream: Option<StreamId>,
}

impl Location {
    /// Takes from `other` what is not known here.
    pub fn or(self, other: Self) -> Self {
        Self {
            job: self.job.or(other.job),
            partition: self.partition.or(other.partition),
            subpartition: self.subpartition.or(other.subpartition),
            node: self.node.or(other.node),
            path: self.path.or(other.path),
            stream: self.stream.or(other.stream),
        }
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What is known, as in `job 3, partition 7/11#0, subpartition 13`.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        let mut part = |word: &str, value: Option<&dyn fmt::Display>| match value {
            None => Ok(()),
            Some(value) => {
                let separator = if std::mem::take(&mut first) { "" } else { ", " };
                write!(f, "{separator}{word} {value}")
            }
        };
        part("job", self.job.as_ref().map(|x| x as _))?;
        part("partition", self.partition.as_ref().map(|x| x as _))?;
        part("subpartition", self.subpartition.as_ref().map(|x| x as _))?;
        part("node", self.node.as_ref().map(|x| x as _))?;
        part("path", self.path.as_ref().map(|x| x as _))?;
        part("stream", self.stream.as_ref().map(|x| x as _))
    }
}
