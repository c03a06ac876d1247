//! The executors' socket: whose it is, which mode it has, and what is never touched.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use rustix::fs::Mode;
use rustix::process::umask;
use shuffle_server::transport::{ExecutorSocket, SocketError};

// The umask belongs to the process, so tests that look at modes take turns.
static UMASK: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    UMASK.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("as set up").permissions().mode() & 0o777
}

#[test]
fn the_mode_is_the_configured_one_whatever_the_umask() {
    let _turn = alone();
    for bits in [0o000, 0o022, 0o077, 0o177] {
        for wanted in [0o600, 0o660, 0o666] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("s.sock");
            let before = umask(Mode::from_raw_mode(bits));
            let socket = ExecutorSocket::bind(&path, wanted);
            umask(before);
            let socket = socket.unwrap();
            assert_eq!(mode(&path), wanted, "umask {bits:03o}");
            drop(socket);
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
        }
    }
}

#[test]
fn a_directory_that_is_made_for_it_is_nobody_elses_whatever_the_umask() {
    let _turn = alone();
    for (bits, wanted) in [(0o000, 0o755), (0o022, 0o755), (0o077, 0o700)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/er/s.sock");
        let before = umask(Mode::from_raw_mode(bits));
        let socket = ExecutorSocket::bind(&path, 0o600);
        umask(before);
        drop(socket.unwrap());
        for made in [path.parent().unwrap(), &dir.path().join("deep")] {
            assert_eq!(mode(made), wanted, "umask {bits:03o}: {}", made.display());
        }
    }
}

#[test]
fn a_directory_in_which_others_can_replace_the_socket_is_refused_with_a_remedy() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    for bits in [0o777, 0o775, 0o757, 0o722] {
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(bits)).unwrap();
        let error = ExecutorSocket::bind(&path, 0o600).unwrap_err();
        let said = error.to_string();
        assert!(
            matches!(error, SocketError::Writable { mode, .. } if mode == bits),
            "{said}"
        );
        assert!(
            said.contains("chmod go-w") && said.contains(&format!("{bits:04o}")),
            "{said}"
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was made there");
    }
    for bits in [0o1777, 0o1775, 0o755, 0o700] {
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(bits)).unwrap();
        drop(ExecutorSocket::bind(&path, 0o600).unwrap_or_else(|error| panic!("{bits:04o}: {error}")));
    }
}

#[test]
fn a_stale_socket_is_taken_over_and_a_live_one_is_not() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/er/s.sock");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    // Dropping a listener leaves its name, as `kill -9` does.
    drop(UnixListener::bind(&path).unwrap());
    for _ in 0..50 {
        let first = ExecutorSocket::bind(&path, 0o600).unwrap();
        UnixStream::connect(&path).unwrap();
        assert!(matches!(
            ExecutorSocket::bind(&path, 0o600),
            Err(SocketError::InUse { .. })
        ));
        UnixStream::connect(&path).expect("the refused one took nothing");
        drop(first);
    }
    // One that is alive without our lock, as another program's.
    let foreign = UnixListener::bind(&path).unwrap();
    let error = ExecutorSocket::bind(&path, 0o600).unwrap_err();
    assert!(
        matches!(error, SocketError::InUse { .. }) && error.to_string().contains("s.sock"),
        "{error}"
    );
    drop(foreign);
}

#[test]
fn what_is_no_socket_is_refused_and_untouched() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let target = dir.path().join("target");
    fs::write(&target, "precious").unwrap();
    let cases: [(&str, &dyn Fn()); 3] = [
        ("regular file", &|| fs::write(&path, "precious").unwrap()),
        ("symbolic link", &|| symlink(&target, &path).unwrap()),
        ("directory", &|| fs::create_dir(&path).unwrap()),
    ];
    for (what, make) in cases {
        make();
        let error = ExecutorSocket::bind(&path, 0o600).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
        assert!(matches!(error, SocketError::Foreign { .. }));
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        assert!(!kind.is_socket());
        if kind.is_dir() {
            fs::remove_dir(&path).unwrap();
        } else {
            assert_eq!(fs::read_to_string(&path).unwrap(), "precious", "{what}");
            fs::remove_file(&path).unwrap();
        }
    }
    // The lock is no way around it either.
    symlink(&target, dir.path().join("s.sock.lock")).unwrap();
    assert!(matches!(
        ExecutorSocket::bind(&path, 0o600),
        Err(SocketError::Io { .. })
    ));
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
}

#[test]
fn of_many_that_start_at_once_one_gets_it() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    drop(UnixListener::bind(&path).unwrap());
    for _ in 0..20 {
        let barrier = std::sync::Barrier::new(8);
        let sockets: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        ExecutorSocket::bind(&path, 0o600)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(sockets.iter().filter(|socket| socket.is_ok()).count(), 1);
        UnixStream::connect(&path).unwrap();
    }
}
