//! Judges what arrives: each record exactly once, in order, with its own bytes, and all of them
//! before the end. It remembers one number per subpartition and no data.

use std::collections::BTreeMap;

use crate::stamp::{Lengths, Place, Source, Violation, check};

/// What a consumer must see.
#[derive(Debug)]
pub struct Oracle {
    lengths: Lengths,
    queues: BTreeMap<(Source, u32), Queue>,
    scratch: Vec<u8>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Queue {
    seen: u64,
    expected: Option<u64>,
}

/// What has arrived.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Records.
    pub records: u64,
    /// Bytes of the records.
    pub bytes: u64,
}

/// What is wrong with what arrived.
#[derive(Debug, thiserror::Error)]
pub enum Verdict {
    /// One record is not the one that had to come.
    #[error(transparent)]
    Record(#[from] Violation),
    /// A record of a subpartition that this consumer did not ask for.
    #[error("{queue:?} was not asked for")]
    Unasked {
        /// Producer and subpartition.
        queue: (Source, u32),
    },
    /// The end came too early, or too much came.
    #[error("{queue:?}: {seen} records instead of {expected}")]
    Count {
        /// Producer and subpartition.
        queue: (Source, u32),
        /// Records that came.
        seen: u64,
        /// Records that were written.
        expected: u64,
    },
}

impl Oracle {
    /// A consumer of nothing yet, whose records have these lengths.
    #[must_use]
    pub fn new(lengths: Lengths) -> Self {
        Self {
            lengths,
            queues: BTreeMap::new(),
            scratch: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// The consumer asks for this subpartition, which holds `records` records.
    pub fn expect(&mut self, source: Source, subpartition: u32, records: u64) {
        let queue = Queue {
            seen: 0,
            expected: Some(records),
        };
        self.queues.insert((source, subpartition), queue);
    }

    /// The consumer asks for this subpartition, whose number of records is not known.
    pub fn expect_some(&mut self, source: Source, subpartition: u32) {
        self.queues.insert((source, subpartition), Queue::default());
    }

    /// A record has arrived.
    ///
    /// # Errors
    /// If it is not the next one of its subpartition.
    pub fn handle_record(&mut self, source: Source, subpartition: u32, record: &[u8]) -> Result<(), Verdict> {
        let key = (source, subpartition);
        let queue = self.queues.get_mut(&key).ok_or(Verdict::Unasked { queue: key })?;
        let place = Place {
            source,
            subpartition,
            sequence: queue.seen,
        };
        check(record, place, self.lengths.of(place), &mut self.scratch)?;
        queue.seen += 1;
        match queue.expected {
            Some(expected) if queue.seen > expected => {
                return Err(Verdict::Count {
                    queue: key,
                    seen: queue.seen,
                    expected,
                });
            }
            _ => {}
        }
        self.counts.records += 1;
        self.counts.bytes += u64::try_from(record.len()).unwrap_or(u64::MAX);
        Ok(())
    }

    /// The end has been announced.
    ///
    /// # Errors
    /// If a subpartition lacks records.
    pub fn handle_end(&self) -> Result<Counts, Verdict> {
        for (key, queue) in &self.queues {
            match queue.expected {
                Some(expected) if queue.seen != expected => {
                    return Err(Verdict::Count {
                        queue: *key,
                        seen: queue.seen,
                        expected,
                    });
                }
                _ => {}
            }
        }
        Ok(self.counts)
    }

    /// What has arrived so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::{Oracle, Verdict};
    use crate::stamp::{Lengths, Place, Source, fill};

    const SOURCE: Source = Source {
        job: 7,
        result: 11,
        partition: 13,
        attempt: 5,
    };

    fn record(sequence: u64) -> Vec<u8> {
        let mut record = vec![0; 60];
        fill(
            &mut record,
            Place {
                source: SOURCE,
                subpartition: 2,
                sequence,
            },
        );
        record
    }

    fn oracle() -> Oracle {
        let mut oracle = Oracle::new(Lengths::Fixed(60));
        oracle.expect(SOURCE, 2, 3);
        oracle
    }

    #[test]
    fn in_order_and_complete_is_right() {
        let mut oracle = oracle();
        for sequence in 0..3 {
            oracle.handle_record(SOURCE, 2, &record(sequence)).expect("right");
        }
        assert_eq!(oracle.handle_end().expect("complete").records, 3);
    }

    #[test]
    fn loss_repeat_and_reorder_are_seen() {
        let mut lost = oracle();
        lost.handle_record(SOURCE, 2, &record(0)).expect("right");
        assert!(lost.handle_record(SOURCE, 2, &record(2)).is_err(), "a record was lost");
        let mut repeated = oracle();
        repeated.handle_record(SOURCE, 2, &record(0)).expect("right");
        assert!(
            repeated.handle_record(SOURCE, 2, &record(0)).is_err(),
            "a record came twice"
        );
    }

    #[test]
    fn an_early_end_and_an_unasked_queue_are_seen() {
        let mut oracle = oracle();
        oracle.handle_record(SOURCE, 2, &record(0)).expect("right");
        assert!(matches!(
            oracle.handle_end(),
            Err(Verdict::Count {
                seen: 1,
                expected: 3,
                ..
            })
        ));
        let unasked = oracle.handle_record(SOURCE, 3, &record(0));
        assert!(matches!(unasked, Err(Verdict::Unasked { .. })));
    }
}
