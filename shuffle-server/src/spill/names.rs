//! What files are called: numbers only, so that no identifier ever becomes a path. Pure.

use shuffle_protocol::{JobId, PartitionId, ResultId};

use super::StoreName;

/// The file by which a server holds a directory.
pub(crate) const LOCK: &str = "shuffle-storage.lock";

/// Which of a partition's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// The payload.
    Data,
    /// The index, complete.
    Index,
    /// An index that is being written.
    NewIndex,
}

impl Part {
    const ALL: [Self; 3] = [Self::Data, Self::Index, Self::NewIndex];

    const fn ending(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Index => "index",
            Self::NewIndex => "index.new",
        }
    }
}

/// What the files of one store are called. The serial number is used once in the life of all directories together: a file that is
/// still to be removed never has the name of a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FileName {
    /// Whose data.
    pub(crate) store: StoreName,
    /// Which file of that name.
    pub(crate) serial: u64,
}

impl FileName {
    /// `job-result-index-attempt-serial.ending`, all of them hexadecimal.
    pub(crate) fn of(&self, part: Part) -> String {
        let StoreName { job, partition } = self.store;
        format!(
            "{:016x}-{:016x}-{:08x}-{:08x}-{:016x}.{}",
            job.value(),
            partition.result.value(),
            partition.index,
            partition.attempt,
            self.serial,
            part.ending()
        )
    }

    /// Reads what [`Self::of`] has written, and nothing else.
    pub(crate) fn parse(text: &str) -> Option<(Self, Part)> {
        let (numbers, ending) = text.split_once('.')?;
        let part = Part::ALL.into_iter().find(|part| part.ending() == ending)?;
        let mut numbers = numbers.split('-').map(|number| u64::from_str_radix(number, 16).ok());
        let mut next = || numbers.next().flatten();
        let (job, result, index, attempt, serial) = (next()?, next()?, next()?, next()?, next()?);
        let name = Self {
            store: StoreName {
                job: JobId::new(job),
                partition: PartitionId {
                    result: ResultId::new(result),
                    index: u32::try_from(index).ok()?,
                    attempt: u32::try_from(attempt).ok()?,
                },
            },
            serial,
        };
        (name.of(part) == text).then_some((name, part))
    }
}

#[cfg(test)]
mod tests {
    use shuffle_protocol::{JobId, PartitionId, ResultId};

    use super::{FileName, Part};
    use crate::spill::StoreName;

    #[test]
    fn names_read_back_and_others_are_not_ours() {
        let partition = PartitionId {
            result: ResultId::new(0xab),
            index: 3,
            attempt: u32::MAX,
        };
        let store = StoreName {
            job: JobId::new(u64::MAX),
            partition,
        };
        let name = FileName { store, serial: 17 };
        for part in Part::ALL {
            let text = name.of(part);
            assert!(
                text.bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
            );
            assert_eq!(FileName::parse(&text), Some((name, part)), "{text}");
            for other in [
                text.to_uppercase(),
                format!("{text}~"),
                format!("0{text}"),
                text.replace('-', "_"),
            ] {
                assert_eq!(FileName::parse(&other), None, "{other}");
            }
        }
        for other in ["", ".", "..", "a.data", "-.data", "1-2-3-4-5.data", super::LOCK] {
            assert_eq!(FileName::parse(other), None, "{other}");
        }
    }
}
