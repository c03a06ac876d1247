#![forbid(unsafe_code)]
#![doc = "x"]
pub mod rows;
pub mod text;
