//! Why there is no io_uring here: one line that says what stands in the way, its value, and the remedy.

use std::io;

use io_uring::opcode;
use rustix::process::{Resource, getrlimit};

use crate::config::format_size;

/// Every operation that is used here, by its name in the kernel.
const NEEDED: [(&str, u8); 4] = [
    ("IORING_OP_SENDMSG", opcode::SendMsg::CODE),
    ("IORING_OP_SEND_ZC", opcode::SendZc::CODE),
    ("IORING_OP_POLL_ADD", opcode::PollAdd::CODE),
    ("IORING_OP_ASYNC_CANCEL", opcode::AsyncCancel2::CODE),
];
/// Bit of `CAP_IPC_LOCK`, which lifts the limit of locked memory.
const CAP_IPC_LOCK: u32 = 14;

/// Why io_uring cannot be used. The caller falls back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unavailable {
    /// `io_uring_setup` says EPERM.
    #[error(
        "io_uring is refused (EPERM), kernel.io_uring_disabled is {disabled}: {}",
        if disabled == "0" {
            "a seccomp profile forbids it, let it pass io_uring_setup, io_uring_enter and io_uring_register"
        } else {
            "set it to 0 with sysctl"
        }
    )]
    Refused {
        /// Value of the sysctl, or "unknown".
        disabled: String,
    },
    /// `io_uring_setup` says ENOSYS.
    #[error(
        "this kernel has no io_uring (ENOSYS): Linux 6.1 or later is needed, or a seccomp profile that does not hide it"
    )]
    NoSystemCall,
    /// `io_uring_setup` says EINVAL.
    #[error(
        "this kernel's io_uring is too old (EINVAL for single issuer and deferred task run): Linux 6.1 or later is needed"
    )]
    TooOld,
    /// The probe does not know an operation.
    #[error("this kernel's io_uring lacks {operation}: Linux 6.1 or later is needed")]
    MissingOperation {
        /// The kernel's name for it.
        operation: &'static str,
    },
    /// The buffers of the pool could not all be registered.
    #[error(
        "RLIMIT_MEMLOCK is {}, io_uring has to lock the pool of {}: raise it (ulimit -l, LimitMEMLOCK=) or give CAP_IPC_LOCK",
        format_size(*limit),
        format_size(*need)
    )]
    Memlock {
        /// Bytes.
        limit: u64,
        /// Bytes.
        need: u64,
    },
    /// Something else failed.
    #[error("io_uring: cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl Unavailable {
    pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { action, source }
    }

    /// What it means that a ring could not be made.
    pub(crate) fn of_setup(source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EPERM) => Self::Refused {
                disabled: std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled")
                    .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned()),
            },
            Some(libc::ENOSYS) => Self::NoSystemCall,
            Some(libc::EINVAL) => Self::TooOld,
            _ => Self::System {
                action: "make a ring",
                source,
            },
        }
    }
}

/// The name of the first operation that is used here and that a kernel lacks which has those of which `has` is true.
pub(crate) fn first_missing(has: impl Fn(u8) -> bool) -> Option<&'static str> {
    let missing = NEEDED.into_iter().find(|(_, code)| !has(*code));
    missing.map(|(name, _)| name)
}

/// Checks that `need` bytes may be locked.
///
/// # Errors
/// [`Unavailable::Memlock`].
pub(crate) fn check_memlock(need: u64) -> Result<(), Unavailable> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    judge_memlock(getrlimit(Resource::Memlock).current, has_ipc_lock(&status), need)
}

fn judge_memlock(limit: Option<u64>, unlimited: bool, need: u64) -> Result<(), Unavailable> {
    match limit {
        Some(limit) if limit < need && !unlimited => Err(Unavailable::Memlock { limit, need }),
        _ => Ok(()),
    }
}

fn has_ipc_lock(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    effective.is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::{NEEDED, Unavailable, first_missing, has_ipc_lock, judge_memlock};

    #[test]
    fn an_ordinary_users_limit_is_named_with_its_remedy() {
        let said = judge_memlock(Some(64 << 10), false, 64 << 20)
            .expect_err("too little")
            .to_string();
        assert!(
            said.contains("RLIMIT_MEMLOCK is 64KiB") && said.contains("64MiB"),
            "{said}"
        );
        assert!(said.contains("ulimit -l") && !said.contains('\n'), "{said}");
    }

    #[test]
    fn who_may_lock_anything_is_not_limited() {
        assert!(judge_memlock(Some(64 << 10), true, 64 << 20).is_ok());
        assert!(judge_memlock(None, false, 64 << 20).is_ok());
        assert!(judge_memlock(Some(64 << 20), false, 64 << 20).is_ok());
        assert!(has_ipc_lock("Name:\tx\nCapEff:\t0000000000004000\n"));
        assert!(!has_ipc_lock("Name:\tx\nCapEff:\t0000000000003fff\n"));
    }

    #[test]
    fn a_kernel_that_lacks_any_one_operation_is_told_which() {
        assert_eq!(first_missing(|_| true), None);
        for (name, lacking) in NEEDED {
            assert_eq!(first_missing(|code| code != lacking), Some(name));
        }
        let said = Unavailable::MissingOperation { operation: NEEDED[0].0 }.to_string();
        assert!(
            said.contains("lacks IORING_OP_SENDMSG") && said.contains("6.1"),
            "{said}"
        );
    }

    #[test]
    fn what_the_kernel_says_has_a_type() {
        let of = |code| Unavailable::of_setup(io::Error::from_raw_os_error(code));
        assert!(matches!(of(libc::EPERM), Unavailable::Refused { .. }));
        assert!(matches!(of(libc::ENOSYS), Unavailable::NoSystemCall));
        assert!(matches!(of(libc::EINVAL), Unavailable::TooOld));
        assert!(matches!(of(libc::EMFILE), Unavailable::System { .. }));
        let disabled = |value: &str| {
            let disabled = value.to_owned();
            Unavailable::Refused { disabled }.to_string()
        };
        assert!(disabled("0").contains("seccomp"));
        assert!(disabled("2").contains("io_uring_disabled is 2: set it to 0"));
    }
}
