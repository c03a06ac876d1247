//! Waiting with a deadline; nothing here sleeps in the hope that something has happened.

use std::future::Future;
use std::time::{Duration, Instant};

/// Between two looks at a condition.
const BETWEEN: Duration = Duration::from_millis(5);

/// What `future` yields, or a panic that names `what` once `limit` has passed.
///
/// # Panics
/// After `limit`.
#[track_caller]
pub fn within<F: Future>(limit: Duration, what: &str, future: F) -> impl Future<Output = F::Output> {
    let caller = std::panic::Location::caller();
    async move {
        match tokio::time::timeout(limit, future).await {
            Ok(value) => value,
            Err(_) => panic!("{caller}: {what} took longer than {limit:?}"),
        }
    }
}

/// Looks until `look` yields a value; panics with `what` once `limit` has passed.
///
/// # Panics
/// After `limit`.
pub async fn until<T, F, L>(limit: Duration, what: &str, mut look: L) -> T
where
    F: Future<Output = Option<T>>,
    L: FnMut() -> F,
{
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = look().await {
            return value;
        }
        assert!(Instant::now() < end, "{what}: not within {limit:?}");
        tokio::time::sleep(BETWEEN).await;
    }
}

/// Looks until `look` is true; panics with `what` once `limit` has passed.
///
/// # Panics
/// After `limit`.
pub async fn until_true(limit: Duration, what: &str, mut look: impl FnMut() -> bool) {
    until(limit, what, || std::future::ready(look().then_some(()))).await;
}

/// How long `future` took, with what it yielded.
pub async fn timed<F: Future>(future: F) -> (F::Output, Duration) {
    let start = Instant::now();
    let value = future.await;
    (value, start.elapsed())
}
