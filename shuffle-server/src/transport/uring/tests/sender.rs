//! The sender against a kernel that is made up: it takes what it likes, and says so when it likes.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use proptest::prelude::*;

use super::memory::{Memory, bytes_of};
use crate::transport::uring::operation::Usage;
use crate::transport::uring::plan::{Limits, Step, ZeroCopy};
use crate::transport::uring::sender::{Chain, Sender};

const LIMITS: Limits = Limits { slices: 4, steps: 3 };

/// Takes bytes in order; decisions come from `choices`.
#[derive(Default)]
struct Kernel {
    received: Vec<u8>,
    results: VecDeque<(usize, io::Result<usize>)>,
    /// Notifications that are due: job, whether copied.
    notifications: VecDeque<(u64, bool)>,
    /// Operations without a notification whose memory is free with their result.
    plain: BTreeMap<usize, u64>,
}

impl Kernel {
    /// `taken`: so many bytes of the chain; -1: the first zero-copy send is refused.
    fn submit(&mut self, chain: &Chain, mut room: usize, refuse: bool, copied: bool) {
        let mut cut = false;
        for (at, step) in chain.steps.iter().enumerate() {
            if cut {
                self.results.push_back((at, Err(cancelled())));
                self.plain.insert(at, chain.job);
                continue;
            }
            if step.extent.is_some() && refuse {
                self.results
                    .push_back((at, Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))));
                self.plain.insert(at, chain.job);
                cut = true;
                continue;
            }
            let bytes = step_bytes(chain, step);
            let count = bytes.len().min(room.max(1));
            room = room.saturating_sub(count);
            self.received.extend(&bytes[..count]);
            self.results.push_back((at, Ok(count)));
            if step.extent.is_some() {
                self.notifications.push_back((chain.job, copied));
            } else {
                self.plain.insert(at, chain.job);
            }
            cut = count < bytes.len();
        }
    }

    fn say_result(&mut self, sender: &mut Sender) {
        let Some((at, result)) = self.results.pop_front() else {
            return;
        };
        sender.handle_sent(at, result);
        if let Some(job) = self.plain.remove(&at) {
            sender.handle_released(job);
        }
    }

    fn notify(&mut self, sender: &mut Sender, newest: bool) {
        let next = if newest {
            self.notifications.pop_back()
        } else {
            self.notifications.pop_front()
        };
        if let Some((job, copied)) = next {
            sender.handle_usage(Usage { copied, bytes: 1 });
            sender.handle_released(job);
        }
    }
}

fn cancelled() -> io::Error {
    io::Error::from_raw_os_error(libc::ECANCELED)
}

fn step_bytes(chain: &Chain, step: &Step) -> Vec<u8> {
    let pieces = &chain.gather.pieces()[step.pieces.clone()];
    let whole: Vec<u8> = pieces.iter().flat_map(|piece| piece.as_ref().to_vec()).collect();
    whole[step.skip..].to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn bytes_leave_in_order_and_buffers_come_back_once(
        choices in proptest::collection::vec((0_u8..4, 0_usize..80_000, any::<bool>()), 1..200),
        refuse in any::<bool>(),
    ) {
        let memory = Memory::new();
        let (mut sender, mut kernel) = (Sender::default(), Kernel::default());
        let (mut expected, mut returned) = (Vec::new(), Vec::new());
        let (mut given, mut sent) = (0_u32, 0);
        for slot in 0..8 {
            memory.fill(slot, u8::try_from(slot).unwrap());
        }
        let mut choices = choices.into_iter();
        let mut idle_steps = 0;
        while idle_steps < 4 {
            let (what, room, flag) = choices.next().unwrap_or((4, 100_000, true));
            match what {
                0 if given < 8 => {
                    let gather = memory.gather(&[given, given + 1]);
                    expected.extend(bytes_of(&gather));
                    sender.handle_job(gather);
                    given += 2;
                }
                1 => kernel.say_result(&mut sender),
                2 => kernel.notify(&mut sender, flag),
                4 => {
                    kernel.say_result(&mut sender);
                    kernel.notify(&mut sender, flag);
                }
                _ => {}
            }
            if let Some(chain) = sender.poll_chain(LIMITS, &mut |_| Some(0)) {
                kernel.submit(&chain, room, refuse, flag);
                idle_steps = 0;
            }
            let report = sender.take_report();
            prop_assert!(report.failed.is_none());
            sent += report.sent;
            for number in report.released {
                let first = u32::try_from(number).unwrap() * 2;
                for slot in [first, first + 1] {
                    prop_assert!(memory.is_free(slot), "its lease has ended before it is reported");
                    returned.push(slot);
                }
            }
            if kernel.results.is_empty() && kernel.notifications.is_empty() && what == 4 {
                idle_steps += 1;
            }
        }
        prop_assert!(kernel.received == expected);
        prop_assert_eq!(sent * 2, usize::try_from(given).unwrap());
        returned.sort_unstable();
        prop_assert_eq!(returned, (0..given).collect::<Vec<_>>());
        prop_assert!(sender.is_idle());
    }
}

#[test]
fn a_broken_connection_keeps_what_the_kernel_still_reads() {
    let memory = Memory::new();
    let mut sender = Sender::default();
    sender.handle_job(memory.gather(&[0]));
    sender.handle_job(memory.gather(&[1]));
    let chain = sender.poll_chain(LIMITS, &mut |_| Some(0)).unwrap();
    assert_eq!(chain.steps.len(), 2);
    drop(chain);
    sender.fail(io::ErrorKind::ConnectionAborted.into());
    let report = sender.take_report();
    assert!(report.failed.is_some());
    assert!(report.released.is_empty(), "the first is out, the second is behind it");

    sender.handle_sent(0, Ok(40));
    sender.handle_released(0);
    sender.handle_sent(1, Err(cancelled()));
    let report = sender.take_report();
    assert_eq!(
        (report.sent, report.released.len()),
        (2, 1),
        "the second was never in the kernel"
    );
    assert!(memory.is_free(1) && !memory.is_free(0));
    assert!(sender.poll_chain(LIMITS, &mut |_| None).is_none());

    sender.handle_usage(Usage { copied: true, bytes: 1 });
    sender.handle_released(0);
    let report = sender.take_report();
    assert_eq!((report.released.len(), report.zero_copy.copied), (1, 1));
    assert!(report.failed.is_none(), "said once");
    assert!(memory.is_free(0) && sender.is_idle());
}

#[test]
fn a_refused_zero_copy_send_is_copied_and_none_is_tried_again() {
    let memory = Memory::new();
    let (mut sender, mut kernel) = (Sender::default(), Kernel::default());
    sender.handle_job(memory.gather(&[0]));
    let chain = sender.poll_chain(LIMITS, &mut |_| Some(0)).unwrap();
    kernel.submit(&chain, usize::MAX, true, false);
    drop(chain);
    kernel.say_result(&mut sender);
    kernel.say_result(&mut sender);
    assert_eq!(sender.zero_copy(), ZeroCopy::Off);
    let chain = sender.poll_chain(LIMITS, &mut |_| Some(0)).unwrap();
    assert!(chain.steps.iter().all(|step| step.extent.is_none()));
    assert_eq!(chain.steps.iter().map(|step| step.bytes).sum::<usize>(), 32 << 10);
}

#[test]
fn a_zero_copy_send_that_never_began_says_nothing_about_zero_copy() {
    let memory = Memory::new();
    let (mut sender, mut kernel) = (Sender::default(), Kernel::default());
    sender.handle_job(memory.gather(&[0]));
    let chain = sender.poll_chain(LIMITS, &mut |_| Some(0)).unwrap();
    // The head is cut short, what is linked behind it is given up.
    kernel.submit(&chain, 1, false, false);
    drop(chain);
    kernel.say_result(&mut sender);
    kernel.say_result(&mut sender);
    assert_eq!(sender.zero_copy(), ZeroCopy::Untried);
}

#[test]
fn an_error_of_a_copying_send_breaks_the_connection() {
    let memory = Memory::new();
    let mut sender = Sender::default();
    sender.handle_job(memory.gather(&[0]));
    drop(sender.poll_chain(LIMITS, &mut |_| None).unwrap());
    sender.handle_sent(0, Err(io::Error::from_raw_os_error(libc::EPIPE)));
    sender.handle_released(0);
    let report = sender.take_report();
    assert_eq!(report.failed.map(|error| error.kind()), Some(io::ErrorKind::BrokenPipe));
    assert_eq!(report.released.len(), 1);
    sender.handle_job(memory.gather(&[1]));
    assert_eq!(sender.take_report().released.len(), 1, "nothing more is sent");
}
