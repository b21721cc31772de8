//! When a page is born, changes and dies: Poisson processes whose moments the seed fixes.

use crate::plan::Rates;
use crate::random::Random;
use crate::world::World;
use crate::{DAY_MS, world};

/// The moments at which a page changes, one after the other, without end (unless it never does).
#[derive(Clone, Debug)]
pub struct Changes {
    random: Random,
    /// Changes a millisecond.
    rate: f64,
    at_ms: f64,
}

impl Iterator for Changes {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.rate <= 0.0 {
            return None;
        }
        self.at_ms += self.random.wait(self.rate);
        Some(self.at_ms as u64)
    }
}

impl World {
    /// How often a page changes while it lives, in changes a day.
    pub fn changes_a_day(&self, page: usize) -> f64 {
        let mut random = self.random(world::RATE, page);
        match self.plan().rates {
            Rates::Same(rate) => rate,
            Rates::Spread { slowest, fastest } => slowest * (fastest / slowest).powf(random.fraction()),
            Rates::Web => {
                let rate = match random.below(100) {
                    0..23 => 1.0 + random.fraction() * 3.0,
                    23..70 => 0.02 + random.fraction() * 0.2,
                    _ => random.fraction() * 0.008,
                };
                if self.is_listing(page) { rate.max(0.5) } else { rate }
            }
        }
    }

    /// When a page appears.
    pub fn born_at_ms(&self, page: usize) -> u64 {
        let plan = self.plan();
        let mut random = self.random(world::BIRTH, page);
        if self.is_lasting(page) || random.fraction() >= plan.later_share {
            return plan.began_at_ms;
        }
        plan.began_at_ms.saturating_add(random.wait(plan.births_a_day / DAY_MS as f64) as u64)
    }

    /// When a page dies, if it ever does.
    pub fn died_at_ms(&self, page: usize) -> Option<u64> {
        let plan = self.plan();
        let mut random = self.random(world::DEATH, page);
        if self.is_lasting(page) || random.fraction() >= plan.mortal_share {
            return None;
        }
        Some(self.born_at_ms(page).saturating_add(random.wait(plan.deaths_a_day / DAY_MS as f64) as u64))
    }

    /// Whether a page is there at a moment.
    pub fn lives(&self, page: usize, at_ms: u64) -> bool {
        page < self.pages()
            && self.born_at_ms(page) <= at_ms
            && self.died_at_ms(page).is_none_or(|died| at_ms < died)
    }

    /// The moments at which a page changes, from its birth on; those after its death don't happen.
    pub fn changes(&self, page: usize) -> Changes {
        Changes {
            random: self.random(world::CHANGES, page),
            rate: self.changes_a_day(page) / DAY_MS as f64,
            at_ms: self.born_at_ms(page) as f64,
        }
    }

    /// How often a page has changed by a moment, and when it did last (or was born).
    pub fn version(&self, page: usize, at_ms: u64) -> (u32, u64) {
        let mut last = (0, self.born_at_ms(page));
        for moment in self.changes(page).take_while(|moment| *moment <= at_ms) {
            last = (last.0 + 1, moment);
        }
        last
    }
}
