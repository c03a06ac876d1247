//! Durations and sizes as people write them.

use std::time::Duration;

const DURATION_UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1000), ("m", 60 * 1000), ("h", 60 * 60 * 1000)];

const SIZE_UNITS: [(&str, u64); 7] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("KB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];

/// Parses a duration such as `30s`, `100ms`, `5m` or `1h`; a unit is required, `0` excepted.
///
/// # Errors
/// A sentence that says what is wrong and how it should look.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (number, unit) = split(text);
    let Some((_, factor)) = DURATION_UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err("not a duration; give a number and a unit (ms, s, m, h), such as \"30s\"".to_owned());
    };
    parse_number(number)
        .and_then(|value| value.checked_mul(*factor))
        .map(Duration::from_millis)
        .ok_or_else(|| "not a duration; give a whole number and a unit, such as \"30s\"".to_owned())
}

/// Parses a size such as `65536`, `32KiB`, `64MiB` or `1GB` into bytes.
///
/// # Errors
/// A sentence that says what is wrong and how it should look.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text.trim());
    let factor = match unit {
        "" => Some(1),
        _ => SIZE_UNITS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit))
            .map(|(_, factor)| *factor),
    };
    factor
        .and_then(|factor| parse_number(number)?.checked_mul(factor))
        .ok_or_else(|| "not a size; give bytes or a number and a unit, such as 65536 or \"64MiB\"".to_owned())
}

/// Writes a duration so that [`parse_duration`] reads it back (whole milliseconds).
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis > 0 && millis.is_multiple_of(1000) {
        format!("{}s", millis / 1000)
    } else {
        format!("{millis}ms")
    }
}

/// Writes a size so that [`parse_size`] reads it back.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    SIZE_UNITS[..3]
        .iter()
        .rev()
        .find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor))
        .map_or_else(
            || bytes.to_string(),
            |(name, factor)| format!("{}{name}", bytes / factor),
        )
}

fn split(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '_'))
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

fn parse_number(text: &str) -> Option<u64> {
    text.replace('_', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{format_duration, format_size, parse_duration, parse_size};
    use std::time::Duration;

    #[test]
    fn durations_read_and_write() {
        for (text, millis) in [
            ("30s", 30_000),
            ("100ms", 100),
            ("5m", 300_000),
            ("2 h", 7_200_000),
            ("0", 0),
        ] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse_duration(text), Ok(duration), "{text}");
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
        for text in [
            "30",
            "s",
            "-1s",
            "1.5s",
            "3 weeks",
            "",
            "99999999999999999999s",
            "18446744073709551615h",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_read_and_write() {
        for (text, bytes) in [
            ("65536", 65_536),
            ("32KiB", 32_768),
            ("64 mib", 64 << 20),
            ("1GB", 1_000_000_000),
            ("1_000", 1000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }
        for text in ["", "KiB", "-1", "1.5MiB", "64XB", "18446744073709551615GiB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
