//! Finding the key of a line: the column with a number, between delimiters.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What stands between two columns: one character.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delimiter(char);

impl FromStr for Delimiter {
    type Err = String;

    /// One character, or `\t` or `tab` for a tabulator. A line end cannot be a delimiter.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut characters = text.chars();
        let delimiter = match (text, characters.next(), characters.next()) {
            ("\\t" | "tab", ..) => '\t',
            (_, Some(single), None) => single,
            _ => {
                return Err(format!("expected one character (or \\t for a tabulator), got {text:?}"));
            }
        };
        if matches!(delimiter, '\n' | '\r') {
            return Err("a line end separates rows and cannot separate columns".to_owned());
        }
        Ok(Self(delimiter))
    }
}

impl fmt::Display for Delimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// Which part of a line is its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyColumn {
    /// What separates columns.
    pub delimiter: Delimiter,
    /// The number of the key's column, counted from 1.
    pub column: NonZeroU32,
}

/// A line that is too short to have the key column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected at least {} columns separated by {} (the key is column {}), found {found}",
    key.column, key.delimiter, key.column
)]
pub struct MissingColumn {
    /// What was looked for.
    pub key: KeyColumn,
    /// How many columns the line has.
    pub found: u32,
}

impl KeyColumn {
    /// The key within a line that is given without its `\n`; a `\r` at its end is no part of the key.
    ///
    /// # Errors
    /// The line has fewer columns.
    pub fn key<'a>(&self, line: &'a [u8]) -> Result<&'a [u8], MissingColumn> {
        let mut encoded = [0; 4];
        let delimiter = self.delimiter.0.encode_utf8(&mut encoded).as_bytes();
        let mut rest = line.strip_suffix(b"\r").unwrap_or(line);
        let mut column = 1;
        loop {
            let end = find(rest, delimiter);
            if column == self.column.get() {
                return Ok(&rest[..end.unwrap_or(rest.len())]);
            }
            let Some(end) = end else {
                return Err(MissingColumn {
                    key: *self,
                    found: column,
                });
            };
            rest = &rest[end + delimiter.len()..];
            column += 1;
        }
    }
}

fn find(text: &[u8], delimiter: &[u8]) -> Option<usize> {
    match delimiter {
        [byte] => memchr::memchr(*byte, text),
        _ => memchr::memmem::find(text, delimiter),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::{Delimiter, KeyColumn};

    fn key(delimiter: &str, column: u32) -> KeyColumn {
        KeyColumn {
            delimiter: delimiter.parse().expect("a delimiter"),
            column: NonZeroU32::new(column).expect("counted from 1"),
        }
    }

    #[test]
    fn delimiters_are_one_character() {
        for good in ["|", ",", "\t", "\\t", "tab", " ", "§", "\\"] {
            assert!(good.parse::<Delimiter>().is_ok(), "{good:?}");
        }
        for bad in ["", "||", "ab", "\n", "\r", "\\n"] {
            assert!(bad.parse::<Delimiter>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn keys_are_found_by_number() {
        let line = b"alpha|beta||delta";
        assert_eq!(key("|", 1).key(line), Ok(&b"alpha"[..]));
        assert_eq!(key("|", 2).key(line), Ok(&b"beta"[..]));
        assert_eq!(key("|", 3).key(line), Ok(&b""[..]));
        assert_eq!(key("|", 4).key(line), Ok(&b"delta"[..]));
        assert_eq!(key("§", 2).key("a§b§c".as_bytes()), Ok(&b"b"[..]));
        assert_eq!(key("tab", 2).key(b"a\tb"), Ok(&b"b"[..]));
    }

    #[test]
    fn an_empty_line_has_one_empty_column() {
        assert_eq!(key("|", 1).key(b""), Ok(&b""[..]));
        assert_eq!(key("|", 2).key(b"").map_err(|e| e.found), Err(1));
    }

    #[test]
    fn a_carriage_return_is_no_part_of_the_key() {
        assert_eq!(key(",", 2).key(b"a,b\r"), Ok(&b"b"[..]));
    }

    #[test]
    fn a_missing_column_says_what_was_expected() {
        let error = key("|", 5).key(b"a|b|c").expect_err("too short");
        assert_eq!(
            error.to_string(),
            "expected at least 5 columns separated by '|' (the key is column 5), found 3"
        );
    }
}
