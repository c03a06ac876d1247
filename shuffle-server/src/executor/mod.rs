//! Our executors: what a session may ask, what it hands over, what it views. Pure.

mod conclude;
mod consume;
mod finish;
mod gate;
mod leave;
mod limits;
mod mismatch;
mod produce;
mod requests;
mod session;

pub(crate) use gate::Gate;
pub(crate) use session::{Session, protocol};

slotmap::new_key_type! {
    /// One open gate of an executor.
    pub(crate) struct GateNo;
}
