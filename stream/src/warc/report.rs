//! What an import found: how many records of which type, what became of them, and what was damaged where.

use std::collections::BTreeMap;

use serde::Serialize;

use super::reader::Damage;

/// Damaged places that are named; the others are counted.
const DAMAGE_MAX: usize = 1000;
/// Types of records that are told apart; others are one.
const KINDS_MAX: usize = 50;

/// A damaged place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DamagedPlace {
    /// Where in the file; of the member, if it is packed.
    pub offset: u64,
    /// What is wrong there.
    pub what: String,
}

/// What an import found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Bytes of the file.
    pub bytes: u64,
    /// Records, by type, damaged ones included.
    pub records: BTreeMap<String, u64>,
    /// Captures that make a page: responses, resources, revisits with their original.
    pub captures: u64,
    /// Pages: captures of different URLs.
    pub pages: u64,
    /// Captures that are older than another one of their URL in this import.
    pub superseded: u64,
    /// Captures that the repository acknowledged: they are durable.
    pub acknowledged: u64,
    /// Captures that the repository did not take, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Records that could be pages and make none, by reason.
    pub left_out: BTreeMap<String, u64>,
    /// Revisits whose body was found.
    pub revisits_resolved: u64,
    /// Revisits whose body is in no capture at hand.
    pub revisits_unresolved: u64,
    /// Revisits that say that nothing changed; the page stays as it is.
    pub not_modified: u64,
    /// Declared SHA-1 and SHA-256 digests that hold.
    pub digests_verified: u64,
    /// Declared SHA-1 and SHA-256 digests that do not: the page is kept, with the SHA-1 that was computed.
    pub digests_wrong: u64,
    /// Digests of other kinds, which are not checked and not kept.
    pub digests_other: u64,
    /// Dates that were finer than a millisecond.
    pub dates_cut: u64,
    /// Records that are not alone in their member: the file is readable, but only from its start.
    pub sharing_member: u64,
    /// Damaged places.
    pub damaged: u64,
    /// The first of them.
    pub damage: Vec<DamagedPlace>,
}

impl Report {
    /// Counts one of `what`.
    pub(super) fn count(counts: &mut BTreeMap<String, u64>, what: &str) {
        let what = if counts.len() >= KINDS_MAX && !counts.contains_key(what) { "other" } else { what };
        match counts.get_mut(what) {
            Some(count) => *count += 1,
            None => {
                counts.insert(what.to_owned(), 1);
            }
        }
    }

    /// Notes a capture that the repository did not take.
    pub fn refuse(&mut self, why: &str) {
        Report::count(&mut self.refused, why);
    }

    /// Notes damage.
    pub fn note(&mut self, damage: Damage) {
        self.damaged += 1;
        if self.damage.len() < DAMAGE_MAX {
            self.damage.push(DamagedPlace { offset: damage.offset, what: damage.what });
        }
    }

    /// Records of all types.
    pub fn all_records(&self) -> u64 {
        self.records.values().sum()
    }
}
