//! Hello and welcome, checked.

use std::time::Duration;

use super::features::{Features, negotiate};
use super::token::JobToken;
use crate::control;
use crate::error::{ErrorKind, Result, ShuffleError};
use crate::ids::{Generation, Incarnation, JobId, NodeAddress};
use crate::limits::{
    MAX_BUFFER_BYTES, MAX_NAME_BYTES, MAX_STRIPES, MAX_TIMEOUT, MAX_TOKEN_BYTES, MIN_BUFFER_BYTES, VERSION_MAX,
    VERSION_MIN,
};

/// A hello that makes sense; whether its sender may come in is the server's to say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CheckedHello {
    /// An executor of one job.
    Executor(ExecutorHello),
    /// Another node's server.
    Peer(PeerHello),
}

/// The hello of an executor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExecutorHello {
    /// The highest version that both speak.
    pub version: u32,
    /// The features that both understand.
    pub features: Features,
    /// The job that the session is to be bound to.
    pub job: JobId,
    /// The token, if it brought one. Not verified yet.
    pub token: Option<JobToken>,
    /// Its name for logs and messages, without control characters.
    pub name: String,
}

/// The hello of another node's server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerHello {
    /// The highest version that both speak.
    pub version: u32,
    /// The features that both understand.
    pub features: Features,
    /// Where it serves other nodes.
    pub node: NodeAddress,
    /// Which of its lives this is.
    pub incarnation: Incarnation,
    /// How many connections it made before for this stripe.
    pub generation: Generation,
    /// Its buffer size, in bytes.
    pub buffer_bytes: u32,
    /// The address it dialled.
    pub expected_node: NodeAddress,
    /// Which of the connections between the two nodes this is.
    pub stripe: u32,
}

/// What a welcome says, checked by who sent the hello.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// The version that is spoken from here on.
    pub version: u32,
    /// The features that may be used.
    pub features: Features,
    /// Where the server serves other nodes.
    pub node: NodeAddress,
    /// Which of its lives this is.
    pub incarnation: Incarnation,
    /// The generation of this connection as the acceptor counts it.
    pub generation: Generation,
    /// Its buffer size, in bytes.
    pub buffer_bytes: u32,
    /// A ping leaves after this long without traffic.
    pub keepalive_interval: Duration,
    /// The other side is dead after this long without a byte.
    pub dead_peer_after: Duration,
    /// To an executor on this node: length of each arena, in buffers; 0 where there are none.
    pub arena_buffers: u32,
    /// Largest record that a writer may write, in bytes.
    pub max_record_bytes: u64,
    /// How long the server lets a request wait.
    pub request_timeout: Duration,
    /// Buffers that may wait in one subpartition of a writer that asks for nothing else.
    pub max_queued: u32,
}

impl control::Hello {
    /// Checks a hello that came.
    ///
    /// # Errors
    /// `VersionMismatch` first of all, then `InvalidRequest`, `LimitExceeded` or `Denied` that say which field.
    pub fn check(&self) -> Result<CheckedHello> {
        let version = negotiate(VERSION_MIN..=VERSION_MAX, self.version_min..=self.version_max)?;
        let features = Features::from_bits(self.features) & Features::OURS;
        match control::Role::try_from(self.role) {
            Ok(control::Role::Executor) => self.check_executor(version, features).map(CheckedHello::Executor),
            Ok(control::Role::Peer) => self.check_peer(version, features).map(CheckedHello::Peer),
            Ok(control::Role::Unspecified) | Err(_) => {
                Err(invalid(format!("a hello of the unknown role {}", self.role)))
            }
        }
    }

    fn check_executor(&self, version: u32, features: Features) -> Result<ExecutorHello> {
        at_most("token bytes", self.token.len(), MAX_TOKEN_BYTES)?;
        at_most("name bytes", self.name.len(), MAX_NAME_BYTES)?;
        if self.name.chars().any(char::is_control) {
            return Err(invalid("a name with control characters"));
        }
        let token = (!self.token.is_empty())
            .then(|| JobToken::from_bytes(&self.token))
            .transpose()?;
        let job = JobId::new(self.job);
        Ok(ExecutorHello {
            version,
            features,
            job,
            token,
            name: self.name.clone(),
        })
    }

    fn check_peer(&self, version: u32, features: Features) -> Result<PeerHello> {
        let node = NodeAddress::parse(&self.node)?;
        let expected_node = NodeAddress::parse(&self.expected_node)?;
        if node == expected_node {
            return Err(invalid("a server dialled itself").node(&node));
        }
        check_buffer_bytes(self.buffer_bytes)?;
        if self.stripe >= MAX_STRIPES {
            return Err(limit_exceeded("stripe", MAX_STRIPES - 1, self.stripe.into()));
        }
        Ok(PeerHello {
            version,
            features,
            node,
            incarnation: Incarnation::new(self.incarnation),
            generation: Generation::new(self.generation),
            buffer_bytes: self.buffer_bytes,
            expected_node,
            stripe: self.stripe,
        })
    }
}

impl PeerHello {
    /// Checks that the peer means this node and has buffers of the same size.
    ///
    /// # Errors
    /// `ConfigMismatch` that names both sides' values.
    pub fn check_fits(&self, ours: &NodeAddress, buffer_bytes: u32) -> Result<()> {
        same("node address", ours, &self.expected_node)
            .and_then(|()| same("buffer size in bytes", &buffer_bytes, &self.buffer_bytes))
            .map_err(|error| error.node(&self.node))
    }
}

impl control::Welcome {
    /// Checks a welcome that came in answer to a hello of this build.
    ///
    /// # Errors
    /// `Protocol` for a version or feature that was not offered, `InvalidRequest` or `LimitExceeded` for values that
    /// make no sense.
    pub fn check(&self) -> Result<Accepted> {
        if !(VERSION_MIN..=VERSION_MAX).contains(&self.version) {
            return Err(protocol(format!(
                "the server chose version {}, not offered",
                self.version
            )));
        }
        let features = Features::from_bits(self.features);
        if !Features::OURS.contains(features) {
            return Err(protocol(format!("the server chose {features:?}, not offered")));
        }
        let node = NodeAddress::parse(&self.node)?;
        check_buffer_bytes(self.buffer_bytes)?;
        let keepalive_interval = Duration::from_millis(self.keepalive_interval_ms.into());
        let dead_peer_after = Duration::from_millis(self.dead_peer_after_ms.into());
        if keepalive_interval.is_zero() || keepalive_interval >= dead_peer_after {
            return Err(invalid(format!(
                "a keepalive interval of {keepalive_interval:?} with a dead-peer time of {dead_peer_after:?}"
            )));
        }
        if dead_peer_after > MAX_TIMEOUT {
            return Err(invalid(format!("a dead-peer time of {dead_peer_after:?}")));
        }
        Ok(Accepted {
            version: self.version,
            features,
            node,
            incarnation: Incarnation::new(self.incarnation),
            generation: Generation::new(self.generation),
            buffer_bytes: self.buffer_bytes,
            keepalive_interval,
            dead_peer_after,
            arena_buffers: self.arena_buffers,
            max_record_bytes: self.max_record_bytes,
            request_timeout: Duration::from_millis(self.request_timeout_ms.into()),
            max_queued: self.max_queued_per_subpartition.max(1),
        })
    }
}

impl Accepted {
    /// Checks, for another node's server, that who answered is who was dialled and has buffers of the same size.
    ///
    /// # Errors
    /// `ConfigMismatch` that names both sides' values.
    pub fn check_fits(&self, dialled: &NodeAddress, buffer_bytes: u32) -> Result<()> {
        same("node address", dialled, &self.node)
            .and_then(|()| same("buffer size in bytes", &buffer_bytes, &self.buffer_bytes))
            .map_err(|error| error.node(dialled))
    }
}

/// The message that refuses a connection.
pub fn reject(error: &ShuffleError) -> control::control::Message {
    control::control::Message::Reject(control::Reject {
        error: Some(error.into()),
    })
}

fn same<T: PartialEq + ToString>(what: &str, ours: &T, theirs: &T) -> Result<()> {
    if ours == theirs {
        return Ok(());
    }
    let kind = ErrorKind::ConfigMismatch {
        what: what.to_owned(),
        ours: ours.to_string(),
        theirs: theirs.to_string(),
    };
    Err(ShuffleError::new(kind, ""))
}

fn check_buffer_bytes(bytes: u32) -> Result<()> {
    if !(MIN_BUFFER_BYTES..=MAX_BUFFER_BYTES).contains(&bytes) {
        return Err(invalid(format!(
            "buffers of {bytes} bytes, not of {MIN_BUFFER_BYTES} to {MAX_BUFFER_BYTES}"
        )));
    }
    Ok(())
}

fn at_most(what: &str, asked: usize, limit: u32) -> Result<()> {
    if asked > limit as usize {
        return Err(limit_exceeded(what, limit, asked.try_into().unwrap_or(u64::MAX)));
    }
    Ok(())
}

fn limit_exceeded(what: &str, limit: u32, asked: u64) -> ShuffleError {
    let kind = ErrorKind::LimitExceeded {
        what: what.to_owned(),
        limit: limit.into(),
        asked,
    };
    ShuffleError::new(kind, "in the handshake")
}

fn invalid(message: impl Into<String>) -> ShuffleError {
    ShuffleError::new(ErrorKind::InvalidRequest, message)
}

fn protocol(message: String) -> ShuffleError {
    ShuffleError::new(ErrorKind::Protocol, message)
}
