//! The client through its public API, against a server that the test plays itself.

#[cfg(test)]
mod fake;
#[cfg(test)]
mod gate;
#[cfg(test)]
mod session;
#[cfg(test)]
mod tcp;
#[cfg(test)]
mod writer;
