//! Work done by several threads, its results taken one at a time and in order.
//!
//! There is no thread that takes: whoever hands in the result that is next takes it, and all that wait behind it, while
//! the others go on working. So the first result is taken while the last is still to be made. When too many wait to be
//! taken, because taking is the slower part, the others wait as well.

use std::collections::BTreeMap;

use parking_lot::{Condvar, Mutex, MutexGuard};
use rayon::prelude::*;

use crate::error::{Result, StorageError};

/// Results that may wait for their turn, or two a thread: enough to keep whoever takes them busy, few enough to stay in
/// a cache.
const WAITING_MAX: usize = 16;

/// Makes a result of each item, on all cores, and takes the results in the order of the items. After a failure to take
/// one, which is returned, no more are made or taken.
pub(crate) fn make_and_take<I: Sync, T: Send>(
    items: &[I],
    make: impl Fn(&I) -> T + Sync,
    take: impl FnMut(T) -> Result<()> + Send,
) -> Result<()> {
    let state = State { next: 0, ready: BTreeMap::new(), first_waiting: 0, take: Some(take), failed: None };
    let threads = rayon::current_num_threads();
    let waiting_max = WAITING_MAX.max(2 * threads);
    let queue = Queue { state: Mutex::new(state), waiting_max, taken: Condvar::new() };
    let work = |_| {
        let _ending = EndIfPanicking(&queue);
        // In turn, and not a share for each thread: what is made first is what is taken first.
        while let Some(n) = queue.next(items.len()) {
            if let Some(item) = items.get(n) {
                queue.hand_in(n, make(item));
            }
        }
    };
    match threads.min(items.len()) {
        0 | 1 => work(0),
        threads => (0..threads).into_par_iter().with_max_len(1).for_each(work),
    }
    queue.state.into_inner().failed.map_or(Ok(()), Err)
}

struct Queue<T, F> {
    state: Mutex<State<T, F>>,
    waiting_max: usize,
    /// Something was taken, or nothing will be any more.
    taken: Condvar,
}

struct State<T, F> {
    /// The next item to make a result of.
    next: usize,
    ready: BTreeMap<usize, T>,
    /// The number of the result to be taken next.
    first_waiting: usize,
    /// `None` while somebody is taking.
    take: Option<F>,
    failed: Option<StorageError>,
}

impl<T, F: FnMut(T) -> Result<()>> Queue<T, F> {
    /// The number of an item nobody has begun.
    fn next(&self, count: usize) -> Option<usize> {
        let mut state = self.state.lock();
        // Somebody else is making or taking the first of them, or it would not be waiting: it goes on without us.
        while state.next < count && state.ready.len() >= self.waiting_max && state.failed.is_none() {
            self.taken.wait(&mut state);
        }
        let n = Some(state.next).filter(|&n| n < count && state.failed.is_none())?;
        state.next += 1;
        Some(n)
    }

    fn hand_in(&self, n: usize, result: T) {
        let mut state = self.state.lock();
        state.ready.insert(n, result);
        // Whoever is taking looks again before ending, and finds this one.
        let Some(mut take) = state.take.take() else { return };
        while state.failed.is_none() {
            let first = state.first_waiting;
            let Some(result) = state.ready.remove(&first) else { break };
            state.first_waiting += 1;
            state.failed = MutexGuard::unlocked(&mut state, || take(result)).err();
            self.taken.notify_all();
        }
        state.take = Some(take);
    }
}

/// A panic of one ends the work of all: nobody may wait for what will never be made or taken.
struct EndIfPanicking<'a, T, F>(&'a Queue<T, F>);

impl<T, F> Drop for EndIfPanicking<'_, T, F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut state = self.0.state.lock();
            state.next = usize::MAX;
            state.ready.clear();
            self.0.taken.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn results_are_taken_in_order_and_all_of_them() {
        for count in [0, 1, 2, 5, 3000] {
            let items: Vec<usize> = (0..count).collect();
            let mut taken = Vec::new();
            // Some take long to make, some to take: so results wait for their turn, and makers for takers.
            let make = |&n: &usize| {
                std::thread::sleep(std::time::Duration::from_micros(if n % 7 == 0 { 50 } else { 0 }));
                n
            };
            let take = |n| {
                std::thread::sleep(std::time::Duration::from_micros(if n % 100 < 20 { 50 } else { 0 }));
                taken.push(n);
                Ok(())
            };
            make_and_take(&items, make, take).unwrap();
            assert_eq!(taken, items);
        }
    }

    #[test]
    fn nothing_is_made_or_taken_after_a_failure() {
        let items: Vec<usize> = (0..10_000).collect();
        let (made, mut taken) = (AtomicUsize::new(0), 0);
        let make = |&n: &usize| {
            made.fetch_add(1, Ordering::Relaxed);
            n
        };
        let take = |n| {
            taken += 1;
            if n == 100 { Err(StorageError::UnknownDictionary { digest: 100 }) } else { Ok(()) }
        };
        let failed = make_and_take(&items, make, take);
        assert!(matches!(failed, Err(StorageError::UnknownDictionary { digest: 100 })));
        assert_eq!(taken, 101);
        let ahead = WAITING_MAX + 4 * rayon::current_num_threads();
        assert!(made.into_inner() <= 101 + ahead);
    }

    #[test]
    fn a_panic_of_one_ends_the_work_of_all() {
        let items: Vec<usize> = (0..1000).collect();
        let panic_at_50 = |n| assert!(n != 50, "as planned");
        let taking = || {
            let take = |n| {
                panic_at_50(n);
                Ok(())
            };
            make_and_take(&items, |&n| n, take)
        };
        assert!(std::panic::catch_unwind(taking).is_err());
        let making = || make_and_take(&items, |&n| panic_at_50(n), |()| Ok(()));
        assert!(std::panic::catch_unwind(making).is_err());
    }
}
