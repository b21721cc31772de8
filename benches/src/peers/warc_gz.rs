//! The archive world's way: a WARC whose records are gzipped one by one, and a sorted CDX.
//!
//! - gzip level 6 (the usual), by zlib-rs; one thread, as WARC writers do it; no SHA-1 digests, in its favour.
//! - the WARC is synced whenever pages must be durable; the CDX is sorted, written and synced once at the end.
//! - a lookup searches the mapped CDX by bisection, then needs one `pread` and one gunzip.
//! - of several versions, the one written last is found; a scan delivers them all.

use std::{
    fs::{self, File, OpenOptions},
    io::{BufWriter, Read, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use flate2::{Compression, bufread::GzDecoder, write::GzEncoder};
use memmap2::Mmap;

use crate::{
    contestant::{Add, AddOptions, Found, Peer, Reader},
    raw::map_file,
};

pub(super) struct WarcGz {
    dir: PathBuf,
    warc: File,
    /// Lines: key in hex, fetch time, URL, MIME type, status, digest, length, offset, file name.
    cdx: Option<Mmap>,
}

impl WarcGz {
    pub(super) fn open(dir: &Path) -> WarcGz {
        let warc = OpenOptions::new().read(true).append(true).create(true).open(dir.join("pages.warc.gz"));
        WarcGz {
            dir: dir.to_owned(),
            warc: warc.expect("the WARC opens"),
            cdx: map_file(&dir.join("pages.cdx")).ok(),
        }
    }

    fn cdx(&self) -> &[u8] {
        self.cdx.as_deref().unwrap_or(&[])
    }

    /// Adds lines to the CDX: a new file takes the place of the old one.
    fn write_cdx(&mut self, new_lines: Vec<String>) {
        let mut lines: Vec<&[u8]> = self.cdx().split_inclusive(|&byte| byte == b'\n').collect();
        lines.extend(new_lines.iter().map(String::as_bytes));
        // Stable, so that of one page's versions the newest stays last.
        lines.sort_by_key(|line| &line[..32]);
        let (new, path) = (self.dir.join("pages.cdx.new"), self.dir.join("pages.cdx"));
        fs::write(&new, lines.concat()).expect("cdx: write");
        File::open(&new).and_then(|file| file.sync_all()).expect("cdx: sync");
        fs::rename(&new, &path).expect("cdx: rename");
        self.cdx = Some(map_file(&path).expect("cdx: map"));
    }
}

impl Peer for WarcGz {
    fn add_all(&mut self, pages: &[Add], options: AddOptions) {
        let mut offset = self.warc.metadata().expect("warc: length").len();
        let mut out = BufWriter::with_capacity(1 << 20, &self.warc);
        let mut lines = Vec::with_capacity(pages.len());
        let mut record = Vec::new();
        for group in options.groups(pages) {
            for Add { key, page } in group {
                record.clear();
                let mut gzip = GzEncoder::new(&mut record, Compression::new(6));
                write_record(&mut gzip, key, page).expect("warc: pack");
                gzip.finish().expect("warc: pack");
                out.write_all(&record).expect("warc: write");
                let (key, time, url, len) = (hex(key), page.fetched_at_ms, page.url, record.len());
                lines.push(format!("{key} {time} {url} text/html 200 - {len} {offset} pages.warc.gz\n"));
                offset += len as u64;
            }
            out.flush().and_then(|()| self.warc.sync_data()).expect("warc: sync");
        }
        drop(out);
        self.write_cdx(lines);
    }

    fn reader(&self) -> Box<dyn Reader + '_> {
        Box::new(WarcReader { cdx: self.cdx(), warc: &self.warc, packed: Vec::new(), record: Vec::new() })
    }

    fn scan(&self, found: Found<'_>) -> u64 {
        let warc = map_file(&self.dir.join("pages.warc.gz")).expect("warc: map");
        let mut rest: &[u8] = &warc;
        let mut record = Vec::new();
        let mut count = 0;
        while !rest.is_empty() {
            record.clear();
            GzDecoder::new(&mut rest).read_to_end(&mut record).expect("warc: gunzip");
            found(block(&record));
            count += 1;
        }
        count
    }
}

struct WarcReader<'a> {
    cdx: &'a [u8],
    warc: &'a File,
    packed: Vec<u8>,
    record: Vec<u8>,
}

impl Reader for WarcReader<'_> {
    fn lookup(&mut self, key: &[u8; 16], found: Found<'_>) -> bool {
        let Some((offset, len)) = find(self.cdx, hex(key).as_bytes()) else { return false };
        self.packed.resize(len, 0);
        self.warc.read_exact_at(&mut self.packed, offset).expect("warc: read");
        self.record.clear();
        GzDecoder::new(self.packed.as_slice()).read_to_end(&mut self.record).expect("warc: gunzip");
        found(block(&self.record));
        true
    }
}

/// Offset and length of the last record with this key.
fn find(cdx: &[u8], key: &[u8]) -> Option<(u64, usize)> {
    // Lines that start before `low` have keys up to ours; those that start at `high` or later have larger ones.
    let (mut low, mut high) = (0, cdx.len());
    let mut line: &[u8] = &[];
    while low < high {
        let middle = low + (high - low) / 2;
        let start = cdx[low..middle].iter().rposition(|&byte| byte == b'\n').map_or(low, |n| low + n + 1);
        let here = cdx[start..].split(|&byte| byte == b'\n').next().unwrap_or(&[]);
        if &here[..32] <= key {
            low = start + here.len() + 1;
            line = here;
        } else {
            high = start;
        }
    }
    let mut fields = std::str::from_utf8(line).ok()?.split(' ');
    if fields.next()?.as_bytes() != key {
        return None;
    }
    let len = fields.nth(5)?.parse().ok()?;
    Some((fields.next()?.parse().ok()?, len))
}

fn write_record(
    out: &mut impl Write,
    key: &[u8; 16],
    page: &crate::corpus::CorpusPage,
) -> std::io::Result<()> {
    write!(
        out,
        "WARC/1.1\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:{}>\r\nWARC-Target-URI: {}\r\nWARC-Date: {}\r\n\
         Content-Type: application/http;msgtype=response\r\nContent-Length: {}\r\n\r\n",
        hex(key),
        page.url,
        page.fetched_at_ms,
        page.head.len() + page.body.len(),
    )?;
    out.write_all(page.head)?;
    out.write_all(page.body)?;
    out.write_all(b"\r\n\r\n")
}

/// What follows a record's own header.
fn block(record: &[u8]) -> &[u8] {
    let header = record.windows(4).position(|window| window == b"\r\n\r\n").expect("a WARC header ends");
    &record[header + 4..]
}

fn hex(key: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*key))
}
