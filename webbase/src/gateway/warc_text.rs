//! Pages as WARC, made beside the stream: packing takes longer than reading, so batches are packed on all cores, and sent in
//! their order.
//!
//! ```text
//!   warcinfo                                what this is
//!   response or resource                    a page, …
//!   metadata  webbase-cursor: w1…           now and then: the place behind the page before
//!   metadata  webbase-end: true             the last record, with the cursor; a stream without it is not whole
//! ```

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::task::JoinHandle;
use webbase_storage::{Dictionaries, Record};
use webbase_stream::warc::{Form, Writer};

use super::problem::Problem;

/// Stored bytes of a batch.
const BATCH_BYTES: usize = 256 << 10;

type Packed = JoinHandle<Result<Vec<u8>, Problem>>;

pub(super) struct WarcText {
    waiting: Vec<Record>,
    waiting_bytes: usize,
    packing: VecDeque<Packed>,
    packing_max: usize,
    dictionaries: Dictionaries,
}

impl WarcText {
    /// Begins a file.
    pub(super) fn new(dictionaries: &Dictionaries, out: &mut Vec<u8>) -> WarcText {
        let fields = [
            ("software", concat!("webbase/", env!("CARGO_PKG_VERSION"))),
            ("format", "WARC File Format 1.1"),
            ("conformsTo", "https://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/"),
        ];
        Writer::new(Form::Gzip).warcinfo(now_ms(), &fields, out);
        let packing_max = std::thread::available_parallelism().map_or(2, usize::from) + 1;
        let (waiting, packing) = (Vec::new(), VecDeque::new());
        WarcText { waiting, waiting_bytes: 0, packing, packing_max, dictionaries: dictionaries.clone() }
    }

    /// Takes a page; what is ready is appended to `out`.
    pub(super) async fn page(&mut self, record: Record, out: &mut Vec<u8>) -> Result<(), Problem> {
        self.waiting_bytes += record.bytes().len();
        self.waiting.push(record);
        if self.waiting_bytes >= BATCH_BYTES {
            self.pack(None);
            self.take(self.packing_max, out).await?;
        }
        Ok(())
    }

    /// Says where the stream is now.
    pub(super) async fn cursor(&mut self, cursor: String, out: &mut Vec<u8>) -> Result<(), Problem> {
        self.pack(Some(vec![("webbase-cursor", cursor)]));
        self.take(self.packing_max, out).await
    }

    /// Ends the file.
    pub(super) async fn end(
        &mut self,
        pages: u64,
        damaged: u64,
        cursor: Option<String>,
        out: &mut Vec<u8>,
    ) -> Result<(), Problem> {
        let mut fields = vec![("webbase-end", "true".to_owned()), ("webbase-pages", pages.to_string())];
        fields.push(("webbase-damaged", damaged.to_string()));
        fields.extend(cursor.map(|cursor| ("webbase-cursor", cursor)));
        self.pack(Some(fields));
        self.take(0, out).await
    }

    /// Has what waits packed, and a record with these fields behind it.
    fn pack(&mut self, fields: Option<Vec<(&'static str, String)>>) {
        let records = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        let dictionaries = self.dictionaries.clone();
        self.packing.push_back(tokio::task::spawn_blocking(move || {
            let (mut writer, mut out) = (Writer::new(Form::Gzip), Vec::new());
            for record in &records {
                writer.page(record, &dictionaries, &mut out)?;
            }
            if let Some(fields) = fields {
                let fields: Vec<(&str, &str)> =
                    fields.iter().map(|(name, value)| (*name, &value[..])).collect();
                writer.metadata(now_ms(), &fields, &mut out);
            }
            Ok(out)
        }));
    }

    /// Appends what is packed, in its order, until at most so many batches are outstanding.
    async fn take(&mut self, outstanding: usize, out: &mut Vec<u8>) -> Result<(), Problem> {
        while self.packing.len() > outstanding
            && let Some(packed) = self.packing.pop_front()
        {
            let packed = packed.await.map_err(|e| {
                Problem::new(
                    hyper::StatusCode::INTERNAL_SERVER_ERROR,
                    "internal",
                    format!("packing failed: {e}"),
                )
            })??;
            match out.is_empty() {
                true => *out = packed,
                false => out.extend_from_slice(&packed),
            }
        }
        Ok(())
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
