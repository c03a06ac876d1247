//! The four sources of the configuration, what is refused, and how it is shown.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use shuffle_server::config::{Config, KEYS, LoadError, LogFormat, SendMode, load_from};

fn load(args: &[&str], environment: &[(&str, &str)]) -> Result<Config, LoadError> {
    let args = ["shuffle-server"].iter().chain(args).map(OsString::from);
    load_from(
        args,
        environment
            .iter()
            .map(|(name, value)| (OsString::from(name), OsString::from(value))),
    )
}

fn invalid(args: &[&str], environment: &[(&str, &str)]) -> String {
    match load(args, environment) {
        Err(LoadError::Invalid(problems)) => problems.to_string(),
        other => panic!("expected problems, got {other:?}"),
    }
}

fn file(dir: &Path, text: &str) -> String {
    let path = dir.join("shuffle.toml");
    fs::write(&path, text).expect("as set up");
    path.to_str().expect("as set up").to_owned()
}

#[test]
fn runs_with_no_argument() {
    let config = load(&[], &[]).unwrap();
    assert_eq!((config.pool.buffers, config.pool.buffer_bytes), (2048, 32 << 10));
    assert_eq!(config.pool.read_reserve_buffers(), 512);
    assert_eq!(config.executor.mode, 0o660);
    assert_eq!(config.timeouts.request, Duration::from_secs(30));
    assert!(!config.executor.tcp);
}

#[test]
fn flags_beat_environment_beats_file_beats_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(
        dir.path(),
        "[pool]\nbuffers = 64\nbuffer_size = \"64KiB\"\nextent_buffers = 4\n[executor]\nallowed_uids = [7, 8]\nmode = \"0600\"\n",
    );
    let config = load(
        &["--config", &path, "--buffers", "256", "--log-format", "json"],
        &[
            ("SHUFFLE_BUFFERS", "128"),
            ("SHUFFLE_BUFFER_SIZE", "16KiB"),
            ("SHUFFLE_REQUEST_TIMEOUT", "250ms"),
        ],
    )
    .unwrap();
    assert_eq!(config.pool.buffers, 256, "flag");
    assert_eq!(config.pool.buffer_bytes, 16 << 10, "environment");
    assert_eq!(config.pool.extent_buffers, 4, "file");
    assert_eq!(config.executor.allowed_uids, [7, 8]);
    assert_eq!(config.executor.mode, 0o600);
    assert_eq!(config.timeouts.request, Duration::from_millis(250));
    assert_eq!(config.log.format, LogFormat::Json);

    let by_variable = load(&[], &[("SHUFFLE_CONFIG", &path)]).unwrap();
    assert_eq!(by_variable.pool.buffers, 64);
}

#[test]
fn all_problems_are_reported_at_once_with_key_value_source_and_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(
        dir.path(),
        "[pool]\nbufers = 64\nbuffer_size = \"33000\"\n[timeouts]\nrequest = \"30\"\n[extra]\nkey = 1\n",
    );
    let text = invalid(
        &["--config", &path, "--listen", "0.0.0.0:7337", "--keepalive", "20s"],
        &[
            ("SHUFFLE_SOCKET_MODE", "rw-rw----"),
            ("SHUFFLE_LOG", "shuffle_server=loud"),
        ],
    );
    for part in [
        "8 problems",
        &format!("pool.bufers = \"64\" ({path}): no such key; the nearest is pool.buffers"),
        &format!("pool.buffer_size = \"33000\" ({path}): must be a multiple of 4096"),
        &format!("timeouts.request = \"30\" ({path}): not a duration"),
        "extra.key = \"1\"",
        "executor.mode = \"rw-rw----\" (environment variable SHUFFLE_SOCKET_MODE): not permission bits",
        "log.filter = \"shuffle_server=loud\" (environment variable SHUFFLE_LOG): not a log filter",
        "node.advertise (default): needed because node.listen is 0.0.0.0:7337",
        "timeouts.keepalive = \"20s\" (--keepalive): a peer must miss two pings",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

#[test]
fn a_file_that_cannot_be_read_or_parsed_is_named() {
    let dir = tempfile::tempdir().unwrap();
    assert!(invalid(&["--config", "/nonexistent/shuffle.toml"], &[]).contains("/nonexistent/shuffle.toml"));
    let path = file(dir.path(), "[pool\nbuffers = 3");
    assert!(invalid(&["--config", &path], &[]).contains("TOML"));
}

#[test]
fn the_pool_must_add_up() {
    for (args, part) in [
        (&["--buffers", "12"][..], "multiple of pool.extent_buffers"),
        (&["--buffers", "8"], "at least twice"),
        (&["--extent-buffers", "0"], "pool.extent_buffers"),
        (&["--read-reserve", "2048"], "leaves writers no whole extent"),
        (&["--read-reserve", "2047"], "leaves writers no whole extent"),
        (&["--read-reserve", "2041"], "give at most 2040"),
        (&["--buffer-size", "32MiB"], "pool.buffer_size"),
        (&["--stripes", "0"], "must be from 1 to"),
        (&["--socket-mode", "0060"], "own user"),
        (&["--socket-mode", "1777"], "not permission bits"),
        (&["--drain-timeout", "10"], "not a duration"),
    ] {
        let text = invalid(args, &[]);
        assert!(text.contains(part), "{args:?}: {text}");
    }
    let most = load(&["--read-reserve", "2040"], &[]).expect("one extent is left to writers");
    assert_eq!(
        most.pool.buffers - most.pool.read_reserve_buffers(),
        most.pool.extent_buffers
    );
}

#[test]
fn print_config_reads_back_and_names_sources() {
    let Err(LoadError::Answered { text, .. }) = load(
        &["--print-config", "--buffers", "64", "--advertise", "node-a:7337"],
        &[("SHUFFLE_DRAIN_TIMEOUT", "1500ms")],
    ) else {
        panic!("--print-config answers");
    };
    assert!(text.contains("buffers = 64  # --buffers"), "{text}");
    assert!(
        text.contains("drain = \"1500ms\"  # environment variable SHUFFLE_DRAIN_TIMEOUT"),
        "{text}"
    );
    assert!(text.contains("mode = \"0660\"  # default"), "{text}");
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), &text);
    let Err(LoadError::Answered { text: again, .. }) = load(&["--config", &path, "--print-config"], &[]) else {
        panic!("the printed configuration loads");
    };
    let values = |text: &str| -> Vec<String> {
        text.lines()
            .map(|line| line.split("  #").next().unwrap_or(line).to_owned())
            .collect()
    };
    assert_eq!(values(&text), values(&again));
}

#[test]
fn a_slip_in_a_variables_name_is_remarked_beside_the_printed_configuration() {
    let Err(LoadError::Answered { text, warnings }) = load(
        &["--print-config"],
        &[("SHUFFLE_BUFERS", "16"), ("SHUFFLE_OF_ANOTHER_PROGRAM", "1")],
    ) else {
        panic!("--print-config answers");
    };
    assert!(text.contains("buffers = 2048  # default"), "{text}");
    assert_eq!(
        warnings,
        ["environment variable SHUFFLE_BUFERS is not known; did you mean SHUFFLE_BUFFERS?"]
    );
}

#[test]
fn every_timeout_has_a_unit_and_means_it() {
    for key in KEYS.iter().filter(|key| key.name.starts_with("timeouts.")) {
        let flag = format!("--{}", key.flag);
        // The last of several wins.
        let args = [
            "--keepalive",
            "1s",
            "--dead-peer-timeout",
            "9s",
            &flag,
            "30",
            &flag,
            "2900ms",
            "--print-config",
        ];
        let Err(LoadError::Answered { text, .. }) = load(&args, &[]) else {
            panic!("{}", key.name);
        };
        let name = key.name.trim_start_matches("timeouts.");
        assert!(text.contains(&format!("{name} = \"2900ms\"")), "{text}");
        assert!(
            invalid(&[&flag, "1900"], &[]).contains("not a duration"),
            "{}",
            key.name
        );
    }
}

#[test]
fn help_lists_flags_defaults_and_exit_statuses() {
    let Err(LoadError::Answered { text, .. }) = load(&["--help"], &[]) else {
        panic!("--help answers");
    };
    for part in [
        "--buffers <N>",
        "[default: 2048]",
        "--secret-file",
        "Exit status:",
        "SIGTERM",
    ] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
    assert!(matches!(load(&["--bufers", "3"], &[]), Err(LoadError::Usage(text)) if text.contains("--buffers")));
}

#[test]
fn the_secret_is_read_checked_and_never_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    let text = path.to_str().unwrap();
    fs::write(&path, "correct horse battery staple\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(invalid(&["--secret-file", text], &[]).contains("chmod o-rwx"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let config = load(&["--secret-file", text], &[]).unwrap();
    assert!(config.security.secret.is_some());
    assert!(!format!("{config:?}").contains("horse"));
    assert!(!config.to_toml().contains("horse"));
    fs::write(&path, "short").unwrap();
    assert!(invalid(&["--secret-file", text], &[]).contains("5 bytes"));
    assert!(invalid(&["--secret-file", "/nonexistent"], &[]).contains("cannot be read"));
}

#[test]
fn the_way_to_send_is_one_of_four() {
    assert_eq!(load(&[], &[]).unwrap().transport.send, SendMode::Auto);
    for (name, mode) in [
        ("auto", SendMode::Auto),
        ("copy", SendMode::Copy),
        ("sendfile", SendMode::Sendfile),
        ("uring", SendMode::Uring),
    ] {
        assert_eq!(load(&["--transport-send", name], &[]).unwrap().transport.send, mode);
    }
    let problems = invalid(&["--transport-send", "splice"], &[]);
    assert!(
        problems.contains("transport.send") && problems.contains("sendfile or uring"),
        "{problems}"
    );
}

#[test]
fn storage_is_a_list_of_directories_with_limits() {
    let config = load(&[], &[]).unwrap();
    assert!(config.storage.directories.is_empty());
    assert_eq!((config.storage.limit, config.storage.threads), (0, 2));
    assert_eq!(config.storage.timeout, Duration::from_secs(30));

    let dir = tempfile::tempdir().unwrap();
    let text = "[storage]\ndirectories = [\"/a\", \"/b/c\"]\nlimit = \"10GiB\"\n";
    let path = file(dir.path(), text);
    let config = load(&["--config", &path, "--storage-timeout", "2s"], &[]).unwrap();
    assert_eq!(config.storage.directories, [Path::new("/a"), Path::new("/b/c")]);
    assert_eq!(config.storage.limit, 10 << 30);
    assert_eq!(config.storage.timeout, Duration::from_secs(2));
    assert!(
        config.to_toml().contains("directories = [\"/a\", \"/b/c\"]"),
        "{}",
        config.to_toml()
    );
    let config = load(&["--config", &path], &[("SHUFFLE_STORAGE_DIRECTORIES", "/d, /e")]).unwrap();
    assert_eq!(config.storage.directories, [Path::new("/d"), Path::new("/e")]);

    for (args, part) in [
        (["--storage-directories", "/a,/b,/a"], "/a is listed twice"),
        (["--storage-threads", "0"], "must be from 1 to"),
        (["--storage-timeout", "1ms"], "too short"),
        (["--storage-limit", "some"], "not a size"),
    ] {
        let text = invalid(&args, &[]);
        assert!(text.contains(part), "{args:?}: {text}");
    }
}
