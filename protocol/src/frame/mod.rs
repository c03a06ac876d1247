//! Frames: what a connection carries, and the way between frames and bytes.
//!
//! ```text
//!  | header, 40 bytes                                                     | body                          |
//!  | magic version kind flags length count stream reserved sequence crcs  | entries ... | data: payload   |
//!                                                                         |<---- length ----------------->|
//! ```
//!
//! A header has its own checksum, a body (all of it but payload) has one in the header. Nothing is believed before its
//! checksum fits, nothing is allocated before its length is compared with [`limits`](crate::limits). Entries have a
//! fixed size and stay where they arrived: a [`Batch`] is a view of the received bytes.
//!
//! Payload never passes through here: after [`Event::Data`] the caller moves it from the socket to where it belongs.

mod control;
mod deframer;
mod encode;
mod end;
mod entry;
mod error;
mod event;
mod grant;
mod header;
mod number;
mod release;
mod slot;

pub use control::encode_control;
pub use deframer::Deframer;
pub use encode::{
    encode_data_head, encode_ends, encode_grants, encode_numbers, encode_ping, encode_releases, encode_slots,
};
pub use end::EndEntry;
pub use entry::{Batch, Entry};
pub use error::{EntryError, FrameError};
pub use event::{DataHead, Event, Frame};
pub use grant::GrantEntry;
pub use header::{FrameKind, HEADER_BYTES, Header, MAGIC, WIRE_VERSION};
pub use number::NumberEntry;
pub use release::ReleaseEntry;
pub use slot::{Arena, SlotEntry};
