//! Parts of user events into events. Pure.

use bytes::{Bytes, BytesMut};

use super::record::RecordError;

/// Where the events of one subpartition stand between two buffers.
#[derive(Debug, Default)]
pub(crate) struct EventAssembly {
    parts: Option<BytesMut>,
}

impl EventAssembly {
    /// Whether parts have come, and the last has not.
    pub(crate) fn is_under_way(&self) -> bool {
        self.parts.is_some()
    }

    /// Adds a part; the whole event, if it was the last. An event in one part stays where it is.
    pub(crate) fn handle_part(
        &mut self,
        part: Bytes,
        continues: bool,
        max_bytes: u64,
    ) -> Result<Option<Bytes>, RecordError> {
        let before = self.parts.as_ref().map_or(0, BytesMut::len);
        let bytes = u64::try_from(before + part.len()).unwrap_or(u64::MAX);
        if bytes > max_bytes {
            return Err(RecordError::TooLarge { bytes, max_bytes });
        }
        if before == 0 && !continues && self.parts.is_none() {
            return Ok(Some(part));
        }
        self.parts.get_or_insert_default().extend_from_slice(&part);
        Ok(if continues {
            None
        } else {
            self.parts.take().map(BytesMut::freeze)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_part_is_a_view_and_many_are_joined() {
        let mut assembly = EventAssembly::default();
        let part = Bytes::from_static(b"whole");
        let event = assembly.handle_part(part.clone(), false, 100).unwrap().unwrap();
        assert_eq!(event.as_ptr(), part.as_ptr());
        assert_eq!(assembly.handle_part(Bytes::from_static(b"ha"), true, 100), Ok(None));
        assert!(assembly.is_under_way());
        assert_eq!(assembly.handle_part(Bytes::new(), true, 100), Ok(None));
        let event = assembly.handle_part(Bytes::from_static(b"lf"), false, 100).unwrap();
        assert_eq!(event.as_deref(), Some(&b"half"[..]));
        assert!(!assembly.is_under_way());
    }

    #[test]
    fn an_event_beyond_the_limit_is_refused_before_it_is_kept() {
        let mut assembly = EventAssembly::default();
        assert_eq!(assembly.handle_part(Bytes::from_static(b"abc"), true, 5), Ok(None));
        let error = assembly.handle_part(Bytes::from_static(b"def"), true, 5).unwrap_err();
        assert_eq!(error, RecordError::TooLarge { bytes: 6, max_bytes: 5 });
    }
}
