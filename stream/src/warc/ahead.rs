//! Reading a file on several threads: some unpack and find records, another makes captures of them.
//!
//! ```text
//!   gzip         file ─▶ thread: lots in their order ─▶ some records at a time ─▶ here: Importer ─▶ captures
//!                             └▶ workers: WholeMembers or Reader, digests (members.rs)
//!   plain, zstd  file ─▶ thread: Reader ─▶ some records at a time ─▶ here: Importer (digests, too) ─▶ captures
//! ```
//!
//! Unpacking and hashing take most of the time of an import that is not packing or storing. Records come in their order: a
//! revisit may refer to any capture before it.

use std::io::{self, Read};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use super::capture::{Capture, Importer};
use super::members::{Found, Members, Work, work};
use super::pool::Pool;
use super::reader::{Block, Item, Reader};
use super::unpack::is_gzip;

/// Records that are handed over at once: bytes and number.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_ITEMS: usize = 256;
/// Batches that wait.
const BATCHES: usize = 4;
/// More threads than these read no faster than one file is taken.
const WORKERS_MAX: usize = 4;

/// Reads a file to its end, or until `take` fails, and hands each capture to `take`; says how many bytes were read. What goes
/// wrong with the file is in the importer's report.
pub fn read_ahead<E>(
    source: impl Read + Send,
    importer: &mut Importer,
    mut take: impl FnMut(Capture) -> Result<(), E>,
) -> (u64, Result<(), E>) {
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(WORKERS_MAX);
    let (lots, given): (Sender<Work>, _) = channel();
    let (given, pool) = (Mutex::new(given), Pool::default());
    std::thread::scope(|scope| {
        let (sender, batches): (_, Receiver<Vec<Found>>) = sync_channel(BATCHES);
        for _ in 0..workers {
            scope.spawn(|| work(&given, &pool));
        }
        let reading = scope.spawn(|| read(source, (lots, workers), &pool, Batches::new(sender)));
        let found = batches.iter().flatten();
        let mut captures = found.filter_map(|found| importer.take_found(found));
        let taken = captures.try_for_each(&mut take);
        // The reader ends when it notices that nobody takes its records, and the workers with it.
        drop(batches);
        let (offset, outcome) = match reading.join() {
            Ok(read) => read,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        if let Err(e) = outcome {
            importer.broke_off(offset, format!("the file cannot be read on: {e}"));
        }
        (offset, taken)
    })
}

/// Reads to the end, or until nobody takes any more; says how far that was.
fn read(
    mut source: impl Read,
    (lots, workers): (Sender<Work>, usize),
    pool: &Pool,
    mut batches: Batches,
) -> (u64, io::Result<()>) {
    let start = match start(&mut source) {
        Ok(start) => start,
        Err(e) => return (0, Err(e)),
    };
    let is_cut = is_gzip(&start);
    let source = io::Cursor::new(start).chain(source);
    if is_cut {
        let mut members = Members::new(source, (lots, 2 * workers), pool.clone());
        let outcome = batches.fill(|| members.next());
        return (members.offset(), outcome);
    }
    // There is no work for workers.
    drop(lots);
    let mut reader = match Reader::new(source) {
        Ok(reader) => reader,
        Err(e) => return (0, Err(e)),
    };
    let outcome = batches.fill(|| Ok(reader.next()?.map(|item| [Found::from(item)])));
    (reader.offset(), outcome)
}

/// The first bytes, as many as tell how a file is packed.
fn start(source: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    source.take(4).read_to_end(&mut start)?;
    Ok(start)
}

/// Hands over what was found, some at once.
struct Batches {
    sender: SyncSender<Vec<Found>>,
    batch: Vec<Found>,
    bytes: usize,
}

impl Batches {
    fn new(sender: SyncSender<Vec<Found>>) -> Batches {
        Batches { sender, batch: Vec::new(), bytes: 0 }
    }

    /// Hands over all that comes, or as much as is taken.
    fn fill<I: IntoIterator<Item = Found>>(
        &mut self,
        mut next: impl FnMut() -> io::Result<Option<I>>,
    ) -> io::Result<()> {
        loop {
            let some = next();
            let Ok(Some(found)) = some else {
                self.flush();
                return some.map(|_| ());
            };
            if !self.push(found) {
                return Ok(());
            }
        }
    }

    /// Takes some more; false when nobody takes any more from here.
    fn push(&mut self, found: impl IntoIterator<Item = Found>) -> bool {
        for found in found {
            self.bytes += item_bytes(&found.item);
            self.batch.push(found);
            let is_full = self.bytes >= BATCH_BYTES || self.batch.len() >= BATCH_ITEMS;
            if is_full && !self.flush() {
                return false;
            }
        }
        true
    }

    fn flush(&mut self) -> bool {
        self.bytes = 0;
        self.sender.send(std::mem::take(&mut self.batch)).is_ok()
    }
}

fn item_bytes(item: &Item) -> usize {
    match item {
        Item::Record(record) => match &record.block {
            Block::Whole(block) | Block::Damaged(block, _) => block.len(),
            Block::TooLarge(_) => 0,
        },
        Item::Damage(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::warc::lots::{self, tests::members};
    use crate::warc::{Form, Originals, Report, Writer};

    fn file(records: u32) -> Vec<u8> {
        let (mut writer, mut out) = (Writer::new(Form::Gzip), Vec::new());
        for n in 0..records {
            let body = n.to_le_bytes().repeat(5000);
            writer.resource(&format!("http://h/{n}"), 1_700_000_000_000, "text/plain", &body, &mut out);
        }
        out
    }

    #[test]
    fn captures_come_in_their_order_and_damage_is_told() {
        let mut bytes = file(300);
        let whole = bytes.len() as u64;
        let mut importer = Importer::new(Originals::new(1 << 20));
        let mut urls = Vec::new();
        let read = read_ahead(&bytes[..], &mut importer, |capture| {
            urls.push(capture.url);
            Ok::<_, ()>(())
        });
        assert_eq!(read, (whole, Ok(())));
        assert_eq!(urls, (0..300).map(|n| format!("http://h/{n}")).collect::<Vec<_>>());
        assert!(importer.finish(whole).damage.is_empty());

        bytes.truncate(bytes.len() - 3);
        let mut importer = Importer::new(Originals::new(1 << 20));
        let mut captures = 0;
        let read = read_ahead(&bytes[..], &mut importer, |_| {
            captures += 1;
            Ok::<_, ()>(())
        });
        assert_eq!((read, importer.finish(0).damage.len()), ((whole - 3, Ok(())), 1));
        assert!(captures >= 299);
    }

    #[test]
    fn who_takes_no_more_ends_it() {
        let bytes = file(3000);
        let mut importer = Importer::new(Originals::new(1 << 20));
        let mut left = 5;
        let read = read_ahead(&bytes[..], &mut importer, |_| {
            left -= 1;
            if left == 0 { Err("enough") } else { Ok(()) }
        });
        assert_eq!(read.1, Err("enough"));
        assert!(read.0 > 0 && read.0 < bytes.len() as u64);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_told() {
        struct Breaks(usize);
        impl Read for Breaks {
            fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
                let all = file(2);
                if self.0 == all.len() {
                    return Err(io::Error::other("the disk is gone"));
                }
                let some = out.len().min(all.len() - self.0);
                out[..some].copy_from_slice(&all[self.0..self.0 + some]);
                self.0 += some;
                Ok(some)
            }
        }
        let mut importer = Importer::new(Originals::new(1 << 20));
        let mut captures = 0;
        let read = read_ahead(Breaks(0), &mut importer, |_| {
            captures += 1;
            Ok::<_, ()>(())
        });
        assert_eq!(read.1, Ok(()));
        let report = importer.finish(0);
        assert!(report.damage[0].what.contains("the disk is gone"), "{report:?}");
        assert_eq!(captures, 2);
    }

    /// What is imported of a file, by one reader or by all threads: URLs and digests, the report, and how far it was read.
    fn imported(bytes: &[u8], is_ahead: bool) -> (Vec<(String, [u8; 20])>, Report) {
        let mut importer = Importer::new(Originals::new(1 << 20));
        let mut captures = Vec::new();
        if is_ahead {
            let (read, _) = read_ahead(bytes, &mut importer, |capture| {
                captures.push((capture.url, capture.payload_digest));
                Ok::<_, ()>(())
            });
            return (captures, importer.finish(read));
        }
        let mut reader = Reader::new(bytes).unwrap();
        while let Some(item) = reader.next().unwrap() {
            captures.extend(importer.take(item).map(|capture| (capture.url, capture.payload_digest)));
        }
        (captures, importer.finish(reader.offset()))
    }

    #[test]
    fn many_threads_find_what_one_finds_wherever_a_file_is_damaged() {
        let members = members(120, 20_000);
        let places: Vec<usize> = members
            .iter()
            .scan(0, |at, member| {
                *at += member.len();
                Some(*at)
            })
            .collect();
        let whole = members.concat();
        let large = lots::tests::members(1, 9 << 20).concat();
        let spoil = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = whole.clone();
            change(&mut bytes);
            bytes
        };
        let arc = {
            let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            let line = b"http://h/arc 1.2.3.4 20260101000000 text/html 3\nabc\n";
            std::io::Write::write_all(&mut packer, line).unwrap();
            packer.finish().unwrap()
        };
        for (what, bytes) in [
            ("nothing", whole.clone()),
            ("a bit in a member", spoil(&|bytes| bytes[places[40] + 5000] ^= 4)),
            ("a bit in the first member", spoil(&|bytes| bytes[300] ^= 4)),
            ("a checksum", spoil(&|bytes| bytes[places[70] - 6] ^= 1)),
            ("a head", spoil(&|bytes| bytes[places[33]] = 0)),
            (
                "junk between members",
                spoil(&|bytes| {
                    bytes.splice(places[50]..places[50], *b"no member");
                }),
            ),
            (
                "a piece that is gone",
                spoil(&|bytes| {
                    bytes.drain(places[20] + 77..places[60] + 7777);
                }),
            ),
            ("the end is cut", spoil(&|bytes| bytes.truncate(places[118] + 99))),
            (
                "another format within",
                spoil(&|bytes| {
                    bytes.splice(places[90]..places[90], arc.iter().copied());
                }),
            ),
            ("a large member first", [large, whole.clone()].concat()),
            ("every lot", spoil(&|bytes| (0..120).step_by(9).for_each(|n| bytes[places[n] + 99] ^= 1))),
        ] {
            let (one, many) = (imported(&bytes, false), imported(&bytes, true));
            assert!(one == many, "{what}: {:?} and {:?}", one.1, many.1);
            assert_eq!(one.1.damaged == 0, matches!(what, "nothing" | "a large member first"), "{what}");
        }
    }

    #[test]
    fn a_file_packed_as_a_whole_is_read_all_the_same() {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        for member in members(300, 20_000) {
            let mut plain = Vec::new();
            flate2::read::GzDecoder::new(&member[..]).read_to_end(&mut plain).unwrap();
            std::io::Write::write_all(&mut packer, &plain).unwrap();
        }
        let bytes = packer.finish().unwrap();
        let (one, many) = (imported(&bytes, false), imported(&bytes, true));
        assert!(one == many && one.0.len() == 300, "{:?} and {:?}", one.1, many.1);
        assert_eq!(many.1.sharing_member, 299);
    }
}
