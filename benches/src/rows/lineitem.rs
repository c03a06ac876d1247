//! Rows of the TPC-H table `lineitem`, as `|`-separated text without a line end, made part by part.
//!
//! Values come from `tpchgen`, row by row those of `dbgen`, except for the last column: comments are
//! cut from a text pool of 1 MiB and not of 300 MiB, so that a process is ready in milliseconds and
//! many of them fit on one machine. Lengths and words of the comments are distributed as in `dbgen`.

use std::sync::OnceLock;

use tpchgen::dates::{MIN_GENERATE_DATE, TOTAL_DATE_RANGE, TPCHDate};
use tpchgen::decimal::TPCHDecimal;
use tpchgen::distribution::Distributions;
use tpchgen::generators::{LineItem, LineItemGenerator, LineItemGeneratorIterator};
use tpchgen::text::TextPool;

/// One part of the table at one scale; all parts together are the whole table, each order once.
///
/// ```
/// use shuffle_bench::rows::LineitemPart;
///
/// let mut part = LineitemPart { scale: 0.01, part: 0, parts: 2 }.rows();
/// let row = part.next_row().expect("the table is not empty");
/// assert_eq!(row.order_key, 1);
/// assert!(row.text.starts_with(b"1|"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LineitemPart {
    /// TPC-H scale factor: 1 is about 6 million rows, 750 MB.
    pub scale: f64,
    /// Which part, `0 .. parts`.
    pub part: u16,
    /// Number of parts.
    pub parts: u16,
}

impl LineitemPart {
    /// The rows of this part, in the order of the table.
    pub fn rows(self) -> LineitemRows {
        let generator = LineItemGenerator::new_with_distributions_and_text_pool(
            self.scale,
            i32::from(self.part) + 1,
            i32::from(self.parts),
            Distributions::static_default(),
            text_pool(),
        );
        LineitemRows {
            items: generator.iter(),
            dates: dates(),
            text: Vec::with_capacity(256),
        }
    }
}

/// A lending iterator over the rows of a part: each row is valid until the next is made.
#[derive(Debug)]
pub struct LineitemRows {
    items: LineItemGeneratorIterator<'static>,
    dates: &'static [String],
    text: Vec<u8>,
}

/// One row.
#[derive(Debug, Clone, Copy)]
pub struct LineitemRow<'a> {
    /// Column `l_orderkey`.
    pub order_key: i64,
    /// All 16 columns, each followed by `|`.
    pub text: &'a [u8],
}

impl LineitemRows {
    /// Makes the next row, `None` after the last.
    pub fn next_row(&mut self) -> Option<LineitemRow<'_>> {
        let item = self.items.next()?;
        self.text.clear();
        self.format(&item);
        Some(LineitemRow {
            order_key: item.l_orderkey,
            text: &self.text,
        })
    }

    fn format(&mut self, item: &LineItem<'_>) {
        self.number(item.l_orderkey);
        self.number(item.l_partkey);
        self.number(item.l_suppkey);
        self.number(i64::from(item.l_linenumber));
        self.number(item.l_quantity);
        self.decimal(item.l_extendedprice);
        self.decimal(item.l_discount);
        self.decimal(item.l_tax);
        self.words(item.l_returnflag);
        self.words(item.l_linestatus);
        self.date(item.l_shipdate);
        self.date(item.l_commitdate);
        self.date(item.l_receiptdate);
        self.words(item.l_shipinstruct);
        self.words(item.l_shipmode);
        self.words(item.l_comment);
    }

    fn words(&mut self, words: &str) {
        self.text.extend_from_slice(words.as_bytes());
        self.text.push(b'|');
    }

    fn number(&mut self, number: i64) {
        self.digits(number.unsigned_abs());
        self.text.push(b'|');
    }

    fn decimal(&mut self, decimal: TPCHDecimal) {
        let cents = decimal.into_inner().unsigned_abs();
        self.digits(cents / 100);
        self.text.push(b'.');
        self.text.push(digit(cents / 10));
        self.text.push(digit(cents));
        self.text.push(b'|');
    }

    fn date(&mut self, date: TPCHDate) {
        let index = usize::try_from(date.into_inner()).expect("invariant: dates start at 0");
        self.words(&self.dates[index]);
    }

    /// Formats without the machinery of `core::fmt`, which would take longer than the shuffle.
    fn digits(&mut self, mut number: u64) {
        let mut buffer = [0_u8; 20];
        let mut start = buffer.len();
        loop {
            start -= 1;
            buffer[start] = digit(number);
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.text.extend_from_slice(&buffer[start..]);
    }
}

/// The last decimal digit of a number.
fn digit(number: u64) -> u8 {
    b'0' + u8::try_from(number % 10).expect("invariant: a digit is below 10")
}

/// About how many rows the table has at this scale: 1 500 000 orders with 1 to 7 rows each.
pub fn estimated_lineitem_rows(scale: f64) -> u64 {
    // Through the integer domain: scales have at most six digits after the point here.
    let millionths = format!("{:.0}", scale * 1_000_000.0);
    millionths.parse::<u64>().unwrap_or(0) * 6
}

fn text_pool() -> &'static TextPool {
    static POOL: OnceLock<TextPool> = OnceLock::new();
    POOL.get_or_init(|| TextPool::new(TEXT_POOL_BYTES, Distributions::static_default()))
}

fn dates() -> &'static [String] {
    static DATES: OnceLock<Vec<String>> = OnceLock::new();
    DATES.get_or_init(|| {
        (0..TOTAL_DATE_RANGE)
            .map(|day| TPCHDate::new(MIN_GENERATE_DATE + day).to_string())
            .collect()
    })
}

const TEXT_POOL_BYTES: i32 = 1 << 20;

#[cfg(test)]
mod tests {
    use tpchgen::distribution::Distributions;
    use tpchgen::generators::LineItemGenerator;

    use super::{LineitemPart, estimated_lineitem_rows, text_pool};
    use crate::rows::RowDigest;

    fn digest(part: LineitemPart) -> RowDigest {
        let mut digest = RowDigest::default();
        let mut rows = part.rows();
        while let Some(row) = rows.next_row() {
            digest.add(row.text);
        }
        digest
    }

    #[test]
    fn the_parts_add_up_to_the_whole() {
        let scale = 0.003;
        let whole = digest(LineitemPart {
            scale,
            part: 0,
            parts: 1,
        });
        assert!(whole.rows > 17_000 && whole.rows < 19_000, "{whole:?}");
        for parts in [2, 4, 7] {
            let mut sum = RowDigest::default();
            for part in 0..parts {
                sum.merge(&digest(LineitemPart { scale, part, parts }));
            }
            assert_eq!(whole, sum, "{parts} parts");
        }
    }

    #[test]
    fn more_parts_than_orders_leave_some_empty() {
        let scale = 0.001;
        let parts = 2_000;
        let first = digest(LineitemPart { scale, part: 0, parts });
        let last = digest(LineitemPart {
            scale,
            part: parts - 1,
            parts,
        });
        assert_eq!(first.rows, 0);
        assert!(last.rows > 5_000);
    }

    #[test]
    fn rows_read_as_tpch_writes_them() {
        let distributions = Distributions::static_default();
        let items = LineItemGenerator::new_with_distributions_and_text_pool(0.01, 1, 1, distributions, text_pool());
        let mut rows = LineitemPart {
            scale: 0.01,
            part: 0,
            parts: 1,
        }
        .rows();
        for item in items.iter().take(20_000) {
            let row = rows.next_row().expect("as many rows as items");
            assert_eq!(row.order_key, item.l_orderkey);
            assert_eq!(
                String::from_utf8_lossy(row.text),
                item.to_string(),
                "own formatting differs"
            );
        }
    }

    #[test]
    fn the_estimate_is_near() {
        assert_eq!(estimated_lineitem_rows(1.0), 6_000_000);
        assert_eq!(estimated_lineitem_rows(0.1), 600_000);
    }
}
