//! Links of other crawlers' hosts: handed over in batches, through a folder that all crawlers reach.
//!
//! ```text
//!   FOLDER/to-1/0-00000017a3…  from crawler 0 to crawler 1: the links (postcard), CRC-64 of them
//! ```
//!
//! A batch is written beside and renamed, and is durable before the pages it came from are called read. Its receiver removes it when the
//! links are in its own frontier. So a link may come twice after a kill, which is harmless, and is never lost.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use webbase_storage::crc64;

use super::Shard;
use crate::fetcher::Resolve;
use crate::frontier::{Found, host_of};
use crate::metadata::Sharding;

/// What the key is made of that says whose a host is: all crawlers have to agree on it.
const KEY_OF: &str = "webbase 2026 which crawler has a host";
/// How long a name may take; it stays with whoever its name says.
const NAME_TIME: Duration = Duration::from_secs(5);
/// Hosts whose addresses are remembered.
const HOSTS_MAX: usize = 1 << 20;
/// A longer batch is not believed.
const BATCH_BYTES_MAX: u64 = 256 << 20;

pub(super) struct Peers {
    sharding: Sharding<Found>,
    shard: Shard,
    located: HashSet<String>,
    resolver: Arc<dyn Resolve>,
    handle: Handle,
    batches: u64,
    /// Links handed over so far.
    pub(super) handed: u64,
}

impl Peers {
    pub(super) fn open(shard: Shard, resolver: Arc<dyn Resolve>, handle: Handle) -> io::Result<Peers> {
        for number in 0..shard.count {
            fs::create_dir_all(place(&shard.folder, number))?;
        }
        Ok(Peers {
            sharding: Sharding::new(shard.own, shard.count, blake3::derive_key(KEY_OF, b"")),
            shard,
            located: HashSet::new(),
            resolver,
            handle,
            batches: 0,
            handed: 0,
        })
    }

    /// Hands over what belongs to others; durable when it returns. The rest comes back.
    pub(super) fn sort(&mut self, found: Vec<Found>) -> io::Result<Vec<Found>> {
        self.locate(&found);
        let mut own = Vec::with_capacity(found.len());
        for link in found {
            let host = host_of(&link.url).to_owned();
            own.extend(self.sharding.sort(&host, link));
        }
        for batch in self.sharding.flush() {
            self.handed += batch.links.len() as u64;
            self.write(batch.to, &batch.links)?;
        }
        Ok(own)
    }

    /// Finds the addresses of hosts that were not met before: they say whose a host is.
    fn locate(&mut self, found: &[Found]) {
        if self.located.len() > HOSTS_MAX {
            self.located.clear();
        }
        let hosts: HashSet<&str> = found.iter().map(|link| host_of(&link.url)).collect();
        let new: Vec<String> =
            hosts.into_iter().filter(|host| !self.located.contains(*host)).map(str::to_owned).collect();
        if new.is_empty() {
            return;
        }
        let resolver = &self.resolver;
        let found = self.handle.block_on(async {
            let mut asking = JoinSet::new();
            for host in new {
                let resolver = Arc::clone(resolver);
                asking.spawn(async move {
                    let found = tokio::time::timeout(NAME_TIME, resolver.resolve(&host, 80)).await;
                    // Of several addresses the least: all crawlers see the same one.
                    let least =
                        found.ok().and_then(Result::ok).and_then(|all| all.iter().map(|a| a.ip()).min());
                    (host, least)
                });
            }
            asking.join_all().await
        });
        for (host, address) in found {
            if let Some(address) = address {
                self.sharding.resolved(&host, address);
            }
            self.located.insert(host);
        }
    }

    fn write(&mut self, to: u32, links: &[Found]) -> io::Result<()> {
        self.batches += 1;
        let folder = place(&self.shard.folder, to);
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let name = format!("{}-{:024x}-{:08}", self.shard.own, since.as_nanos(), self.batches);
        let mut bytes = postcard::to_stdvec(links).map_err(io::Error::other)?;
        let sum = crc64(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        let beside = folder.join(format!(".{name}"));
        let mut file = File::create(&beside)?;
        file.write_all(&bytes)?;
        file.sync_data()?;
        fs::rename(beside, folder.join(name))?;
        File::open(folder)?.sync_all()
    }

    /// What others have handed over, with the files to remove when it is taken. A batch that cannot be read is moved aside.
    pub(super) fn take(&self) -> io::Result<(Vec<Found>, Vec<PathBuf>, u64)> {
        let folder = place(&self.shard.folder, self.shard.own);
        let (mut links, mut files, mut bad) = (Vec::new(), Vec::new(), 0);
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or(".");
            if name.starts_with('.') {
                continue;
            }
            match read(&path)? {
                Some(batch) => {
                    links.extend(batch);
                    files.push(path);
                }
                None => {
                    bad += 1;
                    fs::rename(&path, folder.join(format!(".bad-{name}")))?;
                }
            }
        }
        Ok((links, files, bad))
    }
}

fn read(path: &Path) -> io::Result<Option<Vec<Found>>> {
    if fs::metadata(path)?.len() > BATCH_BYTES_MAX {
        return Ok(None);
    }
    let bytes = fs::read(path)?;
    let Some((body, sum)) = bytes.split_last_chunk::<8>() else { return Ok(None) };
    if crc64(body) != u64::from_le_bytes(*sum) {
        return Ok(None);
    }
    Ok(postcard::from_bytes(body).ok())
}

fn place(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!("to-{number}"))
}
