//! Runs seeds of the simulator: `simulate --seeds 0..100000`, or one with all that happens in it: `simulate --seed 7 -v`.
#![forbid(unsafe_code)]

use std::ops::Range;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use clap::Parser;
use integration::simulator::{Failure, run};

/// Runs seeds of the simulator and prints those that fail.
#[derive(Debug, Parser)]
struct Arguments {
    /// Which seeds, as in `0..100000`.
    #[arg(long, default_value = "0..10000", value_parser = parse_seeds)]
    seeds: Range<u64>,
    /// Only this seed.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Says what happens in it.
    #[arg(short, long, requires = "seed")]
    verbose: bool,
    /// Goes on after a failure.
    #[arg(long)]
    keep_going: bool,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(seed) = arguments.seed {
        return match run(seed, arguments.verbose) {
            Ok(report) => {
                println!("seed {seed} passed: {report:?}");
                ExitCode::SUCCESS
            }
            Err(failure) => {
                println!("{failure}");
                ExitCode::FAILURE
            }
        };
    }
    // A core that finds itself broken panics; that is printed with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    let failures = run_all(&arguments);
    for failure in &failures {
        println!("{failure}\n");
    }
    if failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        let seeds: Vec<u64> = failures.iter().map(|failure| failure.plan.seed).collect();
        println!("{} failed; replay one with --seed N -v: {seeds:?}", failures.len());
        ExitCode::FAILURE
    }
}

fn run_all(arguments: &Arguments) -> Vec<Failure> {
    let started = Instant::now();
    let total = arguments.seeds.end.saturating_sub(arguments.seeds.start);
    let next = AtomicU64::new(arguments.seeds.start);
    let (done, steps, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let failures = Mutex::new(Vec::new());
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= arguments.seeds.end {
                break;
            }
            match run(seed, false) {
                Ok(report) => {
                    steps.fetch_add(report.steps, Ordering::Relaxed);
                }
                Err(failure) => {
                    stop.store(!arguments.keep_going, Ordering::Relaxed);
                    if let Ok(mut failures) = failures.lock() {
                        failures.push(*failure);
                    }
                }
            }
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            if done.is_multiple_of(10_000) {
                let seconds = started.elapsed().as_secs_f64();
                println!("{done} of {total} seeds, {seconds:.0} s");
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..arguments.threads {
            scope.spawn(work);
        }
    });
    println!(
        "{} seeds, {} steps of cores, {:.1} s",
        done.load(Ordering::Relaxed),
        steps.load(Ordering::Relaxed),
        started.elapsed().as_secs_f64()
    );
    let mut failures = failures.into_inner().unwrap_or_default();
    failures.sort_by_key(|failure| failure.plan.seed);
    failures
}

fn parse_seeds(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("expected FROM..TO")?;
    let number = |text: &str| text.trim().parse::<u64>().map_err(|error| error.to_string());
    Ok(number(from)?..number(to)?)
}
