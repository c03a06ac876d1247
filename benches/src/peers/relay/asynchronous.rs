//! The chain in the runtime that the service uses: one thread for each process.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::super::failed;
use super::{CHUNK_BYTES, Place, RelayLoad};
use crate::executor::ExecutorError;
use crate::load::{Done, Ear, Event, Ticks, Totals, emit, in_runtime, wait_for_go};

pub(super) fn run(load: RelayLoad) -> Result<Done, ExecutorError> {
    in_runtime(async move { relay(&load).await })
}

async fn relay(load: &RelayLoad) -> Result<Done, ExecutorError> {
    let to = match &load.to {
        Some(place) => Some(dial(place).await.map_err(failed("connecting"))?),
        None => None,
    };
    let from = match &load.from {
        Some(place) => Some(receive(place).await.map_err(failed("listening"))?),
        None => None,
    };
    // Nothing else is to run in this process until then.
    let watch = wait_for_go()?;
    match (from, to) {
        (None, Some(mut to)) => {
            let mut ticks = Ticks::start(load.rhythm, false).map_err(failed("the timer"))?;
            let readiness = ticks.readiness().map_err(failed("the timer"))?;
            while !ticks.is_over() {
                ticks.wait_in_runtime(&readiness).await.map_err(failed("the timer"))?;
                while let Some(record) = ticks.poll() {
                    to.write_all(record).await.map_err(failed("writing"))?;
                }
            }
            Ok(ticks.done(watch))
        }
        (Some(mut from), Some(mut to)) => {
            let mut chunk = vec![0; CHUNK_BYTES];
            loop {
                match from.read(&mut chunk).await.map_err(failed("reading"))? {
                    0 => return Ok(watch.stop(Totals::default())),
                    length => to.write_all(&chunk[..length]).await.map_err(failed("writing"))?,
                }
            }
        }
        (Some(mut from), None) => {
            let mut ear = Ear::new(load.rhythm)?;
            let mut record = vec![0; load.rhythm.record_bytes];
            for _ in 0..load.rhythm.records {
                from.read_exact(&mut record).await.map_err(failed("reading"))?;
                ear.hear(&record)?;
            }
            Ok(ear.done(watch))
        }
        (None, None) => Err(ExecutorError::Other("a relay between nobody".to_owned())),
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

async fn dial(place: &Place) -> io::Result<Box<dyn Stream>> {
    Ok(match place {
        Place::Unix(path) => Box::new(UnixStream::connect(path).await?),
        Place::Tcp(address) => {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
    })
}

async fn receive(place: &Place) -> io::Result<Box<dyn Stream>> {
    Ok(match place {
        Place::Unix(path) => {
            let listener = UnixListener::bind(path)?;
            emit(&Event::Listening(path.clone()));
            Box::new(listener.accept().await?.0)
        }
        Place::Tcp(address) => {
            let listener = TcpListener::bind(address).await?;
            emit(&Event::Listening(listener.local_addr()?.to_string()));
            Box::new(listener.accept().await?.0)
        }
    })
}
