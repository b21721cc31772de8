//! Several crawlers side by side: each host belongs to one of them.
//!
//! A host belongs to the crawler that the hash of its name says, until its address is known; then to the one that the hash of
//! the address says, so that hosts which share an address are read by one crawler, politely. Links to another's hosts are
//! gathered and handed over in batches; their owner settles them as if it had found them itself.

use std::collections::HashMap;
use std::net::IpAddr;

/// Links that another crawler owns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HandOver<L> {
    /// Which crawler, from 0.
    pub to: u32,
    /// The links.
    pub links: Vec<L>,
}

/// Which crawler owns which host, and links that wait to be handed over.
#[derive(Clone, Debug)]
pub struct Sharding<L> {
    own: u32,
    count: u32,
    key: [u8; 32],
    /// Hosts whose address moved them.
    moved: HashMap<String, u32>,
    waiting: Vec<Vec<L>>,
}

impl<L> Sharding<L> {
    /// Crawler `own` of `count`. All of them have the same key.
    ///
    /// # Panics
    /// If `own` is not below `count`.
    pub fn new(own: u32, count: u32, key: [u8; 32]) -> Sharding<L> {
        assert!(own < count, "crawler {own} of {count} is none of them");
        let waiting = (0..count).map(|_| Vec::new()).collect();
        Sharding { own, count, key, moved: HashMap::new(), waiting }
    }

    /// The owner of a host.
    pub fn owner(&self, host: &str) -> u32 {
        self.moved.get(host).copied().unwrap_or_else(|| self.hash(host.as_bytes()))
    }

    /// A host's address is known: from now on the address says who owns it. Returns the owner.
    pub fn resolved(&mut self, host: &str, address: IpAddr) -> u32 {
        let owner = match address {
            IpAddr::V4(v4) => self.hash(&v4.octets()),
            IpAddr::V6(v6) => self.hash(&v6.octets()),
        };
        if owner == self.hash(host.as_bytes()) {
            self.moved.remove(host);
        } else {
            self.moved.insert(host.to_owned(), owner);
        }
        owner
    }

    /// Sorts a link: it comes back if it is our own; otherwise it waits for [`Sharding::flush`].
    pub fn sort(&mut self, host: &str, link: L) -> Option<L> {
        let to = self.owner(host);
        match self.waiting.get_mut(to as usize) {
            Some(waiting) if to != self.own => {
                waiting.push(link);
                None
            }
            _ => Some(link),
        }
    }

    /// Everything that waits, a batch for each of the others.
    pub fn flush(&mut self) -> Vec<HandOver<L>> {
        let all = (0..).zip(self.waiting.iter_mut());
        all.filter(|(_, links)| !links.is_empty())
            .map(|(to, links)| HandOver { to, links: std::mem::take(links) })
            .collect()
    }

    fn hash(&self, bytes: &[u8]) -> u32 {
        let digest = blake3::keyed_hash(&self.key, bytes);
        let number = digest.as_bytes().first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        (number % u64::from(self.count)) as u32
    }
}
