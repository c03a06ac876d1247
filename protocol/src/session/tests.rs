//! Handshake, token and timers.
