//! A TCP proxy between two servers that delays, cuts, resets, swallows and changes bytes.
//!
//! A server whose advertised address is the proxy's is reached by its peers through the proxy only.

mod fault;
mod frames;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use fault::{Action, Direction, Fault, Trigger, kind};
pub use frames::{HEADER_BYTES, Seen, Tracker};

use fault::{State, Way};

/// A running proxy. Dropping it resets its connections and frees its port.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    upstream: watch::Sender<Option<SocketAddr>>,
    cut: watch::Sender<u64>,
    hole: watch::Sender<bool>,
}

impl Proxy {
    /// Listens on a free port of the loopback.
    ///
    /// # Errors
    /// If no port can be had.
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            upstream: watch::Sender::new(None),
            cut: watch::Sender::new(0),
            hole: watch::Sender::new(false),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self {
            address,
            shared,
            accepting,
        })
    }

    /// Where the proxy listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Names the server behind the proxy; connections made earlier wait for this.
    pub fn set_upstream(&self, address: SocketAddr) {
        self.shared.upstream.send_replace(Some(address));
    }

    /// A fault that will strike once.
    pub fn inject(&self, direction: Direction, trigger: Trigger, action: Action) {
        self.shared.state().faults.push(Fault {
            direction,
            trigger,
            action,
        });
    }

    /// From now on bytes of this direction are held for `delay`.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.shared.state().delay.insert(direction, delay);
    }

    /// Resets every connection now; how many there were.
    pub fn cut_all(&self) -> u64 {
        let live = self.shared.state().live;
        self.shared.cut.send_modify(|generation| *generation += 1);
        live
    }

    /// While true, nothing passes and nothing is closed: the peers look alive to the kernel.
    pub fn black_hole(&self, on: bool) {
        self.shared.hole.send_replace(on);
    }

    /// Faults that have struck.
    #[must_use]
    pub fn fired(&self) -> u64 {
        self.shared.state().fired
    }

    /// Connections made so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.state().connections
    }

    /// Connections that are open.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.shared.state().live
    }

    /// Frames of a kind that went by.
    #[must_use]
    pub fn frames(&self, direction: Direction, kind: u8) -> u64 {
        self.shared.state().frames.get(&(direction, kind)).copied().unwrap_or(0)
    }

    /// Bytes that went by.
    #[must_use]
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.shared.state().bytes.get(&direction).copied().unwrap_or(0)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut_all();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        {
            let mut state = shared.state();
            state.connections += 1;
            state.live += 1;
        }
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let _ = relay(client, &shared).await;
            shared.state().live -= 1;
        });
    }
}

async fn relay(client: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut cut = shared.cut.subscribe();
    let mut upstream = shared.upstream.subscribe();
    let known = async {
        upstream
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|address| *address)
    };
    let connect = async {
        let address = known.await.ok_or(io::ErrorKind::NotConnected)?;
        TcpStream::connect(address).await
    };
    let server = tokio::select! {
        server = connect => server,
        _ = cut.changed() => Err(io::ErrorKind::ConnectionReset.into()),
    };
    let Ok(server) = server else {
        return reset(&client);
    };
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let clean = {
        let up = pump(&mut from_client, &mut to_server, shared, Direction::Up);
        let down = pump(&mut from_server, &mut to_client, shared, Direction::Down);
        tokio::select! {
            both = async { tokio::try_join!(up, down) } => both.is_ok(),
            _ = cut.changed() => false,
        }
    };
    if !clean {
        reset(from_client.as_ref())?;
        reset(from_server.as_ref())?;
        // A writing half that is dropped would end the stream in order first.
        to_client.forget();
        to_server.forget();
    }
    Ok(())
}

/// Makes the coming close a reset.
fn reset(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(stream).set_linger(Some(Duration::ZERO))
}

/// Moves bytes until the end of the stream; an error means that both sides are to be reset.
async fn pump(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    shared: &Shared,
    direction: Direction,
) -> io::Result<()> {
    let mut way = Way::new(direction);
    let mut buffer = vec![0; 64 << 10];
    let mut hole = shared.hole.subscribe();
    loop {
        hole.wait_for(|on| !on).await.map_err(io::Error::other)?;
        let length = tokio::select! {
            length = from.read(&mut buffer) => length?,
            _ = hole.wait_for(|on| *on) => continue,
        };
        if length == 0 {
            return to.shutdown().await;
        }
        let delay = shared.state().delay.get(&direction).copied();
        if let Some(delay) = delay {
            tokio::time::sleep(delay).await;
        }
        let cut = way.handle_bytes(&mut shared.state(), &mut buffer[..length]);
        to.write_all(&buffer[..cut.unwrap_or(length)]).await?;
        if cut.is_some() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
    }
}

#[cfg(test)]
mod tests;
