//! The management server's own files, for the fuzz targets in `fuzz/` and for a short run in the ordinary tests.

/// Bytes as each file of the page index; as they are, and with checksums that hold.
pub fn page_index(data: &[u8]) {
    crate::page_index::fuzz(data);
    let mut summed = data.to_vec();
    summed.extend_from_slice(&webbase_storage::crc64(data).to_le_bytes());
    crate::page_index::fuzz(&summed);
    let mut blocks = Vec::new();
    for block in data.chunks(4096) {
        let mut content = block.to_vec();
        content.resize(4088, 0);
        blocks.extend_from_slice(&content);
        blocks.extend_from_slice(&webbase_storage::crc64(&content).to_le_bytes());
    }
    crate::page_index::fuzz(&blocks);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn arbitrary_bytes_harm_nobody(data in proptest::collection::vec(any::<u8>(), 0..400)) {
            page_index(&data);
        }

        #[test]
        fn damaged_files_harm_nobody(at in any::<usize>(), mask in any::<u8>(), cut in 0..60_usize) {
            for mut data in crate::page_index::fuzz_samples() {
                page_index(&data);
                let len = data.len();
                data[at % len] ^= mask;
                data.truncate(len - cut.min(len));
                page_index(&data);
            }
        }
    }
}
