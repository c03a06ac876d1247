//! One channel: sequence, credit, backlog, acknowledgement and resume, as two machines and the gate's credit book.
//!
//! ```text
//!   serving side                                              fetching side
//!   Sender<T>                                                 Receiver              GateCredit
//!     queue --- send_buffer --> [seq 7 | backlog 3] --------> handle_buffer         handle_buffer(i, 3)
//!           --- send_end -----> [seq 8 | LAST     ] --------> handle_end
//!     no credit, 3 wait ------> [backlog 3        ] ----------------------------->  handle_backlog(i, 3)
//!     handle_credit <---------- [limit, absolute  ] <-------- poll_credit <-- add_credit <-- poll_assign
//!     handle_ack, frees <------ [below, cumulative] <-------- poll_ack <----- handle_checked
//! ```
//!
//! Two counts run side by side. The *sequence* numbers everything in the channel, buffers and end markers. The
//! *ordinal* counts buffers only: a credit is the promise of a buffer, and an end marker needs none. With `acked <=
//! received <= sent` in sequences and `received <= sent <= limit` in ordinals, every buffer that arrives has a place, and
//! every buffer that was not acknowledged is still at the sender.

mod credit;
mod error;
mod receiver;
mod sender;

pub use credit::GateCredit;
pub use error::StreamError;
pub use receiver::{Arrival, Receiver, ResumePoint};
pub use sender::{Freed, Sender};
