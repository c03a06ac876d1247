//! Sender and receiver of a channel, against any numbers: see the model.
#![no_main]

#[path = "../../protocol/tests/model/mod.rs"]
mod model;

libfuzzer_sys::fuzz_target!(|data: &[u8]| model::machine::run(data));
