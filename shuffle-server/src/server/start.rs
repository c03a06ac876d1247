//! Everything that can fail before the server serves, in the order that leaves nothing behind.

use std::io;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use buffer_pool::{MemfdBacking, NetworkPool};
use rustix::thread::{CpuSet, sched_setaffinity};
use shuffle_protocol::{Incarnation, NodeAddress};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Notify;
use tracing::{info, warn};

use super::{ServerError, Service, disks};
use crate::config::{Config, format_size};
use crate::metrics;
use crate::node::{Node, NodeConfig, Quotas};
use crate::transport::ExecutorSocket;

const BACKLOG: i32 = 1024;

/// A server that can serve.
pub(super) struct Started {
    pub(super) service: Rc<Service>,
    pub(super) socket: ExecutorSocket,
    pub(super) unix: UnixListener,
    pub(super) tcp: TcpListener,
}

/// Takes the socket, the port and the memory.
pub(super) fn start(config: Config) -> Result<Started, ServerError> {
    for warning in &config.warnings {
        warn!("{warning}");
    }
    // Before anything is allocated, and before there is another thread: memory comes from the node of the core that asks for it.
    stay_on(&config.node.cores).map_err(|source| ServerError::Cores {
        cores: config.node.cores.clone(),
        source,
    })?;
    let mut socket = ExecutorSocket::bind(&config.executor.socket, config.executor.mode)?;
    let unix = system("take the executors' socket", unix_listener(&mut socket))?;
    let tcp = listen(&config).map_err(|source| ServerError::Listen {
        address: config.node.listen,
        source,
    })?;
    let bound = system("learn the port", tcp.local_addr())?;
    let address = match &config.node.advertise {
        Some(address) => address.clone(),
        None => NodeAddress::parse(&bound.to_string()).map_err(ServerError::Address)?,
    };
    let incarnation = system("draw a random number", random())?;
    let pool = pool(&config)?;
    metrics::describe();
    info!(
        "{} buffers of {}",
        config.pool.buffers,
        format_size(config.pool.buffer_bytes.into())
    );
    let mut core = Node::new(node_config(&config, address.clone(), incarnation), pool);
    let disk = Arc::new(Notify::new());
    let disks = disks::open(&config.storage, &disk)?.map(|(store, recovery)| {
        disks::adopt(&mut core, Instant::now(), recovery);
        store
    });
    let service = Rc::new(Service::new(config, core, address, incarnation, (disks, disk)));
    Ok(Started {
        service,
        socket,
        unix,
        tcp,
    })
}

fn stay_on(cores: &[u32]) -> io::Result<()> {
    if cores.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    for core in cores {
        let core = usize::try_from(*core).unwrap_or(usize::MAX);
        if core >= CpuSet::MAX_CPU {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        set.set(core);
    }
    Ok(sched_setaffinity(None, &set)?)
}

fn unix_listener(socket: &mut ExecutorSocket) -> io::Result<UnixListener> {
    let listener = socket.take_listener().ok_or(io::ErrorKind::NotFound)?;
    UnixListener::from_std(StdUnixListener::from(listener))
}

fn listen(config: &Config) -> io::Result<TcpListener> {
    let address = config.node.listen;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Connections of a server that was here before may linger; a listener may not share.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

fn random() -> io::Result<Incarnation> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(Incarnation::new(u64::from_ne_bytes(bytes)))
}

fn pool(config: &Config) -> Result<NetworkPool<MemfdBacking>, ServerError> {
    let failed = |error: buffer_pool::PoolError| ServerError::Pool(error.to_string());
    let pool = buffer_pool::PoolConfig {
        total_buffers: config.pool.buffers,
        buffer_bytes: config.pool.buffer_bytes,
        extent_buffers: config.pool.extent_buffers,
        read_reserve_buffers: config.pool.read_reserve_buffers(),
    };
    NetworkPool::new(pool, MemfdBacking::new(pool).map_err(failed)?).map_err(failed)
}

fn node_config(config: &Config, address: NodeAddress, incarnation: Incarnation) -> NodeConfig {
    NodeConfig {
        address,
        incarnation,
        buffer_bytes: config.pool.buffer_bytes,
        stripes: config.node.stripes,
        max_queued_per_subpartition: config.limits.max_queued_per_subpartition,
        request_timeout: config.timeouts.request,
        keepalive_interval: config.timeouts.keepalive,
        dead_peer_after: config.timeouts.dead_peer,
        refused_grace: config.timeouts.refused_grace,
        group_verdict_after: config.timeouts.group_verdict,
        unread_expiry: config.timeouts.unread_expiry,
        disks: !config.storage.directories.is_empty(),
        quotas: Quotas {
            partitions_per_job: config.limits.partitions_per_job,
            channels_per_job: config.limits.channels_per_job,
            requests_per_session: config.limits.requests_per_session,
            disk_bytes_per_job: Some(config.limits.disk_bytes_per_job).filter(|most| *most > 0),
        },
    }
}

fn system<T>(action: &'static str, result: io::Result<T>) -> Result<T, ServerError> {
    result.map_err(|source| ServerError::System { action, source })
}
