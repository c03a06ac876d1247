//! A table of two columns.

use std::borrow::Cow;
use std::fmt;

/// Names and values under a title.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    title: String,
    rows: Vec<(Cow<'static, str>, String)>,
}

impl Table {
    /// A table without rows.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            rows: Vec::new(),
        }
    }

    /// Appends a row.
    #[must_use]
    pub fn row(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<String>) -> Self {
        self.rows.push((name.into(), value.into()));
        self
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name_width = width(self.rows.iter().map(|(name, _)| &**name));
        let value_width = width(self.rows.iter().map(|(_, value)| value.as_str()));
        writeln!(f, "{}", self.title)?;
        let line = "-".repeat((name_width + 2 + value_width).max(self.title.chars().count()));
        writeln!(f, "{line}")?;
        for (name, value) in &self.rows {
            writeln!(f, "{name:name_width$}  {value}")?;
        }
        write!(f, "{line}")
    }
}

fn width<'a>(texts: impl Iterator<Item = &'a str>) -> usize {
    texts.map(|text| text.chars().count()).max().unwrap_or(0)
}

/// A number with its digits in groups of three.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// Bytes in decimal units.
pub(crate) fn bytes(bytes: u64) -> String {
    let value = bytes as f64;
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", value / 1e6),
        _ => format!("{:.2} GB", value / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::{Table, bytes, grouped};

    #[test]
    fn numbers_are_readable() {
        let all = [0, 999, 1_000, 12_345, 123_456, 1_234_567].map(grouped);
        assert_eq!(all, ["0", "999", "1 000", "12 345", "123 456", "1 234 567"]);
        let all = [0, 999, 1_000, 67_108_864, 1_500_000_000].map(bytes);
        assert_eq!(all, ["0 B", "999 B", "1.0 kB", "67.1 MB", "1.50 GB"]);
    }

    #[test]
    fn columns_line_up() {
        let table = Table::new("t").row("a", "1").row("long", "22");
        assert_eq!(table.to_string(), "t\n--------\na     1\nlong  22\n--------");
    }
}
