//! `shuffle-bench repartition`, as a user sees it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use crate::run::{assert_empty, command};

/// A folder with a text file, and room for parts.
struct Desk {
    dir: tempfile::TempDir,
    temporary: tempfile::TempDir,
}

impl Desk {
    fn new(text: &[u8]) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("input"), text).expect("written");
        Self {
            dir,
            temporary: tempfile::tempdir().expect("a folder"),
        }
    }

    fn output(&self) -> PathBuf {
        self.dir.path().join("parts")
    }

    /// Distributes the file, or standard input with the same text, by the second column.
    fn run(&self, from_standard_input: bool, more: &[&str]) -> Output {
        let input = self.dir.path().join("input");
        let mut command = command(
            &["repartition", "--delimiter", ";", "--key", "2"],
            self.temporary.path(),
        );
        command.arg("--output").arg(self.output()).args(more);
        command
            .arg("--input")
            .arg(if from_standard_input { Path::new("-") } else { &input });
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("started");
        let mut standard_input = child.stdin.take().expect("piped");
        let text = if from_standard_input {
            fs::read(&input).expect("read")
        } else {
            Vec::new()
        };
        let writer = std::thread::spawn(move || {
            // The tool may refuse to read all of it.
            let _ = standard_input.write_all(&text);
        });
        let output = child.wait_with_output().expect("ended");
        writer.join().expect("wrote");
        assert_empty(self.temporary.path());
        output
    }

    /// The lines of each part.
    fn parts(&self) -> Vec<Vec<Vec<u8>>> {
        let mut paths: Vec<PathBuf> = fs::read_dir(self.output())
            .expect("a folder")
            .flatten()
            .map(|entry| entry.path())
            .collect();
        paths.sort();
        let lines = |path: &PathBuf| {
            let text = fs::read(path).expect("read");
            assert!(
                text.is_empty() || text.ends_with(b"\n"),
                "{path:?} does not end with its last line"
            );
            text.split_inclusive(|byte| *byte == b'\n')
                .map(<[u8]>::to_vec)
                .collect()
        };
        paths.iter().map(lines).collect()
    }
}

fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn sorted(mut lines: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    lines.sort();
    lines
}

/// Lines with keys, empty columns, carriage returns, bytes that are no text, and one long line; the last has no end.
fn text() -> Vec<u8> {
    let mut text = Vec::new();
    for line in 0..20_000_u32 {
        text.extend_from_slice(format!("{line};key {};{}", line % 997, "x".repeat(line as usize % 50)).as_bytes());
        text.extend_from_slice(if line % 3 == 0 { b";\xff\0\r\n" } else { b"\n" });
    }
    text.extend_from_slice(b"long;line;");
    text.resize(text.len() + 300_000, b'y');
    text.extend_from_slice(b"\n;;\nlast;line without end");
    text
}

fn lines_of(text: &[u8]) -> Vec<Vec<u8>> {
    let mut text = text.to_vec();
    if !text.is_empty() && !text.ends_with(b"\n") {
        text.push(b'\n');
    }
    text.split_inclusive(|byte| *byte == b'\n')
        .map(<[u8]>::to_vec)
        .collect()
}

#[test]
fn parts_hold_all_lines_and_each_key_once() {
    for (from_standard_input, more) in [
        (false, &["--consumers", "5"][..]),
        (true, &["--consumers", "3"]),
        (false, &["--consumers", "11", "--nodes", "1"]),
    ] {
        let desk = Desk::new(&text());
        succeeded(&desk.run(from_standard_input, more));
        let parts = desk.parts();
        assert_eq!(parts.len().to_string(), more[1]);
        let mut places = BTreeMap::new();
        for (part, line) in parts
            .iter()
            .enumerate()
            .flat_map(|(part, lines)| lines.iter().map(move |line| (part, line)))
        {
            let key = line.split(|byte| *byte == b';').nth(1).expect("a key").to_vec();
            let key = key.strip_suffix(b"\n").unwrap_or(&key).to_vec();
            assert_eq!(*places.entry(key).or_insert(part), part, "a key is in two parts");
        }
        assert_eq!(
            sorted(parts.into_iter().flatten().collect()),
            sorted(lines_of(&text())),
            "{more:?}"
        );
    }
}

#[test]
fn an_empty_file_gives_empty_parts() {
    for from_standard_input in [false, true] {
        let desk = Desk::new(b"");
        succeeded(&desk.run(from_standard_input, &["--consumers", "2"]));
        assert_eq!(desk.parts(), vec![Vec::<Vec<u8>>::new(); 2]);
    }
}

#[test]
fn a_line_without_the_column_is_named_and_leaves_no_part() {
    let mut bad = text();
    bad.extend_from_slice(b"\nno second column\n");
    bad.extend_from_slice(&text());
    let number = lines_of(&text()).len() + 1;
    for from_standard_input in [false, true] {
        let desk = Desk::new(&bad);
        let output = desk.run(from_standard_input, &["--json", "-"]);
        assert_eq!(output.status.code(), Some(1));
        let errors = String::from_utf8_lossy(&output.stderr);
        let expected = format!("line {number}: expected at least 2 columns separated by ';'");
        assert!(errors.contains(&expected), "{errors}");
        assert!(
            String::from_utf8_lossy(&output.stdout).contains(&expected),
            "{output:?}"
        );
        assert_empty(&desk.output());
    }
}

#[test]
fn parts_are_replaced_only_by_force() {
    let desk = Desk::new(b"a;b\n");
    succeeded(&desk.run(false, &["--consumers", "3"]));
    let refused = desk.run(false, &["--consumers", "2"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("--force"),
        "{refused:?}"
    );
    assert_eq!(desk.parts().len(), 3);
    succeeded(&desk.run(false, &["--consumers", "2", "--force"]));
    assert_eq!(desk.parts().into_iter().flatten().collect::<Vec<_>>(), [b"a;b\n"]);
    assert_eq!(desk.parts().len(), 2);
}

#[test]
fn a_missing_file_is_named() {
    let desk = Desk::new(b"");
    fs::remove_file(desk.dir.path().join("input")).expect("removed");
    let output = desk.run(false, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("input"), "{output:?}");
    assert!(!desk.output().exists());
}
