//! Encoded control messages: see the model.
#![no_main]

#[path = "../../protocol/tests/model/mod.rs"]
mod model;

libfuzzer_sys::fuzz_target!(|data: &[u8]| model::control::run(data));
