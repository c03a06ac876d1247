//! A server that is killed at each call to the file system, and started three times (F06).

use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::faulty::{Faulty, Verdict};
use super::harness::{Disks, section_of};
use super::script::{Event, serve, verify};
use crate::spill::{Linux, StoreName};

const FOLDER: &str = "SPILL_CRASH_FOLDER";
const AT: &str = "SPILL_CRASH_AT";
const WORK: &str = "SPILL_CRASH_WORK";

/// Where a child's directory and its words lie.
struct Scene(tempfile::TempDir);

impl Scene {
    fn new() -> Self {
        // What was written outlives a process wherever it lies: memory is as good as a disk, and faster.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() {
            tempfile::tempdir_in(memory)
        } else {
            tempfile::tempdir()
        };
        let scene = Self(folder.expect("a folder"));
        fs::create_dir(scene.storage()).expect("a folder");
        scene
    }

    fn copy(&self) -> Self {
        let copy = Self::new();
        for entry in fs::read_dir(self.storage()).expect("the folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name");
            fs::copy(&path, copy.storage().join(name)).expect("copied");
        }
        copy
    }

    fn storage(&self) -> PathBuf {
        self.0.path().join("storage")
    }

    /// Runs a server in a process of its own that is killed at call `at`.
    fn run(&self, work: bool, at: u64) -> ExitStatus {
        Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "spill::tests::crash::child", "--nocapture"])
            .env(FOLDER, self.0.path())
            .env(AT, at.to_string())
            .env(WORK, work.to_string())
            .stdout(std::process::Stdio::null())
            .status()
            .expect("a child")
    }

    fn told(&self) -> Vec<Event> {
        let text = fs::read_to_string(self.0.path().join("told")).unwrap_or_default();
        text.lines()
            .map(|line| {
                let (what, partition) = line.split_once(' ').expect("two words");
                let partition = partition.parse().expect("a number");
                match what {
                    "finished" => Event::Finished(partition),
                    "removing" => Event::Removing(partition),
                    _ => Event::Removed(partition),
                }
            })
            .collect()
    }

    fn calls(&self) -> u64 {
        fs::read_to_string(self.0.path().join("calls"))
            .expect("the child came to its end")
            .parse()
            .expect("a number")
    }

    /// Three servers, one after the other.
    fn restart(&self, told: &[Event], when: &str) {
        for round in 0..3 {
            let mut disks = Disks::open_again(Linux, &section_of(&self.storage()));
            // Whatever is called: an index is never seen without its data, nor half of one.
            let damaged = |(_, why): &&(StoreName, String)| !why.contains("was not finished");
            assert_eq!(
                disks.recovery.lost.iter().find(damaged),
                None,
                "{when}, restart {round}"
            );
            verify(&mut disks, told, &format!("{when}, restart {round}"));
            disks.store.close();
        }
    }
}

/// The child's side; nothing when the tests run by themselves.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    let at: u64 = std::env::var(AT).expect("set").parse().expect("a number");
    // Whoever held it last has gone, but for copies of its descriptor; this is not one of the calls that count.
    Disks::open_lock(&folder.join("storage"));
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let killing = Faulty::new(move |_, _| {
        if counted.fetch_add(1, Ordering::SeqCst) == at {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            std::thread::park();
        }
        Verdict::Go
    });
    let mut section = section_of(&folder.join("storage"));
    section.threads = 1;
    let mut disks = Disks::open(killing, &section).expect("a store");
    if std::env::var(WORK).is_ok_and(|work| work == "true") {
        let mut text = String::new();
        let done = serve(&mut disks, |event| {
            let (what, partition) = match event {
                Event::Finished(partition) => ("finished", partition),
                Event::Removing(partition) => ("removing", partition),
                Event::Removed(partition) => ("removed", partition),
            };
            let _ = writeln!(text, "{what} {partition}");
            fs::write(folder.join("told"), &text).expect("told");
        });
        done.expect("nothing fails but by the end of the process");
    }
    disks.store.close();
    fs::write(folder.join("calls"), calls.load(Ordering::SeqCst).to_string()).expect("told");
}

#[test]
fn nothing_finished_is_lost_wherever_a_server_is_killed() {
    let whole = Scene::new();
    assert!(whole.run(true, u64::MAX).success());
    let calls = whole.calls();
    assert!(calls > 30, "{calls} calls");
    let told = whole.told();
    assert_eq!(
        told.iter().filter(|event| matches!(event, Event::Finished(_))).count(),
        4
    );
    whole.restart(&told, "not killed");
    let mut recoveries = 0;
    for at in 0..calls {
        let scene = Scene::new();
        assert_eq!(scene.run(true, at).signal(), Some(9), "killed at call {at}");
        let told = scene.told();
        // The next server is killed while it looks at what is there, at each of its calls.
        for again in 0.. {
            let copy = scene.copy();
            let status = copy.run(false, again);
            copy.restart(&told, &format!("killed at call {at}, and in the recovery at {again}"));
            if status.success() {
                break;
            }
            assert_eq!(status.signal(), Some(9), "killed in the recovery at {again}");
            recoveries += 1;
        }
        scene.restart(&told, &format!("killed at call {at}"));
    }
    assert!(recoveries > 5 * calls, "{recoveries} recoveries were killed");
    println!("{calls} calls of a server and {recoveries} of recoveries");
}
