//! The buffers that wait in a subpartition. Of 100 000 subpartitions most have none, and many have one: then there is no queue.

use std::collections::VecDeque;

use super::Buffered;

#[derive(Debug, Default)]
pub(super) enum Waiting {
    #[default]
    Nothing,
    One(Box<Buffered>),
    #[expect(
        clippy::box_collection,
        reason = "a word in place of four, of very many that are empty"
    )]
    Many(Box<VecDeque<Buffered>>),
}

impl Waiting {
    /// `keeps_room`: what comes next finds the room of what was there.
    pub(super) fn push_back(&mut self, buffer: Buffered, keeps_room: bool) {
        match self {
            Self::Nothing if keeps_room => *self = Self::Many(Box::new(VecDeque::from([buffer]))),
            Self::Nothing => *self = Self::One(Box::new(buffer)),
            Self::One(first) => *self = Self::Many(Box::new(VecDeque::from([**first, buffer]))),
            Self::Many(buffers) => buffers.push_back(buffer),
        }
    }

    pub(super) fn pop_front(&mut self, keeps_room: bool) -> Option<Buffered> {
        match self {
            Self::Nothing => None,
            Self::One(first) => {
                let first = **first;
                *self = Self::Nothing;
                Some(first)
            }
            Self::Many(buffers) => {
                let first = buffers.pop_front();
                if buffers.is_empty() && !keeps_room {
                    *self = Self::Nothing;
                }
                first
            }
        }
    }

    pub(super) fn get(&self, index: usize) -> Option<&Buffered> {
        match self {
            Self::Nothing => None,
            Self::One(first) => (index == 0).then_some(&**first),
            Self::Many(buffers) => buffers.get(index),
        }
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Buffered> {
        match self {
            Self::Nothing => None,
            Self::One(first) => (index == 0).then_some(&mut **first),
            Self::Many(buffers) => buffers.get_mut(index),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::One(_) => 1,
            Self::Many(buffers) => buffers.len(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Buffered> {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}
