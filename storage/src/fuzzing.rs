//! Everything that parses foreign bytes, one function each, for the fuzz targets in `fuzz/` and for a short run with
//! random bytes in the ordinary tests. A function panics when bytes get through that should not.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::disk::{Disk, SimDisk};
use crate::{Codec, Cursor, Dictionaries, RecordRef, Trust, catalog, index, log, ranges, surt, url};

/// A target: its name and what it does with bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 11] = [
    ("record", record),
    ("cursor", cursor),
    ("url", canonical_url),
    ("unpack", unpack),
    ("index", index_run),
    ("catalog", catalog_trailer),
    ("manifest", manifest),
    ("leaf", leaf),
    ("segment", segment),
    ("url_rows", url_rows),
    ("store_files", store_files),
];

/// Bytes as a record: what parses is exactly as long as it says, and its fields are inside it.
pub fn record(data: &[u8]) {
    let _ = RecordRef::parse_unverified(data)
        .map(|r| (r.url().len(), r.head(&Dictionaries::default()).is_ok(), r.stored_body().len(), r.crc()));
    let _ = RecordRef::parse_unverified(data).map(|r| (r.payload_digest(), r.head_len()));
    if let Ok(r) = RecordRef::parse(data) {
        let mut out = Vec::new();
        let _ = r.unpack_into(&Dictionaries::default(), &mut out);
        assert!(r.as_bytes().len() <= data.len());
        let digest = r.payload_digest().map_or(0, |digest| digest.len());
        let fields = r.url().len() + r.mime().len() + digest + r.stored_body().len();
        assert!(crate::RECORD_BYTES_MIN + fields <= r.as_bytes().len());
        if let Ok(head) = r.head(&Dictionaries::default()) {
            assert_eq!(head.len(), r.head_len());
        }
        assert_eq!(crate::record_len(data), Ok(r.as_bytes().len() as u64));
    }
}

/// Bytes as a cursor: what parses prints as something that parses to the same.
pub fn cursor(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(cursor) = text.parse::<Cursor>() {
        assert_eq!(cursor.to_string().parse::<Cursor>().ok(), Some(cursor));
    }
}

/// Bytes as a URL: the canonical form is bounded and free of blanks and controls, and so is the SURT key, which every
/// page has.
pub fn canonical_url(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(form) = url::canonical(text) {
        assert!(!form.is_empty() && form.len() <= url::URL_BYTES_MAX);
        assert!(!form.bytes().any(|b| b < b' '), "{text:?} gave {form:?}");
        for profile in surt::Profile::ALL {
            let key = profile.key(text);
            let printable = |key: &String| key.bytes().all(|b| (0x21..0x7f).contains(&b));
            assert!(key.as_ref().is_ok_and(printable), "{text:?} gave {key:?}");
        }
    }
}

/// Bytes as a packed body: unpacking ends, and gives what was promised or an error.
pub fn unpack(data: &[u8]) {
    let known = Dictionaries::default();
    for codec in [Codec::Plain, Codec::Lz4, Codec::Zstd, Codec::Deflate] {
        let mut out = Vec::new();
        if known.unpack(codec, 0, data, 4096, &mut out).is_ok() {
            assert_eq!(out.len(), 4096);
        }
    }
}

/// Bytes as an index run: what is accepted can be searched.
pub fn index_run(data: &[u8]) {
    if let Ok(run) = index::Run::decode(data) {
        assert_eq!(run.iter().count(), run.len());
        run.find(crate::PageId(u64::MAX), |_| false);
    }
}

/// Bytes as a catalog's trailer and places.
pub fn catalog_trailer(data: &[u8]) {
    let (head, tail) = data.split_at(data.len().min(catalog::TRAILER_BYTES));
    if let Ok(sealed) = catalog::Sealed::decode(head, data.len() as u64) {
        let _ = sealed.decode_places(tail);
    }
}

/// Bytes as a manifest, as dead bitmaps, as a kept generation, and as a frame of a directory.
pub fn manifest(data: &[u8]) {
    if let Ok(manifest) = log::manifest::Manifest::decode(data) {
        assert_eq!(log::manifest::Manifest::decode(&manifest.encode()), Ok(manifest));
    }
    let _ = log::manifest::decode_dead(data);
    let _ = log::generations::Generation::decode(data);
    let _ = ranges::directory::decode_frame(data);
}

/// Bytes as a bucket or a small log: pages come out in order of their keys.
pub fn leaf(data: &[u8]) {
    for verify in [false, true] {
        let leaf = ranges::leaf::decode(&Bytes::copy_from_slice(data).into(), verify);
        assert!(leaf.items.is_sorted_by(|(a, _), (b, _)| a <= b));
    }
}

/// Bytes as the records of a segment that has lost its catalog: what is found lies inside and in order.
pub fn segment(data: &[u8]) {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let Ok(file) = disk.open(Path::new("/segment"), true) else { return };
    let start = log::segment::RECORDS_OFFSET;
    let _ = file.write_all_at(data, start);
    let end = start + data.len() as u64;
    for durable in [start, end] {
        let Ok(scan) = log::scan::scan(&*file, durable, end) else { continue };
        assert!(scan.places.offsets.is_sorted() && scan.end <= end);
        assert_eq!(scan.places.offsets.len(), scan.places.rows.len() + 1);
        let segment = log::segment::Segment::open(&disk, file.clone(), 1, 0, scan.places, 0);
        for position in 0..segment.count() {
            let _ = segment.read(position, Trust::Verify);
        }
    }
}

/// Bytes as rows of the URL index: what is read can be written and read again. Also as the index of a run.
pub fn url_rows(data: &[u8]) {
    if let Ok(rows) = crate::urls::decode_rows(data)
        && let Ok(again) = crate::urls::encode_rows(&rows)
    {
        assert_eq!(crate::urls::decode_rows(&again), Ok(rows));
    }
    crate::urls::fuzz_index(data);
}

/// Bytes as the small files of a store: its name, deadlines, a journal; as they are, and with a checksum that holds.
pub fn store_files(data: &[u8]) {
    let disk = SimDisk::new();
    let dir = Path::new("/store");
    let put = |name: &str, content: &[u8]| {
        let _ = crate::disk::replace_file(&disk, &dir.join(name), content);
    };
    let mut summed = data.to_vec();
    summed.extend_from_slice(&crate::crc64(data).to_le_bytes());
    for content in [data, &summed] {
        put("STORE", content);
        put("deadlines-1", content);
        put("journal-1", content);
        let _ = crate::identity::Identity::read(&disk, dir);
        log::fuzz_deadlines(&disk, dir);
        ranges::fuzz_journal(&disk, dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, PageKey, record};
    use proptest::prelude::*;

    /// Two records and a mark, as they lie on disk.
    fn sample() -> Vec<u8> {
        let mut out = Vec::new();
        let page = crate::Page {
            url: "http://h/",
            body: b"some body",
            head: b"HTTP/1.1 200 OK\r\n\r\n",
            ..crate::Page::default()
        };
        record::encode(&page, PageKey::MIN, (Codec::Plain, 0, [page.body, &[]]), None, &mut out).unwrap();
        record::encode_mark(Kind::Seen, PageKey::MIN, 7, 9, &mut out);
        let page = crate::Page { payload_digest: Some([7; 20]), ..page };
        record::encode(&page, PageKey::MAX, (Codec::Plain, 0, [page.body, &[]]), None, &mut out).unwrap();
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn random_bytes_harm_nobody(data in proptest::collection::vec(any::<u8>(), 0..600)) {
            TARGETS.iter().for_each(|(_, target)| target(&data));
        }

        #[test]
        fn damaged_records_harm_nobody(at in 0..400_usize, mask in 1..=255_u8, cut in 0..400_usize, swap in any::<bool>()) {
            let mut data = sample();
            let len = data.len();
            data[at % len] ^= mask;
            data.truncate(len.saturating_sub(cut % 50));
            if swap {
                data.rotate_left(cut % 90);
            }
            TARGETS.iter().for_each(|(_, target)| target(&data));
        }
    }
}
