//! Between messages and typed values. Every refusal is `InvalidRequest` or `LimitExceeded` and says which field.

use super::generated::{self as proto};
use crate::error::{ErrorKind, Result, ShuffleError};
use crate::ids::{GroupId, NodeAddress, PartitionId, ResultId, SubpartitionIndex, SubpartitionRange};
use crate::limits::MAX_GROUP_NODES;
use crate::partition::{Digest, GroupRef, Lifetime, PartitionKind, Pressure, Readiness, Totals};

/// The value of a field that must be there.
///
/// # Errors
/// `InvalidRequest` that names the field.
pub fn required<T>(value: Option<T>, field: &'static str) -> Result<T> {
    value.ok_or_else(|| invalid(format!("the field {field} is missing")))
}

impl From<proto::Partition> for PartitionId {
    fn from(partition: proto::Partition) -> Self {
        Self {
            result: ResultId::new(partition.result),
            index: partition.index,
            attempt: partition.attempt,
        }
    }
}

impl From<PartitionId> for proto::Partition {
    fn from(partition: PartitionId) -> Self {
        Self {
            result: partition.result.value(),
            index: partition.index,
            attempt: partition.attempt,
        }
    }
}

impl TryFrom<proto::SubpartitionRange> for SubpartitionRange {
    type Error = ShuffleError;

    fn try_from(range: proto::SubpartitionRange) -> Result<Self> {
        if range.count == 0 {
            return Err(invalid("a channel has at least one subpartition".to_owned()));
        }
        Self::new(range.first, range.count)
    }
}

impl From<SubpartitionRange> for proto::SubpartitionRange {
    fn from(range: SubpartitionRange) -> Self {
        Self {
            first: range.first,
            count: range.count,
        }
    }
}

impl TryFrom<proto::Group> for GroupRef {
    type Error = ShuffleError;

    fn try_from(group: proto::Group) -> Result<Self> {
        Ok(Self {
            id: GroupId::new(group.id),
            home: NodeAddress::parse(&group.home)?,
            nodes: parse_nodes(&group.nodes)?,
        })
    }
}

impl From<&GroupRef> for proto::Group {
    fn from(group: &GroupRef) -> Self {
        Self {
            id: group.id.value(),
            home: group.home.to_string(),
            nodes: group.nodes.iter().map(ToString::to_string).collect(),
        }
    }
}

/// The nodes of a list that came.
///
/// # Errors
/// `LimitExceeded` beyond [`MAX_GROUP_NODES`], `InvalidRequest` for one that is not an address.
pub fn parse_nodes(nodes: &[String]) -> Result<Vec<NodeAddress>> {
    if nodes.len() > MAX_GROUP_NODES as usize {
        return Err(ShuffleError::new(
            ErrorKind::LimitExceeded {
                what: "nodes".to_owned(),
                limit: MAX_GROUP_NODES.into(),
                asked: nodes.len().try_into().unwrap_or(u64::MAX),
            },
            "",
        ));
    }
    nodes.iter().map(|node| NodeAddress::parse(node)).collect()
}

impl proto::CreatePartition {
    /// The three choices of the partition, not yet validated against each other.
    ///
    /// # Errors
    /// `InvalidRequest` for a value that this version does not know.
    pub fn kind(&self) -> Result<PartitionKind> {
        let unknown = |field, value| move |_| invalid(format!("{field} = {value} is not known"));
        let lifetime = proto::Lifetime::try_from(self.lifetime).map_err(unknown("lifetime", self.lifetime))?;
        let readiness = proto::Readiness::try_from(self.readiness).map_err(unknown("readiness", self.readiness))?;
        let pressure = proto::Pressure::try_from(self.pressure).map_err(unknown("pressure", self.pressure))?;
        Ok(PartitionKind {
            lifetime: match lifetime {
                proto::Lifetime::Ephemeral => Lifetime::Ephemeral,
                proto::Lifetime::Persistent => Lifetime::Persistent,
            },
            readiness: match readiness {
                proto::Readiness::Pipelined => Readiness::Pipelined,
                proto::Readiness::Blocking => Readiness::Blocking,
            },
            pressure: match pressure {
                proto::Pressure::Bounded => Pressure::Bounded,
                proto::Pressure::Spilling => Pressure::Spilling,
            },
        })
    }

    /// The same request with these three choices.
    #[must_use]
    pub fn with_kind(mut self, kind: PartitionKind) -> Self {
        self.set_lifetime(match kind.lifetime {
            Lifetime::Ephemeral => proto::Lifetime::Ephemeral,
            Lifetime::Persistent => proto::Lifetime::Persistent,
        });
        self.set_readiness(match kind.readiness {
            Readiness::Pipelined => proto::Readiness::Pipelined,
            Readiness::Blocking => proto::Readiness::Blocking,
        });
        self.set_pressure(match kind.pressure {
            Pressure::Bounded => proto::Pressure::Bounded,
            Pressure::Spilling => proto::Pressure::Spilling,
        });
        self
    }
}

impl proto::SubpartitionTotals {
    /// The message for one subpartition.
    pub fn new(subpartition: SubpartitionIndex, totals: &Totals) -> Self {
        Self {
            subpartition: subpartition.value(),
            buffers: totals.buffers,
            records: totals.records,
            bytes: totals.bytes,
            digest: totals.digest.value(),
        }
    }

    /// The subpartition and what went through it.
    pub fn parts(&self) -> (SubpartitionIndex, Totals) {
        let totals = Totals {
            buffers: self.buffers,
            records: self.records,
            bytes: self.bytes,
            digest: Digest::new(self.digest),
        };
        (SubpartitionIndex::new(self.subpartition), totals)
    }
}

fn invalid(message: String) -> ShuffleError {
    ShuffleError::new(ErrorKind::InvalidRequest, message)
}
