//! The client through its public API, against a server that the test plays itself.

#[cfg(test)]
mod fake;
#[cfg(test)]
mod feed;
#[cfg(test)]
mod gate;
#[cfg(test)]
mod gate_failures;
#[cfg(test)]
mod mismatch;
#[cfg(test)]
mod session;
#[cfg(test)]
mod tcp;
#[cfg(test)]
mod writer;
#[cfg(test)]
mod writer_ends;
