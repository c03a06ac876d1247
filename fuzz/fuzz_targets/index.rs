//! Bytes of an index file: what can be read is written back as it was.
#![no_main]

use shuffle_server::spill::Index;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(index) = Index::decode(data) {
        assert_eq!(index.encode(), data);
    }
});
