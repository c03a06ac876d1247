//! How much a test run does, and what happens to a test that cannot run here.

use std::hash::{BuildHasher as _, RandomState};

/// Chosen by `SHUFFLE_TEST_PROFILE`; see docs/testing.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// The default, made for every change.
    Quick,
    /// `SHUFFLE_TEST_PROFILE=full`.
    Full,
}

impl Profile {
    /// Of this run.
    ///
    /// # Panics
    /// If `SHUFFLE_TEST_PROFILE` is neither `quick` nor `full`.
    #[must_use]
    pub fn current() -> Self {
        match std::env::var("SHUFFLE_TEST_PROFILE").as_deref() {
            Err(_) | Ok("" | "quick") => Self::Quick,
            Ok("full") => Self::Full,
            Ok(other) => panic!("SHUFFLE_TEST_PROFILE is quick or full, not {other:?}"),
        }
    }

    /// `quick` or `full`, whichever this run is.
    #[must_use]
    pub fn choose<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}

/// A number to draw chance from: `SHUFFLE_TEST_SEED`, or another one in each run. It is printed, so that a run that fails can be
/// had again.
///
/// # Panics
/// If `SHUFFLE_TEST_SEED` is not a number.
#[must_use]
pub fn seed() -> u64 {
    let seed = match std::env::var("SHUFFLE_TEST_SEED") {
        Ok(text) => text.parse().expect("SHUFFLE_TEST_SEED is a number"),
        Err(_) => RandomState::new().hash_one(std::process::id()),
    };
    println!("SHUFFLE_TEST_SEED={seed}");
    seed
}

/// For a test that needs root: true if it may go on. Otherwise it says why it is skipped.
///
/// # Panics
/// If the test cannot run and `SHUFFLE_CI` is `1`: there a skip is a failure.
#[must_use]
pub fn may_run_as_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    root || skip(test, "it needs root")
}

/// Says that `test` is skipped and why; always false.
///
/// # Panics
/// If `SHUFFLE_CI` is `1`: there a skip is a failure.
#[must_use]
pub fn skip(test: &str, why: &str) -> bool {
    let in_ci = std::env::var("SHUFFLE_CI").is_ok_and(|value| value == "1");
    assert!(
        !in_ci,
        "{test} would be skipped: {why}; with SHUFFLE_CI=1 that is a failure"
    );
    eprintln!("SKIPPED {test}: {why}");
    false
}
