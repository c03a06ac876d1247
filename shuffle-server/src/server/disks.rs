//! Between core and disks: what the core wants done is given to the threads of a directory, and what became of it comes back.

use std::collections::BTreeMap;
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use buffer_pool::SlotRef;
use shuffle_protocol::ShuffleError;
use tokio::sync::Notify;

use super::service::Core;
use super::{ServerError, Service};
use crate::config::StorageSection;
use crate::spill::{Answer, DiskOp, Linux, Memory, Recovery, Store, StoreName, Targets};

/// Takes the directories, if there are any; `bell` is rung when one of them has an answer.
///
/// # Errors
/// [`ServerError::Storage`].
pub(super) fn open(section: &StorageSection, bell: &Arc<Notify>) -> Result<Option<(Store, Recovery)>, ServerError> {
    if section.directories.is_empty() {
        return Ok(None);
    }
    let bell = Arc::clone(bell);
    let opened = Store::open(Linux, section, move || bell.notify_one());
    Ok(Some(opened.map_err(ServerError::Storage)?))
}

/// Tells the core what an earlier server has left.
pub(super) fn adopt(core: &mut Core, now: Instant, recovery: Recovery) {
    for one in recovery.recovered {
        let (job, partition) = (one.index.job, one.index.partition);
        if let Err(error) = core.adopt(now, one.store, one.index) {
            let why = format!("it cannot be served again, its files stay: {error}");
            core.handle_lost(now, StoreName { job, partition }, why);
        }
    }
    for (name, why) in recovery.lost {
        core.handle_lost(now, name, why);
    }
}

/// Runs as long as the server.
pub(super) async fn drive(service: Rc<Service>) {
    let Some(store) = &service.disks else {
        return;
    };
    loop {
        let next = step(&service, &mut store.borrow_mut());
        let sleep = async {
            match next {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = service.disk.notified() => {}
            () = sleep => store.borrow_mut().handle_timeout(Instant::now()),
        }
    }
}

/// Everything that can be done now; gives when there is more to be done at the latest.
fn step(service: &Service, store: &mut Store) -> Option<Instant> {
    loop {
        let answered = answer_all(service, store);
        if !submit_all(service, store) && !answered {
            return store.poll_timeout(Instant::now());
        }
    }
}

/// Whether there was an answer.
fn answer_all(service: &Service, store: &mut Store) -> bool {
    let mut moved = false;
    while let Some(answer) = store.poll_answer(Instant::now()) {
        moved = true;
        service.with(|core, now| match answer {
            Answer::Done { ticket, outcome } => core.handle_disk(now, ticket, outcome),
            Answer::TimedOut { ticket, error, slots } => {
                // The core ends its own pins by this answer, and the kernel may still use the buffers.
                slots.into_iter().for_each(|slot| core.pool_mut().pin(slot));
                core.handle_disk(now, ticket, Err(error));
            }
            Answer::Late { slots } => slots.into_iter().for_each(|slot| core.handle_written(now, slot)),
        });
    }
    moved
}

/// Whether there was something to be done.
fn submit_all(service: &Service, store: &mut Store) -> bool {
    let mut moved = false;
    while store.has_room() {
        let Some((ticket, op)) = service.with(|core, _| core.poll_disk()) else {
            break;
        };
        moved = true;
        match memory(service, &op) {
            Ok(memory) => store.submit(Instant::now(), ticket, op, memory),
            Err(error) => service.with(|core, now| core.handle_disk(now, ticket, Err(error))),
        }
    }
    moved
}

/// The buffers of an operation, leased until it is over.
fn memory(service: &Service, op: &DiskOp) -> Result<Memory, ShuffleError> {
    match op {
        DiskOp::Write { pieces, .. } => {
            let leases = pieces
                .iter()
                .map(|piece| service.lease(piece.slot, piece.offset, piece.length));
            Ok(Memory::From(leases.collect::<Result<_, _>>()?))
        }
        DiskOp::Read { pieces, .. } => {
            let mut targets = Targets::default();
            let mut buffers: BTreeMap<SlotRef, usize> = BTreeMap::new();
            for piece in pieces {
                let buffer = match buffers.get(&piece.slot) {
                    Some(buffer) => *buffer,
                    None => {
                        let buffer = targets.add(service.writable(piece.slot)?);
                        buffers.insert(piece.slot, buffer);
                        buffer
                    }
                };
                targets.fill(buffer, piece.offset, piece.length);
            }
            Ok(Memory::Into(targets))
        }
        DiskOp::Punch { .. } | DiskOp::Seal { .. } | DiskOp::Remove { .. } => Ok(Memory::None),
    }
}
