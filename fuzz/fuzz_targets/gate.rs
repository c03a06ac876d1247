//! The credit book of a gate: see the model.
#![no_main]

#[path = "../../protocol/tests/model/mod.rs"]
mod model;

libfuzzer_sys::fuzz_target!(|data: &[u8]| model::gate::run(data));
