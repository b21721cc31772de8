//! Work done ahead by several threads and handed over in order.
//!
//! 1. At most `ahead` results wait or are under way, so memory is bounded however slow the consumer is.
//! 2. What nobody has begun when the consumer asks for it, the consumer does itself: no thread is needed for progress,
//!    and none is for a single piece.
//! 3. Dropping it ends the threads when the pieces under way are done; they are not waited for.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// The results of `work(0)`, `work(1)`, … in this order.
pub(crate) struct InOrder<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    work: Box<dyn Fn(usize) -> T + Send + Sync>,
    count: usize,
    ahead: usize,
    state: Mutex<State<T>>,
    /// The piece the consumer waits for is done.
    done: Condvar,
    /// There is room for another piece, or none is wanted any more.
    room: Condvar,
}

struct State<T> {
    /// Pieces handed over.
    taken: usize,
    /// Pieces begun and not handed over, from `taken` on.
    begun: VecDeque<Piece<T>>,
    stop: bool,
}

enum Piece<T> {
    UnderWay,
    Done(T),
    /// Its thread panicked.
    Lost,
}

impl<T: Send + 'static> InOrder<T> {
    /// `count` pieces of work by `threads` threads, at most `ahead` pieces before the consumer.
    pub(crate) fn new(
        count: usize,
        threads: usize,
        ahead: usize,
        work: impl Fn(usize) -> T + Send + Sync + 'static,
    ) -> InOrder<T> {
        let state = State { taken: 0, begun: VecDeque::new(), stop: false };
        let shared = Arc::new(Shared {
            work: Box::new(work),
            count,
            ahead: ahead.max(1),
            state: Mutex::new(state),
            done: Condvar::new(),
            room: Condvar::new(),
        });
        if count > 1 {
            for _ in 0..threads.min(count) {
                let shared = shared.clone();
                // Without a thread the consumer does the work.
                let _ = std::thread::Builder::new().name("webbase-ahead".into()).spawn(move || shared.run());
            }
        }
        InOrder { shared }
    }
}

impl<T> InOrder<T> {
    /// The next result; `None` behind the last.
    pub(crate) fn next(&mut self) -> Option<T> {
        let shared = &*self.shared;
        let mut state = shared.state.lock();
        let number = state.taken;
        if number >= shared.count {
            return None;
        }
        while let Some(Piece::UnderWay) = state.begun.front() {
            shared.done.wait(&mut state);
        }
        let piece = state.begun.pop_front();
        state.taken += 1;
        drop(state);
        shared.room.notify_one();
        Some(match piece {
            Some(Piece::Done(result)) => result,
            // Not begun, or lost with its thread: then a panic comes where it is seen.
            _ => (shared.work)(number),
        })
    }
}

impl<T> Drop for InOrder<T> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.stop = true;
        let unread = std::mem::take(&mut state.begun);
        drop(state);
        self.shared.room.notify_all();
        drop(unread);
    }
}

impl<T> fmt::Debug for InOrder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InOrder({} of {})", self.shared.state.lock().taken, self.shared.count)
    }
}

impl<T> Shared<T> {
    /// A thread's life.
    fn run(&self) {
        while let Some(number) = self.begin() {
            let mut unfinished = Unfinished { shared: self, number, result: Piece::Lost };
            unfinished.result = Piece::Done((self.work)(number));
        }
    }

    fn begin(&self) -> Option<usize> {
        let mut state = self.state.lock();
        loop {
            let number = state.taken + state.begun.len();
            if state.stop || number >= self.count {
                return None;
            }
            if state.begun.len() < self.ahead {
                state.begun.push_back(Piece::UnderWay);
                return Some(number);
            }
            self.room.wait(&mut state);
        }
    }
}

/// Puts a piece's result in its place, also when the work panics, so that the consumer never waits in vain.
struct Unfinished<'a, T> {
    shared: &'a Shared<T>,
    number: usize,
    result: Piece<T>,
}

impl<T> Drop for Unfinished<'_, T> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        let at = self.number.checked_sub(state.taken);
        if let Some(place) = at.and_then(|at| state.begun.get_mut(at)) {
            *place = std::mem::replace(&mut self.result, Piece::Lost);
        }
        drop(state);
        if at == Some(0) {
            self.shared.done.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn results_come_in_order_with_any_number_of_threads() {
        for threads in 0..5 {
            for count in [0, 1, 2, 100] {
                let mut pieces = InOrder::new(count, threads, 3, |i| {
                    if i % 3 == 0 {
                        std::thread::yield_now();
                    }
                    i * 2
                });
                let all: Vec<usize> = std::iter::from_fn(|| pieces.next()).collect();
                assert_eq!(all, (0..count).map(|i| i * 2).collect::<Vec<_>>());
                assert_eq!(pieces.next(), None);
            }
        }
    }

    #[test]
    fn no_more_is_done_ahead_than_allowed() {
        let begun = Arc::new(AtomicUsize::new(0));
        let counter = begun.clone();
        let mut pieces = InOrder::new(1000, 3, 4, move |i| {
            counter.fetch_add(1, Ordering::SeqCst);
            i
        });
        for taken in 1..=1000 {
            assert!(pieces.next().is_some());
            assert!(begun.load(Ordering::SeqCst) <= taken + 4, "after {taken}");
        }
    }

    #[test]
    fn dropped_early_its_threads_end() {
        let held = Arc::new(());
        let in_work = held.clone();
        let mut pieces = InOrder::new(1000, 4, 8, move |i| (i, in_work.clone()));
        pieces.next().unwrap();
        drop(pieces);
        // Ends when the threads have let go of the work; hangs if one does not.
        while Arc::strong_count(&held) > 1 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_panic_reaches_the_consumer() {
        let mut pieces = InOrder::new(10, 2, 4, |i| {
            assert!(i != 5, "expected by this test");
            i
        });
        let first: Vec<_> = (0..5).filter_map(|_| pieces.next()).collect();
        assert_eq!(first, [0, 1, 2, 3, 4]);
        let lost = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pieces.next()));
        assert!(lost.is_err());
        assert_eq!(pieces.next(), Some(6));
    }
}
