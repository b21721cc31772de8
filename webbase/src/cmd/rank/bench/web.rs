//! Random webs, the same for the same seed.

use anyhow::Result;
use webbase_crawler::importance::{Graph, GraphBuilder};

/// Links of a page.
pub(super) const LINKS: u32 = 10;
/// One page in so many is of interest.
pub(super) const INTEREST: u32 = 50;

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, below: u32) -> u32 {
        // xorshift64*: the high half, scaled.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        ((high * u64::from(below)) >> 32) as u32
    }
}

/// The links of `page`: so many percent of them within a thousand pages, the others anywhere.
pub(super) fn links(random: &mut Random, page: u32, pages: u32, local: u32, into: &mut Vec<u32>) {
    into.clear();
    for _ in 0..LINKS {
        let near = random.below(100) < local;
        into.push(if near { (page + random.below(1000)) % pages } else { random.below(pages) });
    }
}

pub(super) fn graph(pages: u32, local: u32) -> Result<Graph> {
    let (mut random, mut builder, mut of_page) = (Random(42), GraphBuilder::new(), Vec::new());
    for page in 0..pages {
        links(&mut random, page, pages, local, &mut of_page);
        of_page.iter().for_each(|link| builder.add(page, *link));
    }
    Ok(builder.build(Some(pages as usize))?)
}
