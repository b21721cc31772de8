//! Lookups as a load: as fast as answers come (closed loop), or arriving by the clock, whether earlier ones were answered or
//! not (open loop). In the open loop a lookup's time counts from when it should have arrived: who is late cannot hide it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use webbase_node::Cluster;
use webbase_storage::PageKey;

use crate::corpus::Random;
use crate::measure::touch;

/// Arrivals that fell due are sent so often.
const TICK: Duration = Duration::from_micros(200);

/// One lookup of an open loop.
#[derive(Clone, Copy)]
pub struct Answered {
    /// When it was due.
    pub due: Instant,
    /// When its answer was there.
    pub done: Instant,
    /// The generation that answered; `None` if it failed or the page was not there.
    pub generation: Option<u64>,
}

impl Answered {
    /// Milliseconds from due to done.
    pub fn latency_ms(&self) -> f64 {
        self.done.duration_since(self.due).as_secs_f64() * 1e3
    }
}

/// Lookups per second when each client asks again as soon as it was answered.
pub async fn closed_loop(clients: &[Cluster], keys: &Arc<[PageKey]>, time: Duration) -> f64 {
    let until = Instant::now() + time;
    let started = Instant::now();
    let mut tasks = Vec::new();
    for (n, client) in clients.iter().enumerate() {
        let (client, keys) = (client.clone(), keys.clone());
        tasks.push(tokio::spawn(async move {
            let (mut random, mut count) = (Random(n as u64), 0_u64);
            while Instant::now() < until {
                let key = keys[random.below(keys.len() as u64) as usize];
                let record = client.lookup(key).await.expect("an answer").pages.expect("a page");
                std::hint::black_box(touch(record.bytes()));
                count += 1;
            }
            count
        }));
    }
    let mut count = 0;
    for task in tasks {
        count += task.await.expect("a client's end");
    }
    count as f64 / started.elapsed().as_secs_f64()
}

/// Lookups that arrive at a fixed rate until it is stopped.
pub struct OpenLoop {
    stop: Arc<AtomicBool>,
    arrivals: std::thread::JoinHandle<u64>,
    answers: Arc<Mutex<Vec<Answered>>>,
    open: Arc<AtomicU64>,
}

impl OpenLoop {
    /// Starts it; lookups run on the runtime, clients take turns.
    pub fn start(runtime: &Handle, clients: &[Cluster], keys: &Arc<[PageKey]>, per_second: f64) -> OpenLoop {
        let stop = Arc::new(AtomicBool::new(false));
        let answers = Arc::new(Mutex::new(Vec::with_capacity(1 << 20)));
        let open = Arc::new(AtomicU64::new(0));
        let (runtime, clients, keys) = (runtime.clone(), clients.to_vec(), keys.clone());
        let (stopped, taken, opened) = (stop.clone(), answers.clone(), open.clone());
        let arrivals = std::thread::spawn(move || {
            let (start, mut count, mut random) = (Instant::now(), 0_u64, Random(77));
            while !stopped.load(Ordering::Relaxed) {
                loop {
                    let due = start + Duration::from_secs_f64(count as f64 / per_second);
                    if due > Instant::now() {
                        break;
                    }
                    let client = clients[count as usize % clients.len()].clone();
                    let key = keys[random.below(keys.len() as u64) as usize];
                    let (taken, opened) = (taken.clone(), opened.clone());
                    opened.fetch_add(1, Ordering::Relaxed);
                    runtime.spawn(async move {
                        let found = client.lookup(key).await;
                        let page = found.ok().and_then(|f| Some((f.generation, f.pages?)));
                        let generation = page.map(|(generation, record)| {
                            std::hint::black_box(touch(record.bytes()));
                            generation
                        });
                        let answered = Answered { due, done: Instant::now(), generation };
                        taken.lock().expect("no panic").push(answered);
                        opened.fetch_sub(1, Ordering::Relaxed);
                    });
                    count += 1;
                }
                std::thread::sleep(TICK);
            }
            count
        });
        OpenLoop { stop, arrivals, answers, open }
    }

    /// Ends it, waits for every answer, and returns them in the order they came.
    pub async fn stop(self) -> Vec<Answered> {
        self.stop.store(true, Ordering::Relaxed);
        let count = self.arrivals.join().expect("the end of arrivals");
        while self.open.load(Ordering::Relaxed) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut answers = std::mem::take(&mut *self.answers.lock().expect("no panic"));
        assert_eq!(answers.len() as u64, count);
        answers.sort_by_key(|answered| answered.done);
        answers
    }
}

/// Latencies in short.
#[derive(Clone, Copy, Default)]
pub struct Latencies {
    /// How many.
    pub count: usize,
    /// Of them, without the page that was asked for.
    pub failed: usize,
    /// The middle one, in milliseconds.
    pub p50_ms: f64,
    /// 99 % are not above it.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
    /// The longest time without any completion.
    pub gap_ms: f64,
}

/// The latencies of answers, which are in order of completion.
pub fn latencies<'a>(answers: impl Iterator<Item = &'a Answered>) -> Latencies {
    let answers: Vec<&Answered> = answers.collect();
    let mut all: Vec<f64> = answers.iter().map(|answered| answered.latency_ms()).collect();
    all.sort_by(f64::total_cmp);
    let Some(max_ms) = all.last().copied() else { return Latencies::default() };
    let gap = |pair: &[&Answered]| pair[1].done.duration_since(pair[0].done).as_secs_f64() * 1e3;
    Latencies {
        count: all.len(),
        failed: answers.iter().filter(|answered| answered.generation.is_none()).count(),
        p50_ms: all[all.len() / 2],
        p99_ms: all[all.len() * 99 / 100],
        max_ms,
        gap_ms: answers.windows(2).map(gap).fold(0.0, f64::max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_count_from_when_a_lookup_was_due() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let one = |due, done, generation| Answered { due: at(due), done: at(done), generation };
        let found = latencies([one(0, 1, Some(1)), one(1, 3, Some(1)), one(1, 31, None)].iter());
        assert_eq!((found.count, found.failed), (3, 1));
        assert!((found.p50_ms - 2.0).abs() < 0.01 && (found.max_ms - 30.0).abs() < 0.01);
        assert!((found.gap_ms - 28.0).abs() < 0.01);
        assert_eq!(latencies([].iter()).count, 0);
    }
}
