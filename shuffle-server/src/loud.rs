//! How a broken invariant ends the process.

/// While one of these is on a thread's stack, a panic there ends the process: whoever went on after it would serve from books
/// that are wrong.
pub(crate) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
