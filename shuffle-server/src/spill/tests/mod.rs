//! Stores with real files, with file systems that fail, hang and forget, and with servers that are killed.

mod bytes;
mod crash;
mod failing;
mod faulty;
mod hanging;
mod harness;
mod power;
mod recovering;
mod script;
mod space;
