//! What time it is in a world: a clock that runs, at any speed, or one that stands until it is moved.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

/// A world's clock; copies show the same time.
#[derive(Clone, Debug)]
pub struct Clock(Works);

#[derive(Clone, Debug)]
enum Works {
    Running { from_ms: u64, since: Instant, speed: f64 },
    Discrete(Arc<AtomicU64>),
}

/// What moves a discrete clock.
#[derive(Clone, Debug)]
pub struct Hand(Arc<AtomicU64>);

impl Clock {
    /// A clock that shows a moment now, and goes on from there `speed` times as fast as real time. It follows tokio's time, so
    /// it stands where a test has paused that.
    pub fn running(from_ms: u64, speed: f64) -> Clock {
        Clock(Works::Running { from_ms, since: Instant::now(), speed })
    }

    /// A clock that stands at a moment until its hand is moved.
    pub fn discrete(at_ms: u64) -> (Clock, Hand) {
        let now = Arc::new(AtomicU64::new(at_ms));
        (Clock(Works::Discrete(Arc::clone(&now))), Hand(now))
    }

    /// The moment it shows, in milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        match &self.0 {
            Works::Running { from_ms, since, speed } => {
                from_ms.saturating_add((since.elapsed().as_secs_f64() * 1000.0 * speed) as u64)
            }
            Works::Discrete(now) => now.load(Ordering::Acquire),
        }
    }
}

impl Hand {
    /// Moves the clock to a moment; never back.
    pub fn move_to(&self, at_ms: u64) {
        self.0.fetch_max(at_ms, Ordering::AcqRel);
    }

    /// Moves the clock on.
    pub fn advance(&self, by_ms: u64) {
        self.0.fetch_add(by_ms, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_running_clock_follows_its_speed() {
        let clock = Clock::running(1_000_000, 3600.0);
        assert_eq!(clock.now_ms(), 1_000_000);
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(clock.clone().now_ms(), 1_000_000 + 36_000_000);
    }

    #[test]
    fn a_discrete_clock_stands_until_it_is_moved_and_never_goes_back() {
        let (clock, hand) = Clock::discrete(5);
        assert_eq!(clock.now_ms(), 5);
        hand.advance(7);
        hand.move_to(3);
        assert_eq!(clock.now_ms(), 12);
    }
}
