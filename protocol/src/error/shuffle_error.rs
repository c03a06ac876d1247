//! The error itself.

use std::fmt;

use super::kind::{ErrorKind, Initiator};
use super::location::Location;
use crate::ids::{JobId, NodeAddress, PartitionId, StreamId, SubpartitionIndex};

/// What every fallible operation of the shuffle returns.
pub type Result<T> = std::result::Result<T, ShuffleError>;

/// What went wrong, whose doing it is, whether to try again, where, and what led to it.
///
/// The builder methods that say where set only what is not known yet, so the place closest to the failure wins and
/// every caller on the way up can add what it knows.
#[derive(Clone, PartialEq, Eq)]
pub struct ShuffleError {
    // Boxed: a `Result` of a small value stays small on the paths that run once per buffer.
    parts: Box<Parts>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Parts {
    kind: ErrorKind,
    initiator: Initiator,
    retryable: bool,
    location: Location,
    message: String,
    cause: Option<ShuffleError>,
}

impl ShuffleError {
    /// An error of this kind, with the initiator and retryability that the kind usually has.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            parts: Box::new(Parts {
                initiator: kind.initiator(),
                retryable: kind.is_retryable(),
                kind,
                location: Location::default(),
                message: message.into(),
                cause: None,
            }),
        }
    }

    /// Says whose doing it is, where that is not what the kind usually means.
    #[must_use]
    pub fn by(mut self, initiator: Initiator) -> Self {
        self.parts.initiator = initiator;
        self
    }

    /// Says whether to try again, where that is not what the kind usually means.
    #[must_use]
    pub fn retryable(mut self, retryable: bool) -> Self {
        self.parts.retryable = retryable;
        self
    }

    /// Adds what is known of the place and was not said yet.
    #[must_use]
    pub fn at(mut self, location: Location) -> Self {
        self.parts.location = std::mem::take(&mut self.parts.location).or(location);
        self
    }

    /// Names the job, unless it was.
    #[must_use]
    pub fn job(mut self, job: JobId) -> Self {
        self.parts.location.job.get_or_insert(job);
        self
    }

    /// Names the partition, unless it was.
    #[must_use]
    pub fn partition(mut self, partition: PartitionId) -> Self {
        self.parts.location.partition.get_or_insert(partition);
        self
    }

    /// Names the subpartition, unless it was.
    #[must_use]
    pub fn subpartition(mut self, subpartition: SubpartitionIndex) -> Self {
        self.parts.location.subpartition.get_or_insert(subpartition);
        self
    }

    /// Names the node, unless it was.
    #[must_use]
    pub fn node(mut self, node: &NodeAddress) -> Self {
        self.parts.location.node.get_or_insert_with(|| node.clone());
        self
    }

    /// Names the file, directory or socket, unless it was.
    #[must_use]
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.parts.location.path.get_or_insert_with(|| path.into());
        self
    }

    /// Names the channel, unless it was.
    #[must_use]
    pub fn stream(mut self, stream: StreamId) -> Self {
        self.parts.location.stream.get_or_insert(stream);
        self
    }

    /// Says what led to it. Where a cause is already known, `cause` goes behind the innermost one: nothing that was
    /// said is lost, and the first cause is the last that was named.
    #[must_use]
    pub fn because(mut self, cause: Self) -> Self {
        let mut innermost = &mut self.parts.cause;
        while let Some(error) = innermost {
            innermost = &mut error.parts.cause;
        }
        *innermost = Some(cause);
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.parts.kind
    }

    /// Whose doing it is.
    pub fn initiator(&self) -> Initiator {
        self.parts.initiator
    }

    /// Whether the same call may succeed when it is made again.
    pub fn is_retryable(&self) -> bool {
        self.parts.retryable
    }

    /// Where it happened.
    pub fn location(&self) -> &Location {
        &self.parts.location
    }

    /// What the kind and the place do not say.
    pub fn message(&self) -> &str {
        &self.parts.message
    }

    /// What led to it directly.
    pub fn cause(&self) -> Option<&Self> {
        self.parts.cause.as_ref()
    }

    /// What led to it in the end; the error itself if nothing did.
    pub fn first_cause(&self) -> &Self {
        let mut error = self;
        while let Some(cause) = error.cause() {
            error = cause;
        }
        error
    }

    fn fmt_one(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.parts.kind)?;
        if !self.parts.location.is_empty() {
            write!(f, " ({})", self.parts.location)?;
        }
        if !self.parts.message.is_empty() {
            write!(f, ": {}", self.parts.message)?;
        }
        Ok(())
    }
}

/// Kind, place and message, and in the same way the first cause.
impl fmt::Display for ShuffleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_one(f)?;
        if self.parts.cause.is_some() {
            f.write_str("; first cause: ")?;
            self.first_cause().fmt_one(f)?;
        }
        Ok(())
    }
}

/// The message, because this is what a program shows whose `main` returns the error; `{:#?}` shows every part.
impl fmt::Debug for ShuffleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            f.debug_struct("ShuffleError").field("parts", &self.parts).finish()
        } else {
            fmt::Display::fmt(self, f)
        }
    }
}

impl std::error::Error for ShuffleError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause().map(|cause| cause as _)
    }
}

/// Dropped without recursion: a chain of causes can be as long as someone made it.
impl Drop for Parts {
    fn drop(&mut self) {
        let mut next = self.cause.take();
        while let Some(mut error) = next {
            next = error.parts.cause.take();
        }
    }
}
