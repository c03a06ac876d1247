//! House rules as tests. Each rule is a function over sources, so that it can be shown to find a
//! violation before it is trusted to find none.

#[path = "tidy/payload.rs"]
mod payload;
#[path = "tidy/source.rs"]
mod source;

use std::collections::BTreeSet;

use payload::Allowed;
use source::{Source, has_word, relative, repository_files, rust_sources, top};

/// Rooms without I/O and clock (ARCHITECTURE.md, "Pure rooms"). A folder ends with `/`.
const PURE_ROOMS: [&str; 21] = [
    "protocol/src/",
    "coordinator/src/",
    "buffer-pool/src/free_list",
    "buffer-pool/src/waiters",
    "buffer-pool/src/redistribute",
    "buffer-pool/src/local_pool",
    "shuffle-client/src/producer/selector",
    "shuffle-client/src/producer/record",
    "shuffle-client/src/producer/sort_buffer",
    "shuffle-client/src/codec",
    "shuffle-client/src/consumer/record",
    "shuffle-client/src/driver/known",
    "shuffle-server/src/node",
    "shuffle-server/src/executor",
    "shuffle-server/src/partition",
    "shuffle-server/src/peer",
    "shuffle-server/src/spill/directories",
    "shuffle-server/src/spill/index",
    "shuffle-server/src/spill/names",
    "shuffle-server/src/spill/op",
    "shuffle-server/src/spill/schedule",
];

const NOT_IN_PURE_ROOMS: [&str; 14] = [
    "tokio",
    "tokio_util",
    "std::net",
    "std::fs",
    "std::io::Read",
    "std::io::Write",
    "std::os",
    "std::process",
    "std::thread",
    "Instant::now",
    "SystemTime",
    "metrics",
    "rustix",
    "socket2",
];

const UNSAFE_ROOMS: [&str; 2] = [
    "buffer-pool/src/region.rs",
    "shuffle-server/src/transport/uring/ring.rs",
];

/// The crates of those rooms.
const ROOTS_WITH_A_ROOM: [&str; 2] = ["buffer-pool/src/lib.rs", "shuffle-server/src/lib.rs"];

/// Bytes that are headers, control messages or paths, never payload.
const NOT_PAYLOAD: [Allowed; 2] = [
    Allowed {
        file: "spill/index/blocks.rs",
        line: "let mut crc = crc32fast::Hasher::new();",
        why: "the checksum of an index, which holds no payload",
    },
    Allowed {
        file: "server/verify.rs",
        line: "Ok(crc32fast::hash(read_payload(&payload)))",
        why: "payload of a buffer that did not have its checksum, through the function that counts it",
    },
];

const MOST_LINES: usize = 400;

#[test]
fn pure_rooms_do_no_io_and_read_no_clock() {
    let sources = rust_sources("");
    let rooms: Vec<&Source> = sources.iter().filter(|one| is_pure(&one.path)).collect();
    assert!(rooms.len() > 10, "the list of pure rooms no longer fits the tree");
    assert_empty("I/O or a clock in a pure room", impure_lines(rooms));

    let sample = Source::new(
        "protocol/src/sample.rs",
        "// Instant::now() in a comment is fine\nfn f() { let _ = std::time::Instant::now(); }\n",
    );
    assert_eq!(
        impure_lines(vec![&sample]).len(),
        1,
        "the rule must find what it is for"
    );
}

#[test]
fn unsafe_stays_in_its_rooms() {
    assert_empty("`unsafe` outside its rooms", unsafe_lines(&rust_sources("")));

    let sample = Source::new("shuffle-client/src/sample.rs", "fn f() { unsafe { g() } }\n");
    assert_eq!(unsafe_lines(&[sample]).len(), 1, "the rule must find what it is for");
}

#[test]
fn crates_forbid_unsafe_code() {
    let mut lacking = Vec::new();
    for source in rust_sources("") {
        let path = source.path.as_str();
        let is_root = ["src/lib.rs", "src/main.rs"].iter().any(|end| path.ends_with(end)) || path.contains("/src/bin/");
        if is_root && !ROOTS_WITH_A_ROOM.contains(&path) && !path.starts_with("fuzz/") {
            let forbids = source.code.contains("#![forbid(unsafe_code)]");
            if !forbids {
                lacking.push(path.to_owned());
            }
        }
    }
    assert_empty("no #![forbid(unsafe_code)]", lacking);
}

/// Where `forbid` cannot stand the workspace's `deny` holds: nothing but the room itself may lift it, once in each crate.
#[test]
fn unsafe_code_is_let_in_once_for_each_room() {
    let sources = rust_sources("");
    let lifted = |root: &str| {
        let crate_folder = root.trim_end_matches("lib.rs").to_owned();
        let of_crate = sources.iter().filter(move |one| one.path.starts_with(&crate_folder));
        of_crate.map(|one| lifts_of_unsafe_code(&one.code)).sum::<usize>()
    };
    assert_eq!(ROOTS_WITH_A_ROOM.map(lifted), [1, 1]);
    assert_eq!(lifts_of_unsafe_code("#![deny(unsafe_code)]\n"), 0);
    assert_eq!(
        lifts_of_unsafe_code("#[expect(\n    unsafe_code,\n    reason = \"\")]\nmod a;\n"),
        1
    );
    assert_eq!(lifts_of_unsafe_code("#[allow(unsafe_code)]\nmod a;\n"), 1);
}

#[test]
fn nothing_unfinished_is_left_in_the_code() {
    assert_empty("unfinished code", unfinished_lines(&rust_sources("")));

    let sample = Source::new("a/src/b.rs", &format!("fn f() {{ {}!(1); }}\n", "dbg"));
    assert_eq!(
        unfinished_lines(&[sample]).len(),
        1,
        "the rule must find what it is for"
    );
}

#[test]
fn files_stay_readable() {
    let long = rust_sources("")
        .iter()
        .map(|one| (one.text.lines().count(), &one.path))
        .filter(|(lines, _)| *lines > MOST_LINES)
        .map(|(lines, path)| format!("{path}: {lines} lines, at most {MOST_LINES}"))
        .collect();
    assert_empty("too long", long);
}

#[test]
fn no_path_of_a_build_machine() {
    // Put together here, so that this file does not contain them.
    let forbidden: Vec<String> = ["work", "farm", "root", "home"]
        .iter()
        .map(|name| format!("/{name}/"))
        .collect();
    let mut found = Vec::new();
    for path in repository_files() {
        let Ok(text) = std::fs::read_to_string(&path) else {
            continue;
        };
        for (index, line) in text.lines().enumerate() {
            if forbidden.iter().any(|one| starts_a_path(line, one)) {
                found.push(format!("{}:{}: {line}", relative(&path), index + 1));
            }
        }
    }
    assert_empty("a path of a machine", found);
}

#[test]
fn the_server_moves_no_payload_beside_the_counted_functions() {
    let (broken, unused) = payload::check(&rust_sources("shuffle-server/src/"), &NOT_PAYLOAD);
    assert_empty("bytes moved beside buffer_pool's counted functions", broken);
    assert_empty("allowed lines that no longer exist", unused);

    let sample = Source::new(
        "shuffle-server/src/transport/sample.rs",
        "fn relay(from: &[u8], to: &mut [u8]) {\n    to.copy_from_slice(from);\n}\n",
    );
    let (broken, _) = payload::check(&[sample], &[]);
    assert_eq!(
        broken.len(),
        1,
        "the rule must find a copy put beside the counted functions"
    );
}

#[test]
fn every_metric_is_documented_and_every_documented_one_exists() {
    let page = std::fs::read_to_string(top().join("docs/metrics.md")).expect("docs/metrics.md");
    let documented: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    let published: BTreeSet<&str> = shuffle_server::metrics::METRICS
        .iter()
        .map(|metric| metric.name)
        .collect();
    assert_eq!(documented, published, "docs/metrics.md and the table of the server");
    let elsewhere = metric_names(&rust_sources("shuffle-server/src/"));
    let outside = elsewhere
        .into_iter()
        .filter(|name| !published.contains(name.as_str()))
        .collect();
    assert_empty("a metric beside the table", outside);
}

#[test]
fn the_published_contract_is_the_one_in_use() {
    let protos: Vec<String> = repository_files()
        .iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "proto"))
        .map(|path| relative(path))
        .collect();
    assert_eq!(protos, ["protocol/control.proto"], "one published contract");
    let build = std::fs::read_to_string(top().join("protocol/build.rs")).expect("build.rs");
    assert!(
        build.contains("control.proto"),
        "the published file is what is compiled"
    );

    let contract = std::fs::read_to_string(top().join("protocol/control.proto")).expect("contract");
    let used: String = ["shuffle-server/src/", "shuffle-client/src/", "protocol/src/"]
        .iter()
        .flat_map(|folder| rust_sources(folder))
        .map(|one| one.code)
        .collect();
    let unused = messages_of_the_envelope(&contract)
        .into_iter()
        .filter(|name| !used.contains(&format!("Message::{name}")))
        .collect();
    assert_empty("published but used by nobody", unused);
}

#[test]
fn dependencies_are_not_the_broken_ones() {
    // F98: bytes below 1.11.1 overflows in BytesMut::reserve.
    let lock = std::fs::read_to_string(top().join("Cargo.lock")).expect("Cargo.lock");
    let bytes = lock
        .split("[[package]]")
        .find(|one| one.contains("name = \"bytes\""))
        .expect("bytes");
    let version = bytes
        .split("version = \"")
        .nth(1)
        .and_then(|rest| rest.split('"').next());
    let parts: Vec<u32> = version.expect("a version").split('.').flat_map(str::parse).collect();
    assert!(parts.as_slice() >= [1, 11, 1].as_slice(), "bytes {parts:?}");
}

fn is_pure(path: &str) -> bool {
    PURE_ROOMS.iter().any(|room| {
        path.strip_prefix(room)
            .is_some_and(|rest| room.ends_with('/') || rest.starts_with(['/', '.']))
    })
}

fn impure_lines(sources: Vec<&Source>) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        for (number, code) in source.shipped_lines() {
            if NOT_IN_PURE_ROOMS.iter().any(|word| has_word(code, word)) {
                found.push(format!("{}:{number}: {}", source.path, code.trim()));
            }
        }
    }
    found
}

fn unsafe_lines(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources.iter().filter(|one| !UNSAFE_ROOMS.contains(&one.path.as_str())) {
        for (number, code) in source.code_lines() {
            if has_word(code, "unsafe") {
                found.push(format!("{}:{number}: {}", source.path, code.trim()));
            }
        }
    }
    found
}

/// Lines that lift the lint, not those that set it.
fn lifts_of_unsafe_code(code: &str) -> usize {
    let sets = |line: &&str| line.contains("deny(") || line.contains("forbid(");
    let lines = code.lines().filter(|line| has_word(line, "unsafe_code"));
    lines.filter(|line| !sets(line)).count()
}

fn unfinished_lines(sources: &[Source]) -> Vec<String> {
    let calls = ["dbg", "todo", "unimplemented"].map(|name| format!("{name}!"));
    let marks = [["FIX", "ME"].concat(), ["XX", "X"].concat(), ["TO", "DO"].concat()];
    let mut found = Vec::new();
    for source in sources {
        for (number, code) in source.code_lines() {
            let text = source.line(number);
            let unfinished = calls.iter().any(|call| code.contains(call))
                || marks.iter().any(|mark| has_word(text, mark))
                || code.contains("allow(unused");
            if unfinished {
                found.push(format!("{}:{number}: {}", source.path, text.trim()));
            }
        }
    }
    found
}

fn starts_a_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '}' | '*'))
    })
}

/// Names given to `counter!`, `gauge!` and `histogram!`.
fn metric_names(sources: &[Source]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for source in sources {
        for call in ["counter!(", "gauge!(", "histogram!("] {
            for (at, _) in source.text.match_indices(call) {
                let rest = source.text[at + call.len()..].trim_start();
                if let Some(name) = rest.strip_prefix('"').and_then(|rest| rest.split('"').next()) {
                    names.insert(name.to_owned());
                }
            }
        }
    }
    names
}

/// The message types that a control frame may carry, by their Rust names.
fn messages_of_the_envelope(contract: &str) -> Vec<String> {
    let body = contract
        .split("oneof message {")
        .nth(1)
        .and_then(|rest| rest.split('}').next());
    body.expect("the envelope")
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with("//") && line.contains('='))
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

fn assert_empty(what: &str, found: Vec<String>) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}
