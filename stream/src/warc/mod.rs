//! WARC: the format in which the web-archive world hands pages over.
//!
//! ```text
//!   a file ─▶ Reader ─▶ WarcRecord ─▶ Importer ─▶ Capture ─▶ a repository's add
//!   a repository's stream ─▶ Record ─▶ Writer ─▶ one gzip member a record
//! ```
//!
//! Reading takes WARC/1.0 and 1.1 (and 0.17, 0.18, and ARC), plain, gzip or zstd, with bare line feeds, `<…>` around URLs,
//! missing or wrong digests; of damaged files it takes what is readable and says where the rest was. Writing makes WARC/1.1.
//!
//! A page that was imported and is written again has the same HTTP head and body, byte for byte, the same date to the
//! millisecond, and the same payload digest, as a SHA-1 (`digest.rs`).

mod ahead;
mod capture;
mod date;
mod digest;
mod head;
mod input;
mod lots;
mod members;
mod originals;
mod packed;
mod pool;
mod reader;
mod report;
pub mod stored;
mod unpack;
mod whole;
mod write;

pub use self::ahead::read_ahead;
pub use self::capture::{Capture, Find, Importer, Kept};
pub use self::head::{Head, Kind};
pub use self::originals::{Original, Originals};
pub use self::reader::{BLOCK_BYTES_MAX, Block, Damage, Item, Reader, WarcRecord};
pub use self::report::Report;
pub use self::unpack::Packing;
pub use self::write::{Form, Writer};

/// A longer block is a wrong length, not a block: 1 TiB.
const BLOCK_BYTES_BELIEVED: u64 = 1 << 40;

/// Reads anything, and checks what a reader promises: places go up, and nothing that was read is larger than its limit.
#[cfg(any(fuzzing, test))]
#[expect(clippy::expect_used, reason = "a promise that does not hold is what is looked for")]
pub fn fuzz(bytes: &[u8]) {
    const BLOCK_BYTES: u64 = 64 << 10;
    let mut reader = Reader::new(bytes).expect("memory can be read").with_block_bytes_max(BLOCK_BYTES);
    let mut importer = Importer::new(Originals::new(1 << 20));
    let mut last = 0;
    while let Some(item) = reader.next().expect("memory can be read") {
        let (offset, block) = match &item {
            Item::Damage(damage) => (damage.offset, 0),
            Item::Record(record) => match &record.block {
                Block::Whole(block) | Block::Damaged(block, _) => (record.offset, block.len() as u64),
                Block::TooLarge(_) => (record.offset, 0),
            },
        };
        assert!(offset >= last && offset <= bytes.len() as u64, "place {offset} behind {last}");
        assert!(block <= BLOCK_BYTES, "a block of {block} bytes");
        last = offset;
        importer.take(item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A file with records in it, in one of the forms.
    fn file(form: u8) -> Vec<u8> {
        let (mut writer, mut out) = (Writer::new(Form::Plain), Vec::new());
        let mut members = Vec::new();
        for n in 0..5_u8 {
            out.clear();
            writer.resource(&format!("http://h/{n}"), 1_700_000_000_000, "text/plain", &[n; 300], &mut out);
            members.push(match form {
                0 => out.clone(),
                1 => {
                    let mut packed = Vec::new();
                    Writer::new(Form::Gzip).resource(
                        &format!("http://h/{n}"),
                        0,
                        "a/b",
                        &[n; 300],
                        &mut packed,
                    );
                    packed
                }
                _ => zstd::bulk::compress(&out, 1).unwrap(),
            });
        }
        members.concat()
    }

    #[test]
    fn a_file_cut_anywhere_gives_the_records_before_the_cut() {
        for form in 0..3 {
            let whole = file(form);
            for len in 0..=whole.len() {
                let mut reader = Reader::new(&whole[..len]).unwrap();
                let (mut good, mut bad) = (0, 0);
                while let Some(item) = reader.next().unwrap() {
                    match item {
                        Item::Record(WarcRecord { block: Block::Whole(_), .. }) => good += 1,
                        _ => bad += 1,
                    }
                }
                assert!(good <= 5 && bad <= 1, "form {form}, {len} bytes: {good} records, {bad} damaged");
                let is_whole = len == whole.len();
                assert_eq!(
                    good == 5 && bad == 0,
                    is_whole || form == 0 && len + 4 >= whole.len(),
                    "form {form}, {len}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn files_that_are_spoilt_are_read_all_the_same(
            form in 0..3_u8,
            spoils in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        ) {
            let mut bytes = file(form);
            for (at, byte) in spoils {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            fuzz(&bytes);
        }

        #[test]
        fn rubbish_is_read_all_the_same(bytes in prop::collection::vec(any::<u8>(), 0..2000), start in 0..5_usize) {
            let starts: [&[u8]; 5] = [b"", b"WARC/1.0\r\n", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\x5d\x2a\x4d\x18"];
            fuzz(&[starts[start], &bytes].concat());
        }
    }
}
