//! Links in memory: of each page the pages it links to and the pages that link to it, as sorted rows.
//!
//! Rows lie one after the other (`pages`), `begins` has where each begins: 4 bytes a link and 8 a page, in each direction.

use rayon::prelude::*;

use super::ImportanceError;

/// A page has at most so many links; its others don't count.
pub const LINKS_MAX: usize = 65_534;

/// Rows of page numbers, sorted and without repetition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rows {
    begins: Vec<u64>,
    pages: Vec<u32>,
}

impl Rows {
    pub(crate) fn len(&self) -> usize {
        self.begins.len().saturating_sub(1)
    }

    #[expect(clippy::indexing_slicing, reason = "callers pass rows there are; begins are ours and ascend")]
    pub(crate) fn row(&self, row: usize) -> &[u32] {
        &self.pages[self.begins[row] as usize..self.begins[row + 1] as usize]
    }

    #[expect(clippy::indexing_slicing, reason = "callers pass rows there are")]
    pub(crate) fn degree(&self, row: usize) -> usize {
        (self.begins[row + 1] - self.begins[row]) as usize
    }

    /// How many links rows have.
    #[expect(clippy::indexing_slicing, reason = "callers pass rows there are; begins ascend")]
    pub(crate) fn links(&self, rows: std::ops::Range<usize>) -> usize {
        (self.begins[rows.end] - self.begins[rows.start]) as usize
    }

    /// Calls `each` with every row of `rows`. This is the inner loop of everything: what begins a row ended the last.
    #[expect(clippy::indexing_slicing, reason = "callers pass rows there are; begins are ours and ascend")]
    pub(crate) fn for_rows(&self, rows: std::ops::Range<usize>, mut each: impl FnMut(usize, &[u32])) {
        if rows.is_empty() {
            return;
        }
        let mut begin = self.begins[rows.start] as usize;
        for row in rows {
            let end = self.begins[row + 1] as usize;
            each(row, &self.pages[begin..end]);
            begin = end;
        }
    }

    /// The same links by their other end. Rows come out sorted, because this one's are gone through in order.
    #[expect(clippy::indexing_slicing, reason = "every page of a row is a row: the builder checked")]
    fn transposed(&self) -> Self {
        let mut begins = vec![0u64; self.begins.len()];
        for page in &self.pages {
            begins[*page as usize + 1] += 1;
        }
        for row in 1..begins.len() {
            begins[row] += begins[row - 1];
        }
        let (mut next, mut pages) = (begins.clone(), vec![0u32; self.pages.len()]);
        for row in 0..self.len() {
            for page in self.row(row) {
                let place = &mut next[*page as usize];
                pages[*place as usize] = row as u32;
                *place += 1;
            }
        }
        Self { begins, pages }
    }

    /// Cuts the rows into about `parts` parts with as many links (and pages) each.
    pub(crate) fn parts(&self, parts: usize) -> Vec<std::ops::Range<usize>> {
        let weight = |row: usize| self.begins.get(row).map_or(0, |begin| begin + 2 * row as u64);
        let (rows, total) = (self.len(), weight(self.len()));
        let mut bounds: Vec<usize> = (0..=parts)
            .map(|part| {
                let wanted = (u128::from(total) * part as u128 / parts.max(1) as u128) as u64;
                partition(rows, |row| weight(row) < wanted)
            })
            .collect();
        bounds.dedup();
        bounds.iter().zip(bounds.iter().skip(1)).map(|(from, to)| *from..*to).collect()
    }
}

/// The first of `0..rows` for which `below` is false.
fn partition(rows: usize, below: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, rows);
    while low < high {
        let middle = low + (high - low) / 2;
        if below(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

/// The links between pages `0..pages`, in both directions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Graph {
    out: Rows,
    into: Rows,
}

impl Graph {
    /// How many pages there are, read or not.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.out.len()
    }

    /// How many links there are.
    #[must_use]
    pub fn links(&self) -> usize {
        self.out.pages.len()
    }

    /// The pages that `page` links to, sorted.
    #[must_use]
    pub fn links_of(&self, page: u32) -> &[u32] {
        if (page as usize) < self.pages() { self.out.row(page as usize) } else { &[] }
    }

    /// The pages that link to `page`, sorted.
    #[must_use]
    pub fn links_to(&self, page: u32) -> &[u32] {
        if (page as usize) < self.pages() { self.into.row(page as usize) } else { &[] }
    }

    pub(crate) fn out(&self) -> &Rows {
        &self.out
    }

    pub(crate) fn into(&self) -> &Rows {
        &self.into
    }

    /// Of each page the inverse of its number of links; 0 where it has none.
    pub(crate) fn shares(&self) -> Vec<f64> {
        (0..self.pages()).map(|page| share(self.out.degree(page))).collect()
    }
}

/// What each of so many links gets.
pub(crate) fn share(links: usize) -> f64 {
    if links == 0 { 0.0 } else { 1.0 / links as f64 }
}

/// Takes links in any order.
#[derive(Debug, Clone, Default)]
pub struct GraphBuilder {
    links: Vec<(u32, u32)>,
}

impl GraphBuilder {
    /// No links yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A link.
    pub fn add(&mut self, from: u32, to: u32) {
        self.links.push((from, to));
    }

    /// How many links were added.
    #[must_use]
    pub fn added(&self) -> usize {
        self.links.len()
    }

    /// The graph of `pages` pages, or of as many as the links name.
    ///
    /// # Errors
    /// When a link names a page beyond the last.
    #[expect(clippy::indexing_slicing, reason = "pages are checked against the number of rows first")]
    pub fn build(self, pages: Option<usize>) -> Result<Graph, ImportanceError> {
        let last = self.links.iter().map(|(from, to)| (*from).max(*to)).max();
        let needed = last.map_or(0, |last| last as usize + 1);
        let pages = pages.unwrap_or(needed);
        if needed > pages {
            return Err(ImportanceError::Page { page: needed as u64 - 1, pages: pages as u64 });
        }
        let mut begins = vec![0u64; pages + 1];
        for (from, _) in &self.links {
            begins[*from as usize + 1] += 1;
        }
        for row in 1..begins.len() {
            begins[row] += begins[row - 1];
        }
        let (mut next, mut targets) = (begins.clone(), vec![0u32; self.links.len()]);
        for (from, to) in &self.links {
            let place = &mut next[*from as usize];
            targets[*place as usize] = *to;
            *place += 1;
        }
        drop(self.links);
        let mut rows: Vec<&mut [u32]> = Vec::with_capacity(pages);
        let mut rest = &mut targets[..];
        for row in 0..pages {
            let (this, others) = rest.split_at_mut((begins[row + 1] - begins[row]) as usize);
            rows.push(this);
            rest = others;
        }
        let kept: Vec<usize> = rows.par_iter_mut().with_min_len(4096).map(|row| tidy(row)).collect();
        let mut write = 0;
        for row in 0..pages {
            let begin = begins[row] as usize;
            targets.copy_within(begin..begin + kept[row], write);
            begins[row] = write as u64;
            write += kept[row];
        }
        begins[pages] = write as u64;
        targets.truncate(write);
        targets.shrink_to_fit();
        let out = Rows { begins, pages: targets };
        Ok(Graph { into: out.transposed(), out })
    }
}

/// Brings a page's links, given in the order of the page, into a sorted row without repetition; says how many are left.
/// Of more than [`LINKS_MAX`] the first ones stay.
pub(crate) fn tidy(links: &mut [u32]) -> usize {
    if links.len() > LINKS_MAX {
        let mut placed: Vec<(u32, u32)> =
            links.iter().zip(0u32..).map(|(link, place)| (*link, place)).collect();
        placed.sort_unstable();
        placed.dedup_by_key(|(link, _)| *link);
        placed.sort_unstable_by_key(|(_, place)| *place);
        placed.truncate(LINKS_MAX);
        let kept = placed.len();
        for (link, (named, _)) in links.iter_mut().zip(placed) {
            *link = named;
        }
        if let Some(kept) = links.get_mut(..kept) {
            kept.sort_unstable();
        }
        return kept;
    }
    links.sort_unstable();
    let mut kept = 0;
    for read in 0..links.len() {
        let link = links.get(read).copied();
        if kept == 0 || links.get(kept - 1).copied() != link {
            links.swap(kept, read);
            kept += 1;
        }
    }
    kept
}
