//! Errors across the wire.
