//! The ways to send between servers: which of them a test goes through, and that a server did send in that way.

use std::collections::BTreeMap;
use std::ffi::OsString;

/// Set for a test run, all servers of the run send in this way; unset, each sends as it does by default, and the tests that go
/// through all ways do so.
pub const VARIABLE: &str = "SHUFFLE_TRANSPORT_SEND";

/// A value of `transport.send`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Gathered writes.
    Copy,
    /// By reference to the pages of the arena.
    Sendfile,
    /// Through io_uring.
    Uring,
}

impl Way {
    /// Those that a test goes through: all, or the one of this run.
    ///
    /// # Panics
    /// If the variable names none.
    #[must_use]
    pub fn of_this_run() -> Vec<Self> {
        let all = [Self::Copy, Self::Sendfile, Self::Uring];
        let Some(asked) = variable() else {
            return all.to_vec();
        };
        let one = all.into_iter().find(|way| asked == way.name());
        vec![one.unwrap_or_else(|| panic!("{VARIABLE} is copy, sendfile or uring, not {asked:?}"))]
    }

    /// The value of `transport.send`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Sendfile => "sendfile",
            Self::Uring => "uring",
        }
    }

    /// The server with this status has sent payload in this way, and had to make do with no other.
    ///
    /// # Panics
    /// If not: the way has silently become another one.
    pub fn assert_was_taken(self, status: &BTreeMap<String, u64>) {
        let sent = ["send_bytes_copied", "send_bytes_uncopied", "send_bytes_uring"].map(|name| status[name]);
        let [copied, uncopied, ringed] = sent;
        let taken = match self {
            Self::Copy => copied > 0 && uncopied == 0 && ringed == 0,
            // What is too small for a reference is copied.
            Self::Sendfile => uncopied > 0 && ringed == 0,
            Self::Uring => ringed > 0 && copied == 0 && uncopied == 0,
        };
        let fallbacks = status["send_fallbacks"];
        assert!(
            taken && fallbacks == 0,
            "{self:?} became another: copied {copied}, by reference {uncopied}, ring {ringed} bytes, {fallbacks} fallbacks"
        );
    }
}

/// What the run asks for.
pub(crate) fn variable() -> Option<OsString> {
    std::env::var_os(VARIABLE).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::panic::catch_unwind;

    use super::Way;

    #[test]
    fn another_way_and_a_fallback_are_noticed() {
        let status = |copied, uncopied, ringed, fallbacks| {
            BTreeMap::from(
                [
                    ("send_bytes_copied", copied),
                    ("send_bytes_uncopied", uncopied),
                    ("send_bytes_uring", ringed),
                    ("send_fallbacks", fallbacks),
                ]
                .map(|(name, value)| (name.to_owned(), value)),
            )
        };
        let right = [
            (Way::Copy, status(9, 0, 0, 0)),
            (Way::Sendfile, status(1, 9, 0, 0)),
            (Way::Uring, status(0, 0, 9, 0)),
        ];
        for (way, status) in &right {
            way.assert_was_taken(status);
            for (other, _) in right.iter().filter(|(other, _)| other != way) {
                assert!(
                    catch_unwind(|| other.assert_was_taken(status)).is_err(),
                    "{way:?}, {other:?}"
                );
            }
        }
        assert!(catch_unwind(|| Way::Uring.assert_was_taken(&status(0, 0, 9, 1))).is_err());
    }
}
