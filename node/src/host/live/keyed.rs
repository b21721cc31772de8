//! Streams of live pages where the stores are in key order: merged by key. A cursor is a key, whatever was folded since.

use webbase_storage::{Cursor, PageKey, PageStream, Record, Result, StreamSpec};

use super::Overlay;

/// One layer of a merge by key.
struct Source {
    stream: Box<dyn PageStream>,
    is_epoch: bool,
    /// The record that is next, once it was read.
    next: Option<Record>,
}

/// A stream of stores in key order, merged.
pub(super) struct KeyOverlay {
    of: Overlay,
    sources: Vec<Source>,
    from: Cursor,
    /// The page of the last error.
    lost: Option<PageKey>,
}

impl KeyOverlay {
    pub(super) fn open(of: Overlay, spec: &StreamSpec) -> Result<KeyOverlay> {
        let mut sources = Vec::new();
        // The generation last: of equal versions its record is taken.
        for (layer, is_epoch) in of.layers() {
            sources.push(Source { stream: layer.stream(spec)?, is_epoch, next: None });
        }
        Ok(KeyOverlay { of, sources, from: spec.from, lost: None })
    }
}

impl PageStream for KeyOverlay {
    fn next(&mut self) -> Option<Result<Record>> {
        loop {
            for source in &mut self.sources {
                if source.next.is_none() {
                    match source.stream.next() {
                        Some(Ok(record)) => source.next = Some(record),
                        Some(Err(e)) => {
                            self.lost = source.stream.lost();
                            return Some(Err(e));
                        }
                        None => {}
                    }
                }
            }
            let keys = self.sources.iter().filter_map(|s| s.next.as_ref()).map(|r| r.get().key());
            let Some(key) = keys.min() else {
                self.from = Cursor::End;
                return None;
            };
            let mut best: Option<(Record, bool)> = None;
            for source in &mut self.sources {
                let Some(record) = source.next.take_if(|r| r.get().key() == key) else { continue };
                let version = record.get().version();
                if best.as_ref().is_none_or(|(best, _)| version >= best.get().version()) {
                    best = Some((record, source.is_epoch));
                }
            }
            self.from = key.next().map_or(Cursor::End, Cursor::Key);
            if let Some((record, is_epoch)) = best
                && !(is_epoch && self.of.bars(key, record.get().version()))
            {
                return Some(Ok(record));
            }
        }
    }

    fn cursor(&self) -> Cursor {
        self.from
    }

    fn lost(&self) -> Option<PageKey> {
        self.lost
    }
}
