//! The processes of a run: servers and executors, all of them this same program.
//!
//! ```text
//! shuffle-bench demo ---+--- shuffle-bench server      (one per node; ready line on standard output)
//!   standard input      +--- shuffle-bench executor    (events on standard output, one JSON a line)
//!   of a child: orders       messages of both: standard error, relayed with the role
//! ```
//!
//! Children are killed when this process ends, however it ends: in order by [`Children::stop`], or by
//! the kernel (parent-death signal, set by each child at its start).

mod child;
mod limits;
mod observe;
mod server;
mod wire;

pub(crate) use child::{ChildEvent, ChildId, Children, Order, follow_parent};
pub(crate) use limits::{bind_to, raise_open_files};
pub(crate) use observe::{Peaks, private_bytes};
pub(crate) use server::{Server, ServerOptions, node_name, serve};
pub(crate) use wire::sent_by;
