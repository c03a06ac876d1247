//! Logs go to standard error; standard output carries the ready line only.

use tracing_subscriber::EnvFilter;

use crate::config::{LogFormat, LogSection};

/// Sets up the process's logs; a program that has done so already keeps its own.
pub(crate) fn init(log: &LogSection) {
    // The filter was checked while loading.
    let filter = EnvFilter::try_new(&log.filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let result = match log.format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    if result.is_err() {
        tracing::debug!("logs were set up already");
    }
}
