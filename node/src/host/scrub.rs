//! Looking for damage before a reader meets it: all pages of the generation that is served are read through, slowly, again
//! and again, past the page cache.

use std::sync::Arc;
use std::time::{Duration, Instant};

use webbase_storage::{Access, Snapshot, StreamSpec};

use super::repair::{Met, Repairs};

/// Bytes read between two rests.
const STEP_BYTES: u64 = 1 << 20;

/// How a node looks for damage by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scrub {
    /// How fast it reads; 0 for not at all.
    pub bytes_per_s: u64,
    /// How long it rests when it has read everything.
    pub pause: Duration,
}

impl Default for Scrub {
    fn default() -> Self {
        Scrub { bytes_per_s: 8 << 20, pause: Duration::from_secs(3600) }
    }
}

/// Reads everything once.
pub(super) async fn pass(repairs: &Arc<Repairs>, generation: u64, snapshot: &dyn Snapshot, scrub: Scrub) {
    let spec = StreamSpec { access: Access::Direct, ..StreamSpec::default() };
    // A stream that does not open is one that readers do not get either, and they say why.
    let Ok(mut stream) = snapshot.stream(&spec) else { return };
    loop {
        let (repairs, began) = (repairs.clone(), Instant::now());
        let work = tokio::task::spawn_blocking(move || {
            let mut bytes = 0;
            while bytes < STEP_BYTES {
                match stream.next() {
                    Some(Ok(record)) => bytes += record.bytes().len() as u64,
                    Some(Err(e)) => repairs.met(Met::of(generation, stream.lost(), &e)),
                    None => return (None, bytes),
                }
            }
            (Some(stream), bytes)
        });
        let Ok((Some(rest), bytes)) = work.await else { return };
        stream = rest;
        let due = Duration::from_secs_f64(bytes as f64 / scrub.bytes_per_s.max(1) as f64);
        tokio::time::sleep(due.saturating_sub(began.elapsed())).await;
    }
}
