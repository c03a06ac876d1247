//! Other servers: what they ask of us (`serve`) and what we ask of them (`fetch`), over one connection per pair
//! of nodes (and stripe), whoever dialled it. Pure.
//!
//! ```text
//!            need a connection            up                     broken
//!   idle ───────────────────▶ dialling ──────▶ connected ───────────────▶ down ─┐
//!    ▲                            ▲                                         │   │ dial again, resume every
//!    │ nothing needs it           └─────────────────────────────────────────┘   │ channel where it stood
//!    └── given up: every channel fails with one cause ◀── dead-peer time passed ┘
//! ```

mod fetch;
mod inlet;
mod inlet_end;
mod link;
mod lost;
mod path;
mod serve;
mod trace;

pub(crate) use inlet::{Inlet, InletPlace, Receiving, RelayPlace};
pub(crate) use link::Link;
pub(crate) use path::Path;

slotmap::new_key_type! {
    /// One other node, and one stripe of the connections to it.
    pub(crate) struct PathId;
    /// One channel that a reader on this node has to a producer on another.
    pub(crate) struct InletNo;
}
