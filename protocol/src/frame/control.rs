//! Control: one protobuf message.

use bytes::{Bytes, BytesMut};
use prost::Message as _;

use super::FrameError;
use super::encode::with_header;
use super::header::FrameKind;
use crate::control::{self, control::Message};

/// Appends a frame with this message.
///
/// # Errors
/// [`FrameError::ControlTooLarge`] or [`FrameError::Control`] for a message that the other side would refuse; nothing
/// is appended then.
pub fn encode_control(message: &Message, out: &mut BytesMut) -> Result<(), FrameError> {
    let start = out.len();
    out.reserve(super::HEADER_BYTES + message.encoded_len());
    let mut checked = Ok(());
    with_header(FrameKind::Control, 0, out, |out| {
        let body = out.len();
        message.encode(out);
        checked = control::inspect(&out[body..]);
    });
    if checked.is_err() {
        out.truncate(start);
    }
    checked
}

/// The message of a body.
pub(super) fn decode_control(body: Bytes) -> Result<Box<Message>, FrameError> {
    control::inspect(&body)?;
    let control = control::Control::decode(body).map_err(|error| FrameError::Control(error.to_string()))?;
    control.message.map(Box::new).ok_or(FrameError::UnknownMessage)
}
