//! The core by itself: small scenes with every frame in view. Long random ones are the simulator's.

mod broadcasting;
mod failing;
mod harness;
mod keeping;
mod links;
mod listeners;
mod model_disk;
mod moving;
mod packing;
mod parts;
mod quotas;
mod refusing;
mod slicing;
mod storing;
mod straggling;
mod telling;
mod telling_anything;
mod telling_of_broadcasts;
mod tracing;
mod tracing_late;
mod tracing_relay;
mod waiting;
mod watching;
