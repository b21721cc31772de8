//! Everything here that parses foreign bytes, for the fuzz targets in `fuzz/` and for a short run in the ordinary tests.

use bytes::Bytes;

use crate::wire::frame::{HEADER_BYTES, Header, Kind};
use crate::wire::message::{self, BatchAnswer, ChunkHead, Fault, Hello, Missing, Request, Welcome};
use crate::wire::pages::take_page;
use crate::wire::records::{take_unverified, take_verified};

/// Bytes as a sequence of frames, and each payload as whatever such a frame may hold.
pub fn frames(data: &[u8]) {
    let mut rest = data;
    while let Some((start, after)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let Ok(header) = Header::decode(start) else { break };
        assert!(header.length <= header.kind.bytes_max());
        assert_eq!(header.encode(), *start);
        let Some(body) = after.get(..header.rest_bytes()) else { break };
        if let Ok(payload) = header.payload(body) {
            parse(header.kind, payload);
        }
        rest = after.get(header.rest_bytes()..).unwrap_or_default();
    }
    // A fuzzer does not find checksums: the same bytes without them.
    if let Some((kind, payload)) = data.split_first() {
        let kinds = [Kind::Hello, Kind::Welcome, Kind::Open, Kind::Data, Kind::Error];
        kinds.get(usize::from(*kind) % kinds.len()).into_iter().for_each(|kind| parse(*kind, payload));
    }
}

fn parse(kind: Kind, payload: &[u8]) {
    match kind {
        Kind::Hello | Kind::Welcome => {
            if let Some((_, _, message)) = message::decode_hello(payload) {
                let _ = (message::decode::<Hello>(message), message::decode::<Welcome>(message));
            }
        }
        Kind::Open => {
            if let Ok(request) = message::decode::<Request>(payload) {
                assert_eq!(message::decode(&message::encode(&request)), Ok(request));
            }
        }
        Kind::Error => {
            let _ = message::decode::<Fault>(payload);
        }
        _ => {
            let _ = (message::decode::<ChunkHead>(payload), message::decode::<Missing>(payload));
            let _ = message::decode::<BatchAnswer>(payload);
            control_messages(payload);
            let mut pages = payload;
            while take_page(&mut pages).is_ok() {}
            let mut records = Bytes::copy_from_slice(payload);
            while take_verified(&mut records).is_some() {}
            let mut records = Bytes::copy_from_slice(payload);
            while take_unverified(&mut records).is_some() {}
        }
    }
}

/// What is said in control calls.
fn control_messages(payload: &[u8]) {
    use crate::link::{ManagementSays, NodeSays};
    use crate::plan::{Ask, Told};
    if let Ok(ask) = message::decode::<Ask>(payload) {
        assert_eq!(message::decode(&message::encode(&ask)), Ok(ask));
    }
    if let Ok(says) = message::decode::<NodeSays>(payload) {
        assert_eq!(message::decode(&message::encode(&says)), Ok(says));
    }
    let _ = (message::decode::<ManagementSays>(payload), message::decode::<Told>(payload));
}

/// Bytes as what a node keeps in small files (its own, tombstones, runs), as tombstones of another node, and as the cursor of
/// a repository's stream; as they are, and with a checksum that holds.
pub fn node_files(data: &[u8]) {
    let mut summed = data.to_vec();
    summed.extend_from_slice(&webbase_storage::crc64(data).to_le_bytes());
    for bytes in [data, &summed] {
        crate::host::fuzz_files(bytes);
        for prefix in ["w1", "w2"] {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            if let Ok(cursor) = format!("{prefix}{hex}").parse::<crate::StreamCursor>() {
                assert_eq!(cursor.to_string().parse::<crate::StreamCursor>().ok(), Some(cursor));
            }
        }
    }
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = text.parse::<crate::StreamCursor>();
    }
}

/// Bytes as a table of importance; as they are, and with checksums that hold.
pub fn importance(data: &[u8]) {
    crate::importance::fuzz(data);
    let mut summed = Vec::new();
    for block in data.chunks(4096) {
        let (content, _) = block.split_at(block.len().min(4088));
        summed.extend_from_slice(content);
        summed.extend_from_slice(&webbase_storage::crc64(content).to_le_bytes());
    }
    crate::importance::fuzz(&summed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn arbitrary_bytes_harm_nobody(data in proptest::collection::vec(any::<u8>(), 0..400)) {
            frames(&data);
            node_files(&data);
            importance(&data);
        }

        #[test]
        fn damaged_tables_of_importance_harm_nobody(at in any::<usize>(), mask in any::<u8>(), pages in 0..500_u64) {
            let mut data = crate::importance::fuzz_sample(pages);
            let len = data.len();
            importance(&data);
            data[at % len] ^= mask;
            importance(&data);
            data.truncate(at % len);
            importance(&data);
        }

        #[test]
        fn damaged_files_harm_nobody(at in any::<usize>(), mask in any::<u8>(), cut in 0..60_usize) {
            for mut data in crate::host::fuzz_samples() {
                let len = data.len();
                data[at % len] ^= mask;
                data.truncate(len - cut.min(len));
                node_files(&data);
            }
        }

        #[test]
        fn damaged_frames_harm_nobody(at in any::<usize>(), mask in any::<u8>(), cut in 0..60_usize) {
            let mut data = Vec::new();
            for request in [Request::Ping, Request::Control { topic: "t".into() }, Request::Compact { budget_bytes: 9 }] {
                let payload = message::encode(&request);
                Header::new(Kind::Open, 1, payload.len()).write(&payload, &mut data);
            }
            let len = data.len();
            data[at % len] ^= mask;
            data.truncate(len - cut.min(len));
            frames(&data);
        }
    }
}
