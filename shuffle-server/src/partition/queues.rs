//! The queues of a partition's subpartitions, in pages. A page is made with the first buffer of any of its subpartitions, so
//! a partition that nobody has written to costs a quarter of a byte for each.

use super::Queue;

/// Subpartitions of a page.
const PAGE: usize = 64;

#[derive(Debug)]
pub(super) struct Queues {
    count: u32,
    pages: Vec<Option<Box<[Queue]>>>,
}

impl Queues {
    pub(super) fn new(count: u32) -> Self {
        let mut pages = Vec::new();
        pages.resize_with((count as usize).div_ceil(PAGE), || None);
        Self { count, pages }
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// The queue of a subpartition, where its page is there.
    pub(super) fn get(&self, index: u32) -> Option<&Queue> {
        let index = index as usize;
        self.pages.get(index / PAGE)?.as_ref()?.get(index % PAGE)
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Queue> {
        let index = index as usize;
        self.pages.get_mut(index / PAGE)?.as_mut()?.get_mut(index % PAGE)
    }

    /// The queue of a subpartition that there is; with its page, if that was not there.
    pub(super) fn get_or_make(&mut self, index: u32) -> Option<&mut Queue> {
        let (index, count) = (index as usize, self.count as usize);
        let page = self.pages.get_mut(index / PAGE)?;
        let page = page.get_or_insert_with(|| {
            let first = index - index % PAGE;
            (first..count.min(first + PAGE)).map(|_| Queue::default()).collect()
        });
        page.get_mut(index % PAGE)
    }

    /// Those that have had a buffer, in order.
    pub(super) fn used(&self) -> impl Iterator<Item = (u32, &Queue)> {
        let pages = (0u32..).step_by(PAGE).zip(&self.pages);
        let all = pages.flat_map(|(first, page)| (first..).zip(page.iter().flat_map(|page| page.iter())));
        all.filter(|(_, queue)| queue.handed_over() > 0)
    }

    /// Bytes that they take, without what waits in them.
    pub(super) fn book_bytes(&self) -> u64 {
        let pages = self.pages.iter().flatten().map(|page| size_of_val(&**page));
        (pages.sum::<usize>() + size_of_val(&*self.pages)) as u64
    }
}
