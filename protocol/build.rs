//! Generates the control messages from `control.proto`, with a compiler in Rust: no `protoc` needed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=control.proto");
    let descriptors = protox::compile(["control.proto"], ["."])?;
    prost_build::Config::new().compile_fds(descriptors)?;
    Ok(())
}
