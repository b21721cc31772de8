//! Who answers questions about ranges, under the distribution `uniform`: the index, a thread that assigns, and one that
//! merges runs.
//!
//! ```text
//!   Assign ──▶ queue ──▶ one thread: all that wait, one sync ──▶ answers
//!   Find   ──▶ any thread                  │ a run was written
//!                                          ▼
//!                              another thread merges runs
//! ```
//!
//! While the index is not complete, what it knows is told, and of what it does not know it is said that this cannot be told
//! yet: a page that has a range must not get another one.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc as threads};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use webbase_node::cycle::RangeMap;
use webbase_node::cycle::message::Removal;
use webbase_node::plan::{Ask, INDEX_KEYS_MAX, PageIndexStatus, Repository, Told};
use webbase_node::wire::message::Key;
use webbase_storage::disk::{Disk, DiskLock, OsDisk};
use webbase_storage::{PageId, PageKey, crc64};

use crate::ServerError;
use crate::page_index::PageIndex;
use crate::steering::Steering;

/// Questions that may wait.
const QUEUE_MAX: usize = 256;
/// Keys that share a sync, about.
const BATCH_KEYS: usize = 64 << 10;

/// Something for the thread that assigns.
enum Work {
    Assign(Vec<PageKey>, oneshot::Sender<Told>),
    Take(Vec<(PageKey, u16)>, oneshot::Sender<u64>),
    Complete(u64, oneshot::Sender<()>),
    Anew(u64, Option<oneshot::Sender<()>>),
    Stop,
}

/// The index and its threads. Clones share them.
#[derive(Clone)]
pub(crate) struct Assigner {
    index: Arc<PageIndex>,
    map: RangeMap,
    work: mpsc::Sender<Work>,
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
    stopping: Arc<AtomicBool>,
}

/// What came of looking into the index.
type Looked<T> = Result<T, Told>;

impl Assigner {
    /// Opens the index in the management server's folder, and starts the threads. A disk that fails them is told through
    /// `failed`.
    pub(crate) fn start(
        dir: &Path,
        repository: &Repository,
        no_pages_yet: bool,
        steering: watch::Receiver<Arc<Steering>>,
        failed: mpsc::Sender<ServerError>,
    ) -> Result<Assigner, ServerError> {
        let disk: Arc<dyn Disk> = Arc::new(OsDisk::new());
        let dir = dir.join("page-index");
        disk.create_dir(&dir).map_err(|e| ServerError::io("create", &dir, e))?;
        let lock = disk.lock(&dir.join("LOCK")).map_err(|e| ServerError::io("lock", &dir, e))?;
        let lock: Arc<dyn DiskLock> = Arc::from(lock.ok_or(ServerError::Locked { path: dir.clone() })?);
        let index = Arc::new(PageIndex::open(disk, &dir, crc64(&repository.key), no_pages_yet)?);
        let (work, queue) = mpsc::channel(QUEUE_MAX);
        let (wake, woken) = threads::sync_channel(1);
        let stopping = Arc::new(AtomicBool::new(false));
        let assigning = Assigning {
            index: index.clone(),
            steering,
            count: AtomicU64::new(0),
            wake,
            failed: failed.clone(),
            _lock: lock.clone(),
        };
        let merging = Merging {
            index: index.clone(),
            work: work.downgrade(),
            stopping: stopping.clone(),
            failed,
            _lock: lock,
        };
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.into()).spawn(run);
            thread.map_err(|e| ServerError::io("start a thread for", &dir, e))
        };
        let threads = vec![
            spawn("page-index", Box::new(move || assigning.run(queue)))?,
            spawn("page-index-merge", Box::new(move || merging.run(&woken)))?,
        ];
        let threads = Arc::new(Mutex::new(threads));
        Ok(Assigner { index, map: repository.map, work, threads, stopping })
    }

    /// How the index stands.
    pub(crate) fn status(&self) -> PageIndexStatus {
        self.index.status()
    }

    /// Whether every page is in the index.
    pub(crate) fn is_complete(&self) -> bool {
        self.index.is_complete()
    }

    /// Answers a question about the index; others are given back, with the ranges of pages put into their versions.
    pub(crate) async fn answer(&self, ask: Ask) -> Result<Ask, Told> {
        match ask {
            Ask::Assign(keys) => Err(self.assign(bounded(keys).map_err(Told::Refused)?).await),
            Ask::Find(keys) => Err(Told::Ranges(self.find(bounded(keys).map_err(Told::Refused)?).await?)),
            Ask::FindId(id) => Err(self.find_id(PageId(id)).await),
            Ask::Remove(pages) => Ok(Ask::Remove(self.placed(pages).await?)),
            Ask::Due(pages) => Ok(Ask::Due(self.placed(pages).await?)),
            ask => Ok(ask),
        }
    }

    async fn assign(&self, keys: Vec<PageKey>) -> Told {
        let (answer, answered) = oneshot::channel();
        if self.work.send(Work::Assign(keys, answer)).await.is_err() {
            return going_down();
        }
        answered.await.unwrap_or_else(|_| going_down())
    }

    /// The ranges of pages, if all can be told.
    async fn find(&self, keys: Vec<PageKey>) -> Looked<Vec<Option<u16>>> {
        // What is not found does not exist, if the index was complete before and was not begun anew meanwhile.
        let (complete, life) = (self.index.is_complete(), self.index.life());
        let ranges = self.look(move |index| index.find(&keys)).await?;
        match (complete && self.is_same(life)) || ranges.iter().all(Option::is_some) {
            true => Ok(ranges),
            false => Err(incomplete()),
        }
    }

    /// Whether the index was not begun anew since, which leaves it incomplete at first.
    fn is_same(&self, life: u64) -> bool {
        self.index.is_complete() && self.index.life() == life
    }

    async fn find_id(&self, id: PageId) -> Told {
        let (complete, life) = (self.index.is_complete(), self.index.life());
        match self.look(move |index| index.find_id(id)).await {
            Ok(_) if !(complete && self.is_same(life)) => incomplete(),
            Ok(pages) => Told::Pages(pages.into_iter().map(|(key, range)| (key.into(), range)).collect()),
            Err(told) => told,
        }
    }

    /// Removals of pages that exist, with their ranges in the bounds.
    async fn placed(&self, pages: Vec<Removal>) -> Looked<Vec<Removal>> {
        let mut placed = Vec::with_capacity(pages.len());
        for some in pages.chunks(INDEX_KEYS_MAX) {
            let ranges = self.find(some.iter().map(|page| page.key).collect()).await?;
            let known = some.iter().zip(ranges).filter_map(|(page, range)| Some((page, range?)));
            placed.extend(known.map(|(page, range)| Removal {
                bound: self.map.in_range(page.bound, range.into()),
                ..*page
            }));
        }
        Ok(placed)
    }

    async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&PageIndex) -> Result<T, ServerError> + Send + 'static,
    ) -> Looked<T> {
        let (index, life) = (self.index.clone(), self.index.life());
        match tokio::task::spawn_blocking(move || look(&index)).await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(ServerError::Damaged { .. })) => {
                // If the thread is gone, so is the server.
                let (answer, answered) = oneshot::channel();
                if self.work.send(Work::Anew(life, Some(answer))).await.is_ok() {
                    let _begun = answered.await;
                }
                Err(incomplete())
            }
            Ok(Err(e)) => Err(Told::NotYet(e.to_string())),
            Err(_) => Err(going_down()),
        }
    }

    /// Takes pages from a node's list; says how many of them are in another range already.
    pub(crate) async fn take(&self, pages: Vec<(PageKey, u16)>) -> Option<u64> {
        let (answer, answered) = oneshot::channel();
        self.work.send(Work::Take(pages, answer)).await.ok()?;
        answered.await.ok()
    }

    /// Grows when the index is begun anew.
    pub(crate) fn life(&self) -> u64 {
        self.index.life()
    }

    /// All lists were taken, in this life of the index.
    pub(crate) async fn complete(&self, life: u64) -> Option<()> {
        let (answer, answered) = oneshot::channel();
        self.work.send(Work::Complete(life, answer)).await.ok()?;
        answered.await.ok()
    }

    /// Ends the threads, and waits for them.
    pub(crate) async fn stop(&self) {
        self.let_go();
        let _ended_before = self.work.send(Work::Stop).await;
        let threads = std::mem::take(&mut *self.threads.lock());
        let joining =
            tokio::task::spawn_blocking(move || threads.into_iter().map(JoinHandle::join).all(|j| j.is_ok()));
        let _all_well = joining.await;
    }

    /// Has the threads end soon.
    pub(crate) fn let_go(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        let _full_or_ended = self.work.try_send(Work::Stop);
    }
}

fn bounded(keys: Vec<Key>) -> Result<Vec<PageKey>, String> {
    match keys.len() {
        0..=INDEX_KEYS_MAX => Ok(keys.into_iter().map(PageKey::from).collect()),
        n => Err(format!("{n} pages in one question, at most {INDEX_KEYS_MAX} are answered")),
    }
}

fn incomplete() -> Told {
    Told::NotYet("the index of pages is being made anew from the nodes' lists".into())
}

fn going_down() -> Told {
    Told::NotYet("the management server is going down".into())
}

/// The thread that assigns.
struct Assigning {
    index: Arc<PageIndex>,
    steering: watch::Receiver<Arc<Steering>>,
    /// Pages that got a range.
    count: AtomicU64,
    wake: threads::SyncSender<()>,
    failed: mpsc::Sender<ServerError>,
    _lock: Arc<dyn DiskLock>,
}

impl Assigning {
    fn run(self, mut queue: mpsc::Receiver<Work>) {
        while let Some(first) = queue.blocking_recv() {
            let mut waiting = Some(first);
            let (mut answers, mut keys) = (Vec::new(), 0);
            let mut outcome = Ok(());
            while let Some(work) = waiting.take() {
                match work {
                    Work::Stop => return,
                    work => {
                        outcome = outcome.and_then(|()| self.work(work, &mut answers, &mut keys));
                    }
                }
                if keys < BATCH_KEYS && outcome.is_ok() {
                    waiting = queue.try_recv().ok();
                }
            }
            match outcome.and_then(|()| self.index.commit()) {
                Ok(()) => answers.into_iter().for_each(|(answer, told)| drop(answer.send(told))),
                Err(e) if self.heal(&e).is_ok() => {
                    answers.into_iter().for_each(|(answer, _)| drop(answer.send(incomplete())));
                }
                Err(e) => {
                    let _hub_gone = self.failed.blocking_send(e);
                    return;
                }
            }
            // It is awake already if this is refused.
            let _awake = self.wake.try_send(());
        }
    }

    fn work(
        &self,
        work: Work,
        answers: &mut Vec<(oneshot::Sender<Told>, Told)>,
        count: &mut usize,
    ) -> Result<(), ServerError> {
        match work {
            Work::Assign(keys, answer) => {
                *count += keys.len();
                let told = match self.assign(&keys) {
                    Ok(told) => told,
                    Err(e) => {
                        // Who asked hears it with the others.
                        answers.push((answer, incomplete()));
                        return Err(e);
                    }
                };
                answers.push((answer, told));
            }
            Work::Take(pages, answer) => {
                let differing = self.index.take(&pages)?;
                let _gone = answer.send(differing);
            }
            Work::Complete(life, answer) => {
                self.index.complete(life)?;
                let _gone = answer.send(());
            }
            Work::Anew(life, answer) => {
                self.index.begin_anew(life)?;
                let _gone = answer.map(|answer| answer.send(()));
            }
            Work::Stop => {}
        }
        Ok(())
    }

    fn assign(&self, keys: &[PageKey]) -> Result<Told, ServerError> {
        if !self.index.is_complete() {
            let ranges = self.index.find(keys)?;
            let all = ranges.iter().all(Option::is_some);
            return Ok(if all { Told::Ranges(ranges) } else { incomplete() });
        }
        let steering = self.steering.borrow().clone();
        let choose = || steering.range(self.count.fetch_add(1, Ordering::Relaxed));
        Ok(Told::Ranges(self.index.assign(keys, choose)?))
    }

    /// A damaged index is begun anew; other errors stay errors.
    fn heal(&self, e: &ServerError) -> Result<(), ()> {
        match e {
            ServerError::Damaged { .. } => self.index.begin_anew(self.index.life()).map_err(|_| ()),
            _ => Err(()),
        }
    }
}

/// The thread that merges.
struct Merging {
    index: Arc<PageIndex>,
    work: mpsc::WeakSender<Work>,
    stopping: Arc<AtomicBool>,
    failed: mpsc::Sender<ServerError>,
    _lock: Arc<dyn DiskLock>,
}

impl Merging {
    fn run(self, woken: &threads::Receiver<()>) {
        while woken.recv().is_ok() {
            loop {
                let life = self.index.life();
                match self.index.merge(&self.stopping) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(ServerError::Damaged { .. }) => {
                        // Without the other thread there is no server any more.
                        let _gone =
                            self.work.upgrade().map(|work| work.blocking_send(Work::Anew(life, None)));
                        break;
                    }
                    Err(e) => {
                        let _hub_gone = self.failed.blocking_send(e);
                        return;
                    }
                }
            }
        }
    }
}
