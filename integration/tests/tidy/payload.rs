//! No payload byte is copied or read by the server beside the counted functions of `buffer_pool`.
//!
//! A word list over the server's sources finds everything that can copy or sum bytes. What handles
//! headers, control messages or paths is listed here line by line, with the reason; a listed line
//! that is no longer there must leave the list.

use crate::source::{Source, has_word};

/// Calls that move or read bytes in user space.
const MOVES_BYTES: [&str; 24] = [
    "copy_from_slice",
    "clone_from_slice",
    "copy_within",
    "copy_to_slice",
    "copy_to_bytes",
    "extend_from_slice",
    "extend_from_within",
    "append",
    "to_vec",
    "to_owned_bytes",
    "into_vec",
    "put_slice",
    "put",
    "copy_nonoverlapping",
    "copy_from_nonoverlapping",
    "ptr::copy",
    "read_exact",
    "read_to_end",
    "read_buf",
    "io::copy",
    "concat",
    "crc32fast",
    "hash_slice",
    "swap_with_slice",
];

/// A line of the server that may move bytes because they are not payload.
pub(crate) struct Allowed {
    /// End of the file's path.
    pub(crate) file: &'static str,
    /// The line, without the spaces around it.
    pub(crate) line: &'static str,
    /// What the bytes are.
    pub(crate) why: &'static str,
}

/// What breaks the rule: `path:line: text`; and which entries of the list match nothing.
pub(crate) fn check(sources: &[Source], allowed: &[Allowed]) -> (Vec<String>, Vec<String>) {
    let mut used = vec![false; allowed.len()];
    let mut broken = Vec::new();
    for source in sources {
        for (number, code) in source.shipped_lines() {
            if !MOVES_BYTES.iter().any(|word| has_word(code, word)) {
                continue;
            }
            let line = source.line(number).trim();
            match allowed
                .iter()
                .position(|one| source.path.ends_with(one.file) && one.line == line)
            {
                Some(index) => used[index] = true,
                None => broken.push(format!("{}:{number}: {line}", source.path)),
            }
        }
    }
    let unused = allowed
        .iter()
        .zip(used)
        .filter(|(_, used)| !used)
        .map(|(one, _)| format!("{}: {} ({})", one.file, one.line, one.why))
        .collect();
    (broken, unused)
}
