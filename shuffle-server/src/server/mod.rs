//! The process: start, serve, drain.
//!
//! ```text
//! socket -> port -> pool -> core -> tasks -> "ready" ... SIGTERM -> draining -> goodbye to all
//!
//!   one thread, one runtime; tasks:  accept (Unix)  accept (TCP)  dial  timer  sample  + one per connection
//! ```

mod disks;
mod error;
mod logging;
mod service;
mod signals;
mod start;
mod tasks;
mod verify;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use shuffle_protocol::ShuffleError;
use shuffle_protocol::error::ErrorKind;
use tokio::task::LocalSet;
use tracing::{info, warn};

use crate::config::{self, Config, LoadError};

use error::Ending;
pub use error::ServerError;
pub(crate) use service::Service;
use signals::StopSignals;
use start::Started;
pub(crate) use tasks::spawn;

/// How often a draining server looks whether it is done.
const DRAIN_POLL: Duration = Duration::from_millis(20);
/// How long the goodbyes may take.
const FAREWELL: Duration = Duration::from_secs(2);

/// The whole program: reads the arguments (the program's name first), sets up the logs, serves.
///
/// Programs that carry a server in themselves call this with the arguments behind their own.
pub fn run_with_args(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let config = match config::load(args) {
        Ok(config) => config,
        Err(LoadError::Answered { text, warnings }) => {
            for warning in warnings {
                let _ = writeln!(std::io::stderr(), "shuffle-server: {warning}");
            }
            // Nobody to tell when standard output is closed.
            let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{}", error.to_string().trim_end());
            return ExitCode::from(2);
        }
    };
    run(config).unwrap_or_else(|error| {
        // Whatever the log filter says: this must be seen.
        let _ = writeln!(std::io::stderr(), "shuffle-server: {error}");
        error.exit_code()
    })
}

/// Serves until a signal stops it; gives the status with which the process should end. Logs go to standard error, unless the
/// program has set up its own before.
///
/// # Errors
/// The server could not start; see [`ServerError::exit_code`].
pub fn run(config: Config) -> Result<ExitCode, ServerError> {
    logging::init(&config.log);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| ServerError::System {
            action: "start the runtime",
            source,
        })?;
    let local = LocalSet::new();
    let ending = local.block_on(&runtime, serve(config));
    drop(local);
    // A name that is still being looked up must not hold up the end.
    runtime.shutdown_background();
    Ok(ending?.exit_code())
}

async fn serve(config: Config) -> Result<Ending, ServerError> {
    let mut stop = StopSignals::listen().map_err(|source| ServerError::System {
        action: "listen for signals",
        source,
    })?;
    let Started {
        service,
        socket,
        unix,
        tcp,
    } = start::start(config)?;
    tasks::spawn_all(&service, unix, tcp);
    let ready = format!("ready node={} socket={}", service.address, socket.path().display());
    info!("{ready}");
    let mut stdout = std::io::stdout();
    if writeln!(stdout, "{ready}").and_then(|()| stdout.flush()).is_err() {
        warn!("nobody reads standard output: the ready line went nowhere");
    }

    let name = stop.next().await;
    info!(
        "{name}: draining for at most {:?}; a second signal ends at once",
        service.config.timeouts.drain
    );
    service.with(|core, now| core.start_drain(now));
    let ending = tokio::select! {
        ending = drain(&service) => ending,
        name = stop.next() => {
            warn!("{name} while draining: ending now");
            Ending::Interrupted
        }
    };
    part(&service, ending).await;
    Ok(ending)
}

async fn drain(service: &Rc<Service>) -> Ending {
    let drained = async {
        while !service.with(|core, _| core.is_drained()) {
            tokio::time::sleep(DRAIN_POLL).await;
        }
    };
    match tokio::time::timeout(service.config.timeouts.drain, drained).await {
        Ok(()) => Ending::Drained,
        Err(_) => Ending::CutOff,
    }
}

/// Says goodbye to everybody, with a reason.
async fn part(service: &Rc<Service>, ending: Ending) {
    let reason = match ending {
        Ending::Drained => "the server has stopped",
        Ending::CutOff => "the server has stopped before everything was read: the drain time was over",
        Ending::Interrupted => "the server was stopped before everything was read",
    };
    info!("{reason}");
    let reason = ShuffleError::new(ErrorKind::Draining, reason).node(&service.address);
    if ending != Ending::Drained {
        service.with(|core, now| core.fail_everything(now, reason.clone()));
    }
    if ending == Ending::Interrupted {
        return;
    }
    service.close_everything(&reason);
    let gone = async {
        while service.connections() > 0 {
            tokio::time::sleep(DRAIN_POLL).await;
        }
    };
    if tokio::time::timeout(FAREWELL, gone).await.is_err() {
        warn!("{} connections did not take their goodbye", service.connections());
    }
}
