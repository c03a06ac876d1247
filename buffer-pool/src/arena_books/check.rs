//! An arena's running numbers, recounted.

use super::ArenaBooks;
use crate::ids::{to_u32, to_usize};

impl ArenaBooks {
    /// Recounts everything that is kept as a running number.
    pub(crate) fn check_invariants(&self) {
        let (mut free, mut parked) = (0, 0);
        for (extent, used) in (0u32..).zip(&self.used) {
            let count =
                |counted: &dyn Fn(u32) -> bool| to_u32(self.slots_of(extent).filter(|&slot| counted(slot)).count());
            let out = count(&|slot| self.find_out(slot).is_some());
            let listed = count(&|slot| self.free.contains(slot));
            let drains = self.draining.contains(extent);
            let Some(used) = *used else {
                assert_eq!((out, listed), (0, 0), "absent extent {extent} has no buffers");
                assert!(self.absent.contains(&extent) && !self.empty.contains(extent) && !drains);
                continue;
            };
            assert_eq!(used, out, "used buffers of extent {extent}");
            assert_eq!(
                self.empty.contains(extent),
                used == 0 && !drains,
                "extent {extent} is listed as empty"
            );
            if drains {
                assert_eq!(listed, 0, "nothing of draining extent {extent} is granted");
                assert!(used > 0, "extent {extent} leaves as soon as it has drained");
                parked += self.extent_buffers - out;
            } else {
                assert_eq!(out + listed, self.extent_buffers, "extent {extent} is free or out");
            }
            free += listed;
        }
        assert_eq!(
            (free, parked),
            (self.free.len(), self.parked),
            "free and parked buffers"
        );
        assert_eq!(to_usize(free), self.free.iter().count(), "the free list is connected");
        assert!(!self.owes(), "unmet minimums are possession");
    }
}
