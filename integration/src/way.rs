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

const SENT: [&str; 3] = ["send_bytes_copied", "send_bytes_uncopied", "send_bytes_uring"];
/// From so many bytes on a buffer goes by reference.
const SENDFILE_BYTES: u64 = 8 << 10;

impl Way {
    const ALL: [Self; 3] = [Self::Copy, Self::Sendfile, Self::Uring];

    /// Those that a test goes through: all, or the one of this run.
    ///
    /// # Panics
    /// If the variable names none.
    #[must_use]
    pub fn of_this_run() -> Vec<Self> {
        let all = Self::ALL;
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

    /// What a server that was told `transport.send` this way, or that the run tells so, has to keep to.
    pub(crate) fn forced(told: Option<&str>) -> Option<Self> {
        let run = variable();
        let name = told.or_else(|| run.as_deref().and_then(std::ffi::OsStr::to_str));
        Self::ALL.into_iter().find(|way| name == Some(way.name()))
    }

    /// The server with this status has sent nothing in another way; if it has sent anything, it was in this one.
    ///
    /// # Panics
    /// If not.
    pub(crate) fn assert_was_kept(self, status: &BTreeMap<String, u64>) {
        let (sent, buffers) = (status["bytes_sent"], status["buffers_sent"]);
        // Shorter buffers go by copy; of buffers that are longer on the average at least one is longer.
        let only_short = self == Self::Sendfile && sent < buffers * SENDFILE_BYTES;
        let counted = SENT.map(|name| status[name]);
        if counted == [0; 3] {
            return;
        }
        if only_short {
            let [_, _, ringed] = counted;
            let others = (
                status["peer_connections_copy"],
                status["peer_connections_uring"],
                ringed,
            );
            assert_eq!(
                (others, status["send_fallbacks"]),
                ((0, 0, 0), 0),
                "{self:?} became another"
            );
        } else {
            self.assert_was_taken(status);
        }
    }

    /// The server with this status has sent payload in this way, and had to make do with no other.
    ///
    /// # Panics
    /// If not: the way has silently become another one.
    pub fn assert_was_taken(self, status: &BTreeMap<String, u64>) {
        let sent = SENT.map(|name| status[name]);
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

    #[test]
    fn a_server_that_is_told_keeps_to_it() {
        let status = |sent: [u64; 3], buffers: u64, copying_connections: u64| {
            let names = ["send_bytes_copied", "send_bytes_uncopied", "send_bytes_uring"];
            let mut status: BTreeMap<String, u64> = names.map(str::to_owned).into_iter().zip(sent).collect();
            status.extend(
                [
                    ("bytes_sent", sent.iter().sum()),
                    ("buffers_sent", buffers),
                    ("peer_connections_copy", copying_connections),
                    ("peer_connections_uring", 0),
                    ("send_fallbacks", 0),
                ]
                .map(|(name, value)| (name.to_owned(), value)),
            );
            status
        };
        assert_eq!(Way::forced(Some("sendfile")), Some(Way::Sendfile));
        for way in [Way::Copy, Way::Sendfile, Way::Uring] {
            way.assert_was_kept(&status([0; 3], 0, 0));
        }
        Way::Sendfile.assert_was_kept(&status([5000, 0, 0], 10, 0));
        let fails = |way: Way, status| catch_unwind(move || way.assert_was_kept(&status)).is_err();
        assert!(
            fails(Way::Sendfile, status([5000, 0, 0], 10, 1)),
            "short, but not by sendfile"
        );
        assert!(fails(Way::Sendfile, status([500_000, 0, 0], 10, 0)), "long, and copied");
        assert!(fails(Way::Uring, status([1, 0, 500], 10, 0)));
        assert!(fails(Way::Copy, status([0, 500, 0], 10, 0)));
    }
}
