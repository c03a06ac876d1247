//! What property tests, fuzz targets and the replay of their corpora have in common: each model turns bytes into
//! operations, runs them against the crate and compares with an oracle. It panics if the crate is wrong.

// Each of them uses a part of this.
#![allow(dead_code)]

pub(crate) mod control;
pub(crate) mod deframer;
pub(crate) mod gate;
pub(crate) mod input;
pub(crate) mod machine;
pub(crate) mod world;

/// A model: runs the operations in the bytes.
pub(crate) type Model = fn(&[u8]);

/// Every model by the name of its fuzz target.
pub(crate) const ALL: [(&str, Model); 5] = [
    ("deframer", deframer::run),
    ("control", control::run),
    ("machine", machine::run),
    ("gate", gate::run),
    ("world", world::run),
];
