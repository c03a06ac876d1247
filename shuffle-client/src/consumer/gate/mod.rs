//! A gate over many channels, in two layers: buffers out, records out.

mod output;
mod reader;

pub use reader::Gate;
