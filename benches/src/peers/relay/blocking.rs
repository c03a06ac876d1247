//! The chain by blocking calls.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};

use super::super::failed;
use super::{CHUNK_BYTES, Place, RelayLoad};
use crate::executor::ExecutorError;
use crate::load::{Done, Ear, Event, Ticks, Totals, emit, wait_for_go};

pub(super) fn run(load: &RelayLoad) -> Result<Done, ExecutorError> {
    let to = load.to.as_ref().map(dial).transpose().map_err(failed("connecting"))?;
    let from = load
        .from
        .as_ref()
        .map(receive)
        .transpose()
        .map_err(failed("listening"))?;
    match (from, to) {
        (None, Some(mut to)) => {
            let watch = wait_for_go()?;
            let mut ticks = Ticks::start(load.rhythm, true).map_err(failed("the timer"))?;
            while !ticks.is_over() {
                ticks.wait().map_err(failed("the timer"))?;
                while let Some(record) = ticks.poll() {
                    to.write_all(record).map_err(failed("writing"))?;
                }
            }
            Ok(ticks.done(watch))
        }
        (Some(mut from), Some(mut to)) => {
            let watch = wait_for_go()?;
            let mut chunk = vec![0; CHUNK_BYTES];
            loop {
                match from.read(&mut chunk).map_err(failed("reading"))? {
                    0 => return Ok(watch.stop(Totals::default())),
                    length => to.write_all(&chunk[..length]).map_err(failed("writing"))?,
                }
            }
        }
        (Some(mut from), None) => {
            let watch = wait_for_go()?;
            let mut ear = Ear::new(load.rhythm)?;
            let mut record = vec![0; load.rhythm.record_bytes];
            for _ in 0..load.rhythm.records {
                from.read_exact(&mut record).map_err(failed("reading"))?;
                ear.hear(&record)?;
            }
            Ok(ear.done(watch))
        }
        (None, None) => Err(ExecutorError::Other("a relay between nobody".to_owned())),
    }
}

trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

fn dial(place: &Place) -> io::Result<Box<dyn Stream>> {
    Ok(match place {
        Place::Unix(path) => Box::new(UnixStream::connect(path)?),
        Place::Tcp(address) => {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
    })
}

fn receive(place: &Place) -> io::Result<Box<dyn Stream>> {
    Ok(match place {
        Place::Unix(path) => {
            let listener = UnixListener::bind(path)?;
            emit(&Event::Listening(path.clone()));
            Box::new(listener.accept()?.0)
        }
        Place::Tcp(address) => {
            let listener = TcpListener::bind(address)?;
            emit(&Event::Listening(listener.local_addr()?.to_string()));
            Box::new(listener.accept()?.0)
        }
    })
}
