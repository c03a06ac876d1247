//! What memory there is, asked before any of it is taken.
//!
//! The kernel answers a request beyond a limit with a signal (SIGXFSZ at the file size limit, the OOM killer at a cgroup's),
//! so the limits are read first and the tightest one is named.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rustix::process::{Resource, getrlimit};

use crate::error::PoolError;

/// One limit and what it leaves.
#[derive(Debug, PartialEq, Eq)]
struct Limit {
    bytes: u64,
    name: String,
}

/// # Errors
/// [`PoolError::Budget`] if any limit leaves less than `need_bytes`.
pub(crate) fn check(need_bytes: u64) -> Result<(), PoolError> {
    let limits = [file_size(), system(Path::new("/proc/meminfo"))].into_iter().flatten();
    let groups = cgroups(Path::new("/proc/self/cgroup"), Path::new("/sys/fs/cgroup"));
    refuse_beyond(need_bytes, limits.chain(groups))
}

fn refuse_beyond(need_bytes: u64, limits: impl Iterator<Item = Limit>) -> Result<(), PoolError> {
    match limits.min_by_key(|limit| limit.bytes) {
        Some(Limit {
            bytes: have_bytes,
            name: limit,
        }) if have_bytes < need_bytes => Err(PoolError::Budget {
            need_bytes,
            have_bytes,
            limit,
        }),
        _ => Ok(()),
    }
}

fn file_size() -> Option<Limit> {
    let bytes = getrlimit(Resource::Fsize).current?;
    Some(Limit {
        bytes,
        name: "the file size limit (ulimit -f, RLIMIT_FSIZE) holds for a memfd too".to_owned(),
    })
}

fn system(meminfo: &Path) -> Option<Limit> {
    let text = fs::read_to_string(meminfo).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Limit {
        bytes: kibibytes * 1024,
        name: "MemAvailable of this machine".to_owned(),
    })
}

/// The memory limits of the process's cgroup and all above it, version 2 or 1.
fn cgroups(membership: &Path, root: &Path) -> Vec<Limit> {
    let text = fs::read_to_string(membership).unwrap_or_default();
    let mut limits = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (top, files) = match controllers {
            "" => (root.to_owned(), ["memory.max", "memory.current"]),
            "memory" => (root.join("memory"), ["memory.limit_in_bytes", "memory.usage_in_bytes"]),
            _ => continue,
        };
        let mut group: PathBuf = top.join(path.trim_start_matches('/'));
        loop {
            limits.extend(cgroup(&group, files));
            if group == top || !group.pop() || !group.starts_with(&top) {
                break;
            }
        }
    }
    limits
}

fn cgroup(group: &Path, [limit, usage]: [&str; 2]) -> Option<Limit> {
    // "max", or a file that is not there: no limit.
    let limit: u64 = number(&group.join(limit))?;
    let usage = number(&group.join(usage))?.saturating_sub(reclaimable(group));
    Some(Limit {
        bytes: limit.saturating_sub(usage),
        name: format!("the memory limit of the cgroup {}", group.display()),
    })
}

/// Page cache that the kernel drops before it says no.
fn reclaimable(group: &Path) -> u64 {
    let text = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let value = |line: &str, key: &str| line.strip_prefix(key)?.trim().parse::<u64>().ok();
    text.lines()
        .filter_map(|line| value(line, "active_file ").or_else(|| value(line, "inactive_file ")))
        .sum()
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Limit, cgroups, refuse_beyond, system};
    use crate::PoolError;

    const MIB: u64 = 1 << 20;

    #[test]
    fn version_2_counts_every_level_and_leaves_out_page_cache() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let membership = root.path().join("self");
        fs::write(&membership, "0::/pod/box\n").expect("written");
        for (group, limit, used, cache) in [("pod", 100 * MIB, 60 * MIB, 10 * MIB), ("pod/box", 64 * MIB, MIB, 0)] {
            let folder = root.path().join(group);
            fs::create_dir_all(&folder).expect("made");
            fs::write(folder.join("memory.max"), limit.to_string()).expect("written");
            fs::write(folder.join("memory.current"), used.to_string()).expect("written");
            fs::write(
                folder.join("memory.stat"),
                format!("anon 5\ninactive_file {cache}\nactive_file 0\n"),
            )
            .expect("written");
        }
        let left: Vec<u64> = cgroups(&membership, root.path())
            .iter()
            .map(|limit| limit.bytes)
            .collect();
        assert_eq!(left, [63 * MIB, 50 * MIB]);
    }

    #[test]
    fn version_1_and_no_limit() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let membership = root.path().join("self");
        fs::write(&membership, "9:cpu:/x\n4:memory:/x\n0::/y\n").expect("written");
        let folder = root.path().join("memory/x");
        fs::create_dir_all(&folder).expect("made");
        fs::create_dir_all(root.path().join("y")).expect("made");
        fs::write(root.path().join("y/memory.max"), "max\n").expect("written");
        fs::write(folder.join("memory.limit_in_bytes"), "1000\n").expect("written");
        fs::write(folder.join("memory.usage_in_bytes"), "1200\n").expect("written");
        let left: Vec<u64> = cgroups(&membership, root.path())
            .iter()
            .map(|limit| limit.bytes)
            .collect();
        assert_eq!(left, [0]);
    }

    #[test]
    fn the_tightest_limit_is_named() {
        let limits = || {
            [(300, "wide"), (64, "tight")].map(|(bytes, name)| Limit {
                bytes,
                name: name.to_owned(),
            })
        };
        assert!(refuse_beyond(64, limits().into_iter()).is_ok());
        let error = refuse_beyond(65, limits().into_iter()).expect_err("more than there is");
        assert!(matches!(&error, PoolError::Budget { need_bytes: 65, have_bytes: 64, limit } if limit == "tight"));
        assert_eq!(error.to_string(), "the buffer pool needs 65 bytes, there are 64: tight");
    }

    #[test]
    fn this_machine_says_what_is_available() {
        assert!(system("/proc/meminfo".as_ref()).is_some_and(|limit| limit.bytes > MIB));
    }
}
