//! The most urgent of many, in one pass and in memory for a few of them.

/// The `limit` highest of all that is offered. Holds at most twice as many.
pub(super) struct Top {
    limit: usize,
    kept: Vec<(f32, u32)>,
    /// Nothing below can be among the highest any more.
    least: f32,
}

impl Top {
    pub(super) fn new(limit: usize) -> Top {
        Top { limit, kept: Vec::new(), least: 0.0 }
    }

    /// Offers a page. What is not above 0 is never taken.
    pub(super) fn offer(&mut self, urgency: f32, page: u32) {
        if urgency > self.least {
            self.kept.push((urgency, page));
            if self.kept.len() >= self.limit.saturating_mul(2).max(1024) {
                self.prune();
            }
        }
    }

    /// The highest, most urgent first; equal ones in order of their numbers.
    pub(super) fn finish(mut self) -> Vec<u32> {
        self.prune();
        self.kept.sort_unstable_by(order);
        self.kept.into_iter().map(|(_, page)| page).collect()
    }

    fn prune(&mut self) {
        if self.limit == 0 {
            self.kept.clear();
            self.least = f32::INFINITY;
        } else if self.kept.len() > self.limit {
            let (_, last, _) = self.kept.select_nth_unstable_by(self.limit - 1, order);
            self.least = last.0;
            self.kept.truncate(self.limit);
        }
    }
}

fn order(a: &(f32, u32), b: &(f32, u32)) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}
