//! The relay on one node: passes on what the giver and the taker say, several messages in one.

use std::os::fd::{AsFd, OwnedFd};

use super::{CarrierLoad, gone, readable};
use crate::executor::ExecutorError;
use crate::load::{Done, Totals, wait_for_go};
use crate::peers::memory::{meet_giver, meet_taker, pieces_of};
use crate::peers::packets::{count, drain, inbox, pass_on};

pub(super) fn run(load: &CarrierLoad, path: &str) -> Result<Done, ExecutorError> {
    let (giver, descriptors) = meet_giver(&load.address)?;
    let taker = meet_taker(path, &[pieces_of(&descriptors)?.as_fd()])?;
    let watch = wait_for_go()?;
    carry(load, &giver, &taker)?;
    Ok(watch.stop(Totals::default()))
}

/// Until the taker has given all pieces back.
fn carry(load: &CarrierLoad, giver: &OwnedFd, taker: &OwnedFd) -> Result<(), ExecutorError> {
    let mut message = inbox(load.buffers);
    let mut left = load.pieces;
    while left > 0 {
        let [from_giver, from_taker] = readable(giver, taker, true)?;
        if from_giver {
            let there = drain(giver, &mut message)?;
            pass_on(taker, &mut message)?;
            if !there {
                return Err(gone("giver"));
            }
        }
        if from_taker {
            let there = drain(taker, &mut message)?;
            left = left.saturating_sub(count(&message));
            pass_on(giver, &mut message)?;
            if !there && left > 0 {
                return Err(gone("taker"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

    use super::carry;
    use crate::peers::carrier::{Carrier, CarrierLoad};
    use crate::peers::packets::{Entry, decode, encode};

    fn load() -> CarrierLoad {
        CarrierLoad {
            carrier: Carrier::Relay { path: String::new() },
            address: String::new(),
            pieces: 3,
            piece_bytes: 8,
            buffers: 4,
        }
    }

    fn pair() -> (std::os::fd::OwnedFd, std::os::fd::OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a pair")
    }

    fn message(slots: &[u32]) -> Vec<u8> {
        let entries: Vec<_> = slots
            .iter()
            .map(|slot| Entry {
                slot: *slot,
                checksum: 7,
            })
            .collect();
        let mut message = Vec::new();
        encode(&entries, &mut message);
        message
    }

    #[test]
    fn what_is_ready_goes_on_in_one_message_and_the_last_slot_ends_it() {
        let ((giver, front), (back, taker)) = (pair(), pair());
        for slots in [&[2, 0][..], &[3]] {
            send(&giver, &message(slots), SendFlags::empty()).expect("sent");
        }
        let relay = std::thread::spawn(move || carry(&load(), &front, &back));
        let mut space = [0; 64];
        let (length, _) = recv(&taker, &mut space[..], RecvFlags::empty()).expect("received");
        assert!(
            decode(&space[..length])
                .map(|entry| (entry.slot, entry.checksum))
                .eq([(2, 7), (0, 7), (3, 7)])
        );
        send(&taker, &message(&[2, 0, 3]), SendFlags::empty()).expect("sent");
        relay.join().expect("no panic").expect("all came back");
        let (length, _) = recv(&giver, &mut space[..], RecvFlags::empty()).expect("received");
        assert!(decode(&space[..length]).map(|entry| entry.slot).eq([2, 0, 3]));
    }

    #[test]
    fn whoever_is_gone_is_named() {
        for giver_goes in [true, false] {
            let ((giver, front), (back, taker)) = (pair(), pair());
            drop(if giver_goes { giver } else { taker });
            let error = carry(&load(), &front, &back).expect_err("gone").message_and_cause().0;
            let who = if giver_goes { "giver" } else { "taker" };
            assert!(error.contains(who), "{error}");
        }
    }
}
