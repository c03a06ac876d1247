//! The core by itself: small scenes with every frame in view. Long random ones are the simulator's.

mod failing;
mod harness;
mod links;
mod moving;
mod parts;
mod waiting;
mod watching;
