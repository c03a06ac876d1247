//! The coordinator at work, driven by a world of its own (`support`).

mod groups;
mod life;
mod messages;
mod random;
mod recovery;
mod support;
