//! The sources of the workspace as the house rules see them: paths, lines, and the same lines with
//! comments and the contents of literals blanked, so that a rule matches code and nothing else.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// One file of the repository.
#[derive(Clone)]
pub(crate) struct Source {
    /// Path from the top of the repository, with `/`.
    pub(crate) path: String,
    /// The file as it is.
    pub(crate) text: String,
    /// The same length in lines; comments and the insides of literals are spaces.
    pub(crate) code: String,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
            code: blank_comments_and_literals(text),
        }
    }

    /// Code lines up to the first test module, with their numbers from 1.
    pub(crate) fn shipped_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let is_test =
            self.path.ends_with("tests.rs") || self.path.contains("/tests/") || self.path.contains("/benches/");
        self.code
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line))
            .take_while(move |(_, line)| !is_test && !line.trim_start().starts_with("#[cfg(test)]"))
    }

    /// All code lines, with their numbers from 1.
    pub(crate) fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// The line as written.
    pub(crate) fn line(&self, number: usize) -> &str {
        self.text.lines().nth(number - 1).unwrap_or_default()
    }
}

/// The top of the repository.
pub(crate) fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the crate lies in the workspace")
        .to_owned()
}

/// Every file below the top that is part of the project, in a stable order.
pub(crate) fn repository_files() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![top()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a readable folder") {
            let entry = entry.expect("a readable entry");
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().expect("a file type");
            if kind.is_dir() {
                let skipped = ["target", ".git", "artifacts", "corpus", "node_modules"];
                if !skipped.contains(&name.as_str()) && !name.starts_with("target-") {
                    folders.push(entry.path());
                }
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

/// The Rust sources below one folder of the repository (`""`: all).
pub(crate) fn rust_sources(below: &str) -> Vec<Source> {
    static ALL: LazyLock<Vec<Source>> = LazyLock::new(read_rust_sources);
    ALL.iter().filter(|one| one.path.starts_with(below)).cloned().collect()
}

fn read_rust_sources() -> Vec<Source> {
    repository_files()
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| (relative(&path), path))
        .map(|(name, path)| Source::new(&name, &std::fs::read_to_string(path).expect("a readable source")))
        .collect()
}

/// Path from the top, with `/`.
pub(crate) fn relative(path: &Path) -> String {
    path.strip_prefix(top())
        .unwrap_or(path)
        .to_string_lossy()
        .replace('\\', "/")
}

/// True if `word` stands in `line` with no letter, digit or `_` on either side.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word)
        .any(|(at, _)| !is_part(line[..at].chars().next_back()) && !is_part(line[at + word.len()..].chars().next()))
}

fn blank_comments_and_literals(text: &str) -> String {
    let bytes: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    let keep_lines = |out: &mut String, part: &[char]| {
        out.extend(part.iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
    };
    while at < bytes.len() {
        let rest = &bytes[at..];
        let length = literal_or_comment(rest, at > 0 && is_identifier(bytes[at - 1]));
        if length == 0 {
            out.push(bytes[at]);
            at += 1;
        } else {
            keep_lines(&mut out, &rest[..length]);
            at += length;
        }
    }
    out
}

fn is_identifier(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Length of the comment or literal that starts here, 0 if none does.
fn literal_or_comment(rest: &[char], inside_word: bool) -> usize {
    match rest {
        ['/', '/', ..] => rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()),
        ['/', '*', ..] => {
            let mut depth = 0usize;
            let mut at = 0;
            while at + 1 < rest.len() {
                match (rest[at], rest[at + 1]) {
                    ('/', '*') => (depth, at) = (depth + 1, at + 2),
                    ('*', '/') => (depth, at) = (depth - 1, at + 2),
                    _ => at += 1,
                }
                if depth == 0 {
                    return at;
                }
            }
            rest.len()
        }
        ['r', '"' | '#', ..] if !inside_word => raw_string(&rest[1..]).map_or(0, |n| n + 1),
        ['b', 'r', '"' | '#', ..] if !inside_word => raw_string(&rest[2..]).map_or(0, |n| n + 2),
        ['"', ..] => {
            let mut at = 1;
            while at < rest.len() && rest[at] != '"' {
                at += if rest[at] == '\\' { 2 } else { 1 };
            }
            (at + 1).min(rest.len())
        }
        ['\'', '\\', ..] => {
            let end = rest.iter().skip(3).position(|c| *c == '\'').unwrap_or(0);
            (end + 4).min(rest.len())
        }
        ['\'', _, '\'', ..] => 3,
        _ => 0,
    }
}

fn raw_string(rest: &[char]) -> Option<usize> {
    let hashes = rest.iter().take_while(|c| **c == '#').count();
    if rest.get(hashes) != Some(&'"') {
        return None;
    }
    let mut at = hashes + 1;
    while at < rest.len() {
        if rest[at] == '"' && rest[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes {
            return Some(at + 1 + hashes);
        }
        at += 1;
    }
    Some(rest.len())
}
