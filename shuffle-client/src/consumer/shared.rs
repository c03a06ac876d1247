//! One value for all consumers of a process, built once from one gate.
//!
//! ```text
//!   share ──▶ task: open gate ──▶ build ──▶ value or error, kept
//!   handles: any number, cloned; with the last one the task, if it still builds, is given up
//! ```

use std::future::Future;
use std::sync::Arc;

use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::gate::Gate;
use super::spec::GateSpec;
use crate::attach::Session;

/// A value that is built from a gate, once, whoever asks for it: the hash table of a broadcast, for all tasks of an executor.
/// For the server the process is one consumer, with one cursor.
///
/// Clones are handles of the same value. When the last one is dropped while it is being built, the gate is closed.
#[derive(Debug)]
pub struct SharedValue<T> {
    outcome: watch::Receiver<Option<Result<Arc<T>>>>,
    _building: Arc<Building>,
}

impl<T> Clone for SharedValue<T> {
    fn clone(&self) -> Self {
        Self {
            outcome: self.outcome.clone(),
            _building: Arc::clone(&self._building),
        }
    }
}

/// The task that builds; it ends with the last handle.
#[derive(Debug)]
struct Building(JoinHandle<()>);

impl Drop for Building {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Session {
    /// Opens a gate in a task of its own and hands it to `build`, once.
    ///
    /// What it gives is to be asked for with [`SharedValue::get`]. To be called in a runtime.
    pub fn share<T, F, B>(&self, spec: GateSpec, build: F) -> SharedValue<T>
    where
        T: Send + Sync + 'static,
        F: FnOnce(Gate) -> B + Send + 'static,
        B: Future<Output = Result<T>> + Send + 'static,
    {
        let session = self.clone();
        let (tell, outcome) = watch::channel(None);
        let task = tokio::spawn(async move {
            let built = async { build(session.open_gate(spec).await?).await };
            let built = built.await.map(Arc::new);
            tell.send_replace(Some(built));
        });
        SharedValue {
            outcome,
            _building: Arc::new(Building(task)),
        }
    }
}

impl<T> SharedValue<T> {
    /// The value, as soon as it is built; every call gives the same one.
    ///
    /// # Errors
    /// Why it could not be built: the gate's error, or what `build` said; every call gives the same one. `Aborted` if `build`
    /// panicked.
    pub async fn get(&self) -> Result<Arc<T>> {
        let mut outcome = self.outcome.clone();
        let built = outcome.wait_for(Option::is_some).await;
        match built.as_deref() {
            Ok(Some(built)) => built.clone(),
            Ok(None) | Err(_) => Err(ShuffleError::new(
                ErrorKind::Aborted,
                "what was to build the shared value has panicked",
            )),
        }
    }
}
