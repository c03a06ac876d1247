//! A byte stream between two processes: a Unix socket, or TCP over loopback.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};

use super::{End, PairLoad, Way, changed, failed};
use crate::executor::ExecutorError;
use crate::load::{Done, Event, Filler, Reader, emit, wait_for_go};

/// One end of the stream.
pub(super) fn run(load: &PairLoad) -> Result<Done, ExecutorError> {
    match (&load.end, load.way) {
        (End::Give { .. }, Way::Tcp) => {
            let listener = TcpListener::bind("127.0.0.1:0").map_err(failed("listening"))?;
            let address = listener.local_addr().map_err(failed("listening"))?;
            emit(&Event::Listening(address.to_string()));
            let (stream, _) = listener.accept().map_err(failed("accepting"))?;
            stream.set_nodelay(true).map_err(failed("TCP_NODELAY"))?;
            give(load, stream)
        }
        (End::Take { address }, Way::Tcp) => {
            let stream = TcpStream::connect(address).map_err(failed("connecting"))?;
            take(load, stream)
        }
        (End::Give { path }, _) => {
            let listener = UnixListener::bind(path).map_err(failed("listening"))?;
            emit(&Event::Listening(path.clone()));
            let (stream, _) = listener.accept().map_err(failed("accepting"))?;
            give(load, stream)
        }
        (End::Take { address }, _) => {
            let stream = UnixStream::connect(address).map_err(failed("connecting"))?;
            take(load, stream)
        }
    }
}

/// Bytes in front of a piece that hold its checksum, if there is one.
const HEAD_BYTES: usize = 8;

/// One buffer for everything: it stays in cache.
fn buffer(load: &PairLoad) -> (Vec<u8>, usize) {
    let head = if load.checksums { HEAD_BYTES } else { 0 };
    let piece = usize::try_from(load.piece_bytes).expect("invariant: a length fits an address");
    (vec![0; head + piece], head)
}

fn give(load: &PairLoad, mut stream: impl Write) -> Result<Done, ExecutorError> {
    let (mut buffer, head) = buffer(load);
    let mut filler = Filler::new(load.index);
    let watch = wait_for_go()?;
    for _ in 0..load.pieces {
        filler.fill(&mut buffer[head..]);
        if load.checksums {
            let checksum = crc32fast::hash(&buffer[head..]);
            buffer[..head].copy_from_slice(&u64::from(checksum).to_le_bytes());
        }
        stream.write_all(&buffer).map_err(failed("writing"))?;
    }
    Ok(watch.stop(filler.totals()))
}

fn take(load: &PairLoad, mut stream: impl Read) -> Result<Done, ExecutorError> {
    let (mut buffer, head) = buffer(load);
    let mut reader = Reader::new();
    let watch = wait_for_go()?;
    for piece in 0..load.pieces {
        stream.read_exact(&mut buffer).map_err(failed("reading"))?;
        if load.checksums {
            let checksum = crc32fast::hash(&buffer[head..]);
            if buffer[..head] != u64::from(checksum).to_le_bytes() {
                return Err(changed(piece));
            }
        }
        reader.read(&buffer[head..]);
    }
    Ok(watch.stop(reader.totals()))
}

#[cfg(test)]
mod tests {
    use super::{End, PairLoad, Way, buffer};

    #[test]
    fn a_checksum_has_its_place_in_front() {
        let mut load = PairLoad {
            way: Way::Tcp,
            index: 0,
            end: End::Give { path: String::new() },
            pieces: 1,
            piece_bytes: 32,
            buffers: 1,
            checksums: false,
        };
        assert_eq!((buffer(&load).0.len(), buffer(&load).1), (32, 0));
        load.checksums = true;
        assert_eq!((buffer(&load).0.len(), buffer(&load).1), (40, 8));
    }
}
