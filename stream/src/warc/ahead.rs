//! Reading a file on two threads: one unpacks and finds records, the other makes captures of them.
//!
//! ```text
//!   file ─▶ thread: Reader ─▶ some records at a time ─▶ here: Importer (digests, revisits, counts) ─▶ captures
//! ```
//!
//! Unpacking takes most of the time of an import that is not packing or storing, so it has a thread of its own. Records come in
//! their order: a revisit may refer to any capture before it.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::capture::{Capture, Importer};
use super::reader::{Block, Item, Reader};

/// Records that are handed over at once: bytes and number.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_ITEMS: usize = 256;
/// Batches that wait.
const BATCHES: usize = 4;

/// Reads a file to its end, or until `take` fails, and hands each capture to `take`; says how many bytes were read. What goes
/// wrong with the file is in the importer's report.
pub fn read_ahead<E>(
    source: impl Read + Send,
    importer: &mut Importer,
    mut take: impl FnMut(Capture) -> Result<(), E>,
) -> (u64, Result<(), E>) {
    std::thread::scope(|scope| {
        let (sender, batches): (_, Receiver<Vec<Item>>) = sync_channel(BATCHES);
        let reading = scope.spawn(move || read(source, &sender));
        let mut captures = batches.iter().flatten().filter_map(|item| importer.take(item));
        let taken = captures.try_for_each(&mut take);
        // The reader ends when it notices that nobody takes its records.
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
fn read(source: impl Read, batches: &SyncSender<Vec<Item>>) -> (u64, io::Result<()>) {
    let mut reader = match Reader::new(source) {
        Ok(reader) => reader,
        Err(e) => return (0, Err(e)),
    };
    let (mut batch, mut bytes) = (Vec::new(), 0);
    loop {
        let (item, outcome) = match reader.next() {
            Ok(item) => (item, Ok(())),
            Err(e) => (None, Err(e)),
        };
        let is_over = item.is_none();
        if let Some(item) = item {
            bytes += item_bytes(&item);
            batch.push(item);
        }
        if bytes >= BATCH_BYTES || batch.len() >= BATCH_ITEMS || is_over {
            bytes = 0;
            if batches.send(std::mem::take(&mut batch)).is_err() {
                return (reader.offset(), Ok(()));
            }
        }
        if is_over {
            return (reader.offset(), outcome);
        }
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
    use crate::warc::{Form, Originals, Writer};

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
}
