//! Who is being sent a stream now, what of, and how far it is.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use parking_lot::Mutex;
use serde_json::{Value, json};

/// What was asked for is shown up to this length.
const ASKED_CHARS_MAX: usize = 200;

/// The address of whoever asks, as every request has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

/// Streams under way.
#[derive(Default)]
pub(super) struct Clients {
    next: AtomicU64,
    open: Mutex<BTreeMap<u64, Arc<Sent>>>,
}

struct Sent {
    peer: Option<SocketAddr>,
    /// The query, as it came.
    asked: String,
    since: Instant,
    pages: AtomicU64,
    bytes: AtomicU64,
}

/// One of them; it is over when this is dropped.
pub(super) struct Client {
    all: Arc<Clients>,
    number: u64,
    sent: Arc<Sent>,
}

impl Clients {
    pub(super) fn open(self: &Arc<Clients>, peer: Option<Peer>, asked: &str) -> Client {
        let sent = Arc::new(Sent {
            peer: peer.map(|Peer(address)| address),
            asked: asked.chars().take(ASKED_CHARS_MAX).collect(),
            since: Instant::now(),
            pages: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        });
        let number = self.next.fetch_add(1, Relaxed);
        self.open.lock().insert(number, sent.clone());
        Client { all: self.clone(), number, sent }
    }

    pub(super) fn as_json(&self) -> Value {
        let open = self.open.lock();
        let shown = open.iter().map(|(number, sent)| {
            json!({
                "number": number,
                "client": sent.peer.map(|peer| peer.to_string()),
                "asked": sent.asked,
                "seconds": sent.since.elapsed().as_secs_f64(),
                "pages": sent.pages.load(Relaxed),
                "bytes": sent.bytes.load(Relaxed),
            })
        });
        shown.collect()
    }
}

impl Client {
    /// So many pages more were sent.
    pub(super) fn pages(&self, count: u64) {
        self.sent.pages.fetch_add(count, Relaxed);
    }

    /// So many bytes more were sent.
    pub(super) fn bytes(&self, count: u64) {
        self.sent.bytes.fetch_add(count, Relaxed);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.all.open.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_listed_while_it_is_sent() {
        let clients = Arc::new(Clients::default());
        let peer = Peer("127.0.0.1:9".parse().unwrap());
        let (one, two) = (clients.open(Some(peer), "format=jsonl"), clients.open(None, &"é".repeat(1000)));
        one.pages(3);
        one.bytes(70);
        let told = clients.as_json();
        assert_eq!(told[0]["client"], "127.0.0.1:9");
        assert_eq!((&told[0]["pages"], &told[0]["bytes"]), (&3.into(), &70.into()));
        assert_eq!(told[1]["asked"].as_str().unwrap().chars().count(), ASKED_CHARS_MAX);
        drop(one);
        assert_eq!(clients.as_json().as_array().unwrap().len(), 1);
        drop(two);
        assert_eq!(clients.as_json(), json!([]));
    }
}
