//! The bytes of a file, read forward, with a way back to a marked place as long as that is near.

use std::io::{self, Read};

const READ_BYTES: usize = 256 << 10;
/// A marked place is given up when it is further back than this.
pub(super) const KEPT_BYTES_MAX: usize = 16 << 20;

pub(super) struct Input<R> {
    source: R,
    buffer: Vec<u8>,
    /// The next byte, in the buffer.
    at: usize,
    /// The marked place, in the buffer.
    mark: Option<usize>,
    /// Place of the buffer's first byte in the file.
    base: u64,
}

impl<R: Read> Input<R> {
    /// The bytes of a file from `offset` on, where the source begins.
    pub(super) fn new(source: R, offset: u64) -> Input<R> {
        Input { source, buffer: Vec::new(), at: 0, mark: None, base: offset }
    }

    pub(super) fn source(&mut self) -> &mut R {
        &mut self.source
    }

    pub(super) fn into_source(self) -> R {
        self.source
    }

    /// Where the next byte is in the file.
    pub(super) fn offset(&self) -> u64 {
        self.base + self.at as u64
    }

    /// What was read and not consumed.
    pub(super) fn bytes(&self) -> &[u8] {
        self.buffer.get(self.at..).unwrap_or_default()
    }

    pub(super) fn consume(&mut self, count: usize) {
        self.at = (self.at + count).min(self.buffer.len());
    }

    /// Reads more; false at the end of the file.
    pub(super) fn fill(&mut self) -> io::Result<bool> {
        if self.mark.is_some_and(|mark| self.at - mark > KEPT_BYTES_MAX) {
            self.mark = None;
        }
        let from = self.mark.unwrap_or(self.at);
        if from > 0 {
            self.buffer.drain(..from);
            self.base += from as u64;
            self.at -= from;
            self.mark = self.mark.map(|_| 0);
        }
        let len = self.buffer.len();
        self.buffer.resize(len + READ_BYTES, 0);
        let read = loop {
            match self.source.read(self.buffer.get_mut(len..).unwrap_or_default()) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.buffer.truncate(len + read.as_ref().map_or(0, |read| *read));
        Ok(read? > 0)
    }

    /// Has at least so many bytes at hand; false when the file ends before.
    pub(super) fn ensure(&mut self, count: usize) -> io::Result<bool> {
        while self.bytes().len() < count {
            if !self.fill()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Marks the next byte.
    pub(super) fn mark(&mut self) {
        self.mark = Some(self.at);
    }

    /// Goes back to just behind the marked byte, if it is still there; else stays.
    pub(super) fn back(&mut self) {
        if let Some(mark) = self.mark.take() {
            self.at = (mark + 1).min(self.buffer.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_a_way_back() {
        let bytes: Vec<u8> = (0..2_000_000_u32).map(|n| (n % 251) as u8).collect();
        let mut input = Input::new(&bytes[..], 0);
        assert!(input.ensure(10).unwrap());
        input.consume(10);
        input.mark();
        assert!(input.ensure(1_500_000).unwrap());
        input.consume(1_500_000);
        assert!(input.ensure(400_000).unwrap());
        input.back();
        assert_eq!(input.offset(), 11);
        assert_eq!(input.bytes().first(), Some(&11));
        assert!(!input.ensure(bytes.len()).unwrap());
    }

    #[test]
    fn a_mark_too_far_back_is_given_up() {
        let bytes = vec![7; KEPT_BYTES_MAX + 3 * READ_BYTES];
        let mut input = Input::new(&bytes[..], 0);
        input.mark();
        while input.fill().unwrap() {
            input.consume(input.bytes().len());
        }
        let here = input.offset();
        input.back();
        assert_eq!(input.offset(), here);
    }
}
