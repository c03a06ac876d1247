//! The receiving node's carrier: reads pieces straight into free slots and hands them to the taker.

use std::io::Write;
use std::net::TcpStream;

use rustix::net::{RecvAncillaryBuffer, RecvFlags, recvmsg};

use super::frames::encode_credits;
use super::intake::{Intake, Pulled};
use super::{CarrierLoad, gone, readable};
use crate::executor::ExecutorError;
use crate::load::{Done, Totals, wait_for_go};
use crate::peers::failed;
use crate::peers::memory::{make, meet_taker};
use crate::peers::packets::{decode, drain, encode, inbox, pass_on};

pub(super) fn run(load: &CarrierLoad, path: &str, batch: usize) -> Result<Done, ExecutorError> {
    let mut stream = TcpStream::connect(&load.address).map_err(failed("connecting"))?;
    stream.set_nodelay(true).map_err(failed("TCP_NODELAY"))?;
    let (file, arena) = make("pieces", load.buffers, load.piece_bytes)?;
    let taker = meet_taker(path, &[file.readonly_fd()])?;
    let mut intake = Intake::new(&arena, load.piece_bytes);
    let mut free: Vec<u32> = (0..load.buffers).collect();
    let (mut ready, mut message) = (Vec::with_capacity(batch), inbox(load.buffers));
    announce(&mut stream, load.buffers)?;
    let watch = wait_for_go()?;
    let mut left = load.pieces;
    while left > 0 {
        let [from_taker, from_stream] = readable(&taker, &stream, true)?;
        if from_taker {
            let there = drain(&taker, &mut message)?;
            let before = free.len();
            free.extend(decode(&message).map(|entry| entry.slot));
            message.clear();
            let back = u32::try_from(free.len() - before).expect("invariant: no more than there are");
            if back > 0 {
                announce(&mut stream, back)?;
            }
            left = left.saturating_sub(u64::from(back));
            if !there && left > 0 {
                return Err(gone("taker"));
            }
        }
        if from_stream && left > 0 {
            // A batch at a time: what comes back meanwhile is warm.
            while ready.len() < batch {
                let Pulled { entry, more } = intake.pull(&mut free, |parts| {
                    let mut nothing = RecvAncillaryBuffer::default();
                    let came = recvmsg(&stream, parts, &mut nothing, RecvFlags::DONTWAIT)?;
                    Ok(came.bytes)
                })?;
                ready.extend(entry);
                if !more {
                    break;
                }
            }
            encode(&ready, &mut message);
            ready.clear();
            pass_on(&taker, &mut message)?;
        }
    }
    Ok(watch.stop(Totals::default()))
}

/// Tells the sender that it may send so many more pieces.
fn announce(stream: &mut TcpStream, slots: u32) -> Result<(), ExecutorError> {
    stream
        .write_all(&encode_credits(slots))
        .map_err(failed("announcing slots"))
}
