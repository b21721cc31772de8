//! A store's dictionaries on disk: two files each, and records that need one that is lost.
//!
//! ```text
//!   dictionary-D        the dictionary, nothing else; D is its digest in 16 hexadecimal digits
//!   dictionary-D.copy   the same
//! ```
//!
//! The name is the checksum, so damage cannot pass. Nearly every record of a store needs its one dictionary of 64 KiB,
//! which cannot be made again from anything else: that is why there are two of it, and why a bad one is written anew from
//! the good one as soon as the store is opened. When both are gone the store opens all the same. The records that need the
//! dictionary are then damage to readers: they are whole, but neither the reader nor whom it hands them to could unpack
//! them, and another replica can. They stay on disk, also in a repair, because the dictionary may come back: from another
//! store, by `add_dictionary`, or as a file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::codec::{Dictionaries, Dictionary};
use crate::disk::{self, Disk};
use crate::error::{Result, StorageError};
use crate::record::{Kind, Record, RecordRef};
use crate::store::Damage;

/// How many records need each dictionary that is not known.
pub(crate) type Needed = BTreeMap<u64, u64>;

fn paths(dir: &Path, digest: u64) -> [PathBuf; 2] {
    ["", ".copy"].map(|end| dir.join(format!("dictionary-{digest:016x}{end}")))
}

/// What is wrong with a file.
enum Bad {
    Missing,
    Damaged(String),
}

impl std::fmt::Display for Bad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bad::Missing => f.write_str("the file is missing"),
            Bad::Damaged(what) => f.write_str(what),
        }
    }
}

/// The dictionary's content. Whatever is wrong with this file, the other one may be good.
fn read(disk: &dyn Disk, path: &Path, digest: u64) -> std::result::Result<Vec<u8>, Bad> {
    let content = disk::read_file(disk, path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Bad::Missing,
        _ => Bad::Damaged(format!("it cannot be read: {e}")),
    })?;
    match Dictionary::digest_of(&content) {
        found if found == digest => Ok(content),
        found => Err(Bad::Damaged(format!("its digest is {found:016x}"))),
    }
}

/// The digests of the dictionaries there are files of.
fn digests(disk: &dyn Disk, dir: &Path) -> Result<BTreeSet<u64>> {
    let names = disk.list(dir).map_err(|e| StorageError::io("list", dir, e))?;
    let digest = |name: &String| {
        let hex = name.strip_prefix("dictionary-")?;
        let hex = hex.strip_suffix(".copy").unwrap_or(hex);
        u64::from_str_radix(hex, 16).ok().filter(|digest| format!("{digest:016x}") == hex)
    };
    Ok(names.iter().filter_map(digest).collect())
}

/// Makes a dictionary durable.
pub(crate) fn write(disk: &dyn Disk, dir: &Path, digest: u64, content: &[u8]) -> Result<()> {
    paths(dir, digest).iter().try_for_each(|path| disk::replace_file(disk, path, content))
}

/// Makes the good dictionaries of a store known, and writes bad files anew from good ones. Returns the damage it found
/// there; files that could not be written, and dictionaries that are lost, are `verify`'s to tell.
pub(crate) fn load(disk: &dyn Disk, dir: &Path, level: i32, known: &Dictionaries) -> Result<Vec<Damage>> {
    let mut found = Vec::new();
    for digest in digests(disk, dir)? {
        let files = paths(dir, digest).map(|path| (read(disk, &path, digest), path));
        let Some(content) = files.iter().find_map(|(content, _)| content.as_ref().ok()) else { continue };
        for (content_or_bad, path) in &files {
            let Err(bad) = content_or_bad else { continue };
            if let Bad::Damaged(what) = bad {
                let what = format!("{what}; the other copy is good");
                found.push(Damage { path: path.clone(), offset: 0, what, key: None });
            }
            // A disk that takes no writes now keeps nobody from reading.
            let _ = disk::replace_file(disk, path, content);
        }
        known.insert(Arc::new(Dictionary::new(content.clone(), level)));
    }
    Ok(found)
}

/// All damage of the files, and the dictionaries that records need and nobody has.
pub(crate) fn verify(
    disk: &dyn Disk,
    dir: &Path,
    known: &Dictionaries,
    needed: &Needed,
) -> Result<Vec<Damage>> {
    let mut damage = Vec::new();
    let mut all = digests(disk, dir)?;
    all.extend(needed.keys().copied().chain(known.all().iter().map(|d| d.digest())));
    for digest in all {
        let [path, copy] = paths(dir, digest);
        let is_known = known.get(digest).is_some();
        let lost = match needed.get(&digest) {
            Some(records) => {
                format!("; {records} records need it and stay packed until the dictionary is added again")
            }
            None => "; no record needs it".into(),
        };
        for (path, is_copy) in [(path, false), (copy, true)] {
            let what = match read(disk, &path, digest) {
                Ok(_) if is_known => continue,
                Ok(_) => "it was bad when the store was opened, and is good again: `repair` takes it".into(),
                Err(Bad::Missing) if is_copy && !is_known => continue,
                Err(bad) if is_known => format!("{bad}; the dictionary is in memory"),
                Err(bad) => format!("{bad}{lost}"),
            };
            damage.push(Damage { path, offset: 0, what, key: None });
        }
    }
    Ok(damage)
}

/// Writes bad files anew, takes dictionaries whose files are good again, and removes what is left of those that no record
/// needs.
pub(crate) fn mend(
    disk: &dyn Disk,
    dir: &Path,
    level: i32,
    known: &Dictionaries,
    needed: &Needed,
) -> Result<()> {
    load(disk, dir, level, known)?;
    for dictionary in known.all() {
        for path in paths(dir, dictionary.digest()) {
            if read(disk, &path, dictionary.digest()).is_err() {
                disk::replace_file(disk, &path, dictionary.content())?;
            }
        }
    }
    let names = disk.list(dir).map_err(|e| StorageError::io("list", dir, e))?;
    for digest in digests(disk, dir)? {
        if known.get(digest).is_some() || needed.contains_key(&digest) {
            continue;
        }
        for path in paths(dir, digest) {
            if names.iter().any(|name| path.ends_with(name)) {
                disk.remove(&path).map_err(|e| StorageError::io("remove", &path, e))?;
            }
        }
    }
    Ok(())
}

/// Counts a record that needs a dictionary which is not known.
pub(crate) fn count_needed(record: &RecordRef<'_>, known: &Dictionaries, needed: &mut Needed) {
    if record.kind() == Kind::Page && !known.has(record.dictionary()) {
        *needed.entry(record.dictionary()).or_default() += 1;
    }
}

/// A record as readers may have it: damage if it needs a dictionary that is lost. `file` is any file of the store.
pub(crate) fn readable(record: Record, known: &Dictionaries, file: &Path) -> Result<Record> {
    let digest = record.get().dictionary();
    if known.has(digest) {
        return Ok(record);
    }
    let [path, _] = paths(file.parent().unwrap_or(file), digest);
    let what = format!("this dictionary is lost, and {} is packed with it; add it again", record.get().url());
    Err(StorageError::corrupt(&path, 0, what))
}
