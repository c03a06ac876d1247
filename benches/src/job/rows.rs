//! The rows that stages pass on, and what is to come out.

use std::collections::BTreeMap;

use crate::rows::LineitemPart;

/// `l_partkey` and `l_suppkey`.
pub(crate) type Key = (u32, u32);

/// One row of lineitem, as far as it is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LineRow {
    pub(crate) key: Key,
    pub(crate) sums: Sums,
}

/// Sums over rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Extended price after discount, in hundredths of cents.
    pub(crate) revenue: u64,
    pub(crate) quantity: u64,
    pub(crate) rows: u64,
}

/// A row on its way: part, supplier, revenue, quantity, rows.
pub(crate) const ROW_BYTES: usize = 4 + 4 + 8 + 8 + 8;

impl Sums {
    pub(crate) fn add(&mut self, other: &Self) {
        self.revenue += other.revenue;
        self.quantity += other.quantity;
        self.rows += other.rows;
    }
}

impl LineRow {
    /// From the text of a row; `None` if it is none.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let mut columns = text
            .split(|byte| *byte == b'|')
            .map(|column| std::str::from_utf8(column).ok());
        let mut number = |at: usize| -> Option<u64> { hundredths(columns.nth(at)??) };
        let (part, supplier) = (number(1)? / 100, number(0)? / 100);
        let (quantity, price, discount) = (number(1)? / 100, number(0)?, number(0)?);
        Some(Self {
            key: (u32::try_from(part).ok()?, u32::try_from(supplier).ok()?),
            sums: Sums {
                revenue: price * 100_u64.checked_sub(discount)?,
                quantity,
                rows: 1,
            },
        })
    }

    pub(crate) fn encode(&self) -> [u8; ROW_BYTES] {
        let mut bytes = [0; ROW_BYTES];
        bytes[..4].copy_from_slice(&self.key.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.key.1.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sums.revenue.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sums.quantity.to_le_bytes());
        bytes[24..].copy_from_slice(&self.sums.rows.to_le_bytes());
        bytes
    }

    /// `None`: it has another length.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ROW_BYTES] = bytes.try_into().ok()?;
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let whole = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        Some(Self {
            key: (half(0), half(4)),
            sums: Sums {
                revenue: whole(8),
                quantity: whole(16),
                rows: whole(24),
            },
        })
    }

    /// Its key as it is hashed.
    pub(crate) fn key_bytes(&self) -> [u8; 8] {
        let encoded = self.encode();
        std::array::from_fn(|at| encoded[at])
    }

    /// A line of a result.
    pub(crate) fn line(&self) -> String {
        let ((part, supplier), sums) = (self.key, &self.sums);
        format!("{}|{part}|{supplier}|{}|{}\n", sums.revenue, sums.quantity, sums.rows)
    }

    /// The order of the sorted result.
    pub(crate) fn rank(&self) -> (u64, Key) {
        (self.sums.revenue, self.key)
    }
}

/// The subpartition of a revenue: ranges of equal width, the last without an end.
pub(crate) fn range_of(revenue: u64, subpartitions: u32) -> u32 {
    /// Few parts of one supplier bring in more.
    const SPAN: u64 = 8_000_000_000;
    let at = revenue.min(SPAN) * u64::from(subpartitions) / SPAN;
    u32::try_from(at).unwrap_or(u32::MAX).min(subpartitions - 1)
}

/// What has to come out: the same sums, made in one go.
pub(crate) fn expected(scale: f64) -> BTreeMap<Key, Sums> {
    let mut rows = LineitemPart {
        scale,
        part: 0,
        parts: 1,
    }
    .rows();
    let mut sums: BTreeMap<Key, Sums> = BTreeMap::new();
    while let Some(row) = rows.next_row() {
        let row = LineRow::parse(row.text).expect("invariant: a row of lineitem");
        sums.entry(row.key).or_default().add(&row.sums);
    }
    sums
}

/// A number with at most two digits behind the point, in hundredths.
fn hundredths(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let part: u64 = match part.len() {
        0 => 0,
        1 => part.parse::<u64>().ok()? * 10,
        2 => part.parse().ok()?,
        _ => return None,
    };
    whole.parse::<u64>().ok()?.checked_mul(100)?.checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::{LineRow, Sums, expected, range_of};

    #[test]
    fn a_row_is_read_and_passed_on_as_it_is() {
        let text =
            b"1|1552|93|1|17|24710.35|0.04|0.02|N|O|1996-03-13|1996-02-12|1996-03-22|DELIVER IN PERSON|TRUCK|egular|";
        let row = LineRow::parse(text).expect("a row");
        assert_eq!(row.key, (1552, 93));
        let sums = Sums {
            revenue: 2_471_035 * 96,
            quantity: 17,
            rows: 1,
        };
        assert_eq!(row.sums, sums);
        assert_eq!(LineRow::decode(&row.encode()), Some(row));
        assert_eq!(LineRow::decode(&[0; 31]), None);
        assert_eq!(LineRow::parse(b"1|x|"), None);
    }

    #[test]
    fn ranges_rise_with_revenues() {
        let revenues = [
            0,
            1,
            124_999_999,
            125_000_000,
            4_000_000_000,
            7_999_999_999,
            9_000_000_000,
        ];
        let ranges = revenues.map(|revenue| range_of(revenue, 64));
        assert_eq!(ranges, [0, 0, 0, 1, 32, 63, 63]);
    }

    #[test]
    fn what_is_expected_holds_every_row() {
        let sums = expected(0.001);
        let rows: u64 = sums.values().map(|sums| sums.rows).sum();
        assert_eq!(rows, 6005);
    }
}
