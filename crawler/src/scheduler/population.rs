//! All pages that are refreshed, counted by weight and rate, so that the price of a read is found without looking at them.
//!
//! A page falls into a bin of half an octave of weight by half an octave of rate. A page that is added, changed or removed
//! costs O(1); a price costs a few thousand bins, whatever the number of pages. Beside the bins stand the sums that the papers'
//! formula needs: S = Σ (w·λ^α)^(1/(α+1)), per kind, so that a factor of a kind can change without a scan.

use std::collections::HashMap;

use super::ALPHA;
use super::page::{HotPage, Kind};
use super::policy::xyleme_root;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bin {
    pub(super) count: f64,
    pub(super) weight: f64,
    pub(super) rate: f64,
}

/// Sums over the pages of one kind.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Sums {
    /// Pages.
    pub count: f64,
    /// Their weights.
    pub weight: f64,
    /// S without the kind's factor.
    pub roots: f64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Population {
    bins: [HashMap<(i16, i16), Bin>; Kind::COUNT],
    sums: [Sums; Kind::COUNT],
    /// Reads a day of pages with a fixed refresh.
    pub(super) fixed: f64,
}

impl Population {
    pub(super) fn add(&mut self, page: &HotPage) {
        self.count(page, 1.0);
    }

    pub(super) fn remove(&mut self, page: &HotPage) {
        self.count(page, -1.0);
    }

    /// Whether two states of a page count differently.
    pub(super) fn tells_apart(a: &HotPage, b: &HotPage) -> bool {
        let counted =
            |p: &HotPage| (p.weight, p.rate, p.kind(), p.is_refreshed(), p.is_fixed(), p.last_read_s > 0);
        counted(a) != counted(b)
    }

    fn count(&mut self, page: &HotPage, sign: f64) {
        if page.is_fixed() && page.last_read_s > 0 {
            self.fixed = (self.fixed + sign * page.rate()).max(0.0);
        }
        if !page.is_refreshed() {
            return;
        }
        let (weight, rate) = (page.weight(), page.rate());
        let kind = page.kind() as usize;
        if let Some(sums) = self.sums.get_mut(kind) {
            sums.count += sign;
            sums.weight += sign * weight;
            sums.roots += sign * xyleme_root(weight, rate, ALPHA);
        }
        if let Some(bins) = self.bins.get_mut(kind) {
            let bin = bins.entry((octaves(weight), octaves(rate))).or_default();
            bin.count += sign;
            bin.weight += sign * weight;
            bin.rate += sign * rate;
        }
    }

    pub(super) fn sums(&self, kind: Kind) -> Sums {
        self.sums.get(kind as usize).copied().unwrap_or_default()
    }

    pub(super) fn bins(&self, kind: Kind) -> impl Iterator<Item = Bin> + '_ {
        self.bins
            .get(kind as usize)
            .into_iter()
            .flat_map(HashMap::values)
            .copied()
            .filter(|bin| bin.count > 0.5)
    }
}

/// Twice the logarithm, by which pages are binned; 0 has a bin of its own.
fn octaves(value: f64) -> i16 {
    if value > 0.0 { (value.log2() * 2.0).floor() as i16 } else { i16::MIN }
}
