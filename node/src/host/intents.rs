//! Carrying out what the machine wants done on disk. Each intent is durable when it ends; what each writes to the node's
//! file is a change of the file as it is then.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::epochs::Epochs;
use super::file::NodeFile;
use super::generations::Generations;
use super::peers::Peers;
use super::pull::{Failed, PullProgress, Pulled, Puller};
use super::room::Room;
use super::runs::Runs;
use super::tombstones::Tombstones;
use crate::cycle::message::Ticket;
use crate::cycle::{Done, Intent, Prepared, Pull, RangeSet};
use crate::error::{NodeError, Result};

/// What intents work on.
pub(super) struct Disk {
    pub(super) dir: PathBuf,
    pub(super) file: Mutex<NodeFile>,
    pub(super) update: Option<Arc<Epochs>>,
    pub(super) read: Option<Arc<Generations>>,
    pub(super) peers: Arc<Peers>,
    room: Arc<Room>,
    /// How far the running pull is.
    pub(super) progress: Arc<PullProgress>,
    /// What the last list of a pull found, and what belongs to the state that was pulled.
    job: Mutex<(u64, Pulled)>,
    /// Held while what the store keeps and what the file names may differ.
    keeping: Mutex<()>,
    /// The cycle that the running job belongs to.
    cycle: AtomicU64,
}

impl Disk {
    pub(super) fn new(
        dir: PathBuf,
        file: NodeFile,
        update: Option<Arc<Epochs>>,
        read: Option<Arc<Generations>>,
        peers: Arc<Peers>,
        room: Arc<Room>,
    ) -> Disk {
        Disk {
            dir,
            file: Mutex::new(file),
            update,
            read,
            peers,
            room,
            progress: Arc::default(),
            job: Mutex::default(),
            keeping: Mutex::new(()),
            cycle: AtomicU64::new(0),
        }
    }

    /// Says which cycle the next job belongs to.
    pub(super) fn set_cycle(&self, cycle: u64) {
        self.cycle.store(cycle, Ordering::Relaxed);
    }

    /// Changes the node's file, and what is served with it.
    fn note(&self, change: impl FnOnce(&mut NodeFile)) -> Result<()> {
        let mut file = self.file.lock();
        let mut next = file.clone();
        change(&mut next);
        next.write(&self.dir)?;
        *file = next;
        match &self.read {
            Some(read) => read.serve(&file),
            None => Ok(()),
        }
    }

    /// Carries out an intent.
    pub(super) async fn carry_out(self: Arc<Self>, intent: Intent, cancelled: Arc<AtomicBool>) -> Done {
        match intent {
            Intent::List(pull) => match self.puller(*pull, cancelled) {
                Ok(puller) => match puller.list().await {
                    Ok((pages, bytes)) => {
                        self.job.lock().0 = pages;
                        Done::Listed { pages, bytes }
                    }
                    Err(failed) => failed.into(),
                },
                Err(e) => Done::Disk(e.to_string()),
            },
            Intent::Pull(pull) => {
                let pages = self.job.lock().0;
                let pulled = match self.puller(*pull, cancelled) {
                    Ok(puller) => puller.run(pages, self.cycle.load(Ordering::Relaxed)).await,
                    Err(e) => Err(Failed::from(e)),
                };
                match pulled {
                    Ok(pulled) => {
                        self.job.lock().1 = pulled;
                        Done::Ok
                    }
                    Err(failed) => failed.into(),
                }
            }
            intent => {
                let work = tokio::task::spawn_blocking(move || self.on_disk(intent));
                match work.await {
                    Ok(Ok(done)) => done,
                    Ok(Err(e)) => Done::Disk(e.to_string()),
                    Err(e) => Done::Disk(e.to_string()),
                }
            }
        }
    }

    fn puller(&self, pull: Pull, cancelled: Arc<AtomicBool>) -> Result<Puller> {
        let generations = self.reading()?.clone();
        let file = self.file.lock();
        let number = file.numbers.get(&pull.base).copied();
        let base_ranges =
            file.read.as_ref().and_then(|r| r.kept.get(&pull.base).cloned()).unwrap_or_default();
        drop(file);
        let tombstones = match number {
            Some(number) => Tombstones::read(&generations.dir, number)?,
            None => Tombstones::default(),
        };
        let mut runs = match number {
            Some(number) => Runs::read(&generations.dir, number)?,
            None => Runs::default(),
        };
        if runs == Runs::default() {
            // Of what is there already nobody knows the order.
            runs.extend(Vec::new(), &base_ranges, &RangeSet::new());
        }
        let peers = self.peers.clone();
        let base_number = number.filter(|_| pull.base != 0);
        let progress = self.progress.clone();
        Ok(Puller {
            generations,
            peers,
            pull,
            base_ranges,
            tombstones,
            runs,
            base_number,
            cancelled,
            progress,
        })
    }

    fn reading(&self) -> Result<&Arc<Generations>> {
        self.read.as_ref().ok_or_else(|| NodeError::Foreign { what: "this is no read node".into() })
    }

    fn updating(&self) -> Result<&Arc<Epochs>> {
        self.update.as_ref().ok_or_else(|| NodeError::Foreign { what: "this is no update node".into() })
    }

    fn on_disk(&self, intent: Intent) -> Result<Done> {
        let _keeping = self.keeping.lock();
        match intent {
            Intent::Seal { cycle } => self.seal(Some(cycle))?,
            Intent::Close => self.seal(None)?,
            Intent::DropEpochs { through } => {
                self.note(|file| {
                    if let Some(update) = &mut file.update {
                        update.first_epoch = through + 1;
                    }
                })?;
                self.updating()?.drop_through(through)?;
            }
            Intent::RollBack { to } => self.roll_back(to)?,
            Intent::Reserve { bytes } => {
                // Nobody else writes to this store while the job lasts; some room is left for indexes and catalogs.
                self.reading()?;
                let needed = bytes.saturating_add(bytes / 16).saturating_add(4 << 20);
                let fits = bytes == 0 || self.room.free() >= needed;
                return Ok(if fits { Done::Ok } else { Done::NoSpace });
            }
            Intent::Keep { generation, ranges, ticket, kept } => {
                self.keep(generation, ranges, ticket, &kept)?
            }
            Intent::SwitchTo { generation, kept } => {
                self.note(|file| {
                    let Some(read) = &mut file.read else { return };
                    if let Some(prepared) = read.prepared.take().filter(|p| p.generation == generation) {
                        read.kept.retain(|g, _| kept.contains(g));
                        read.kept.insert(generation, prepared.ranges);
                        read.current = generation;
                    }
                })?;
                self.let_go()?;
            }
            Intent::Release { generations } => {
                self.note(|file| {
                    if let Some(read) = &mut file.read {
                        read.kept.retain(|g, _| !generations.contains(g));
                    }
                })?;
                self.let_go()?;
            }
            Intent::List(_) | Intent::Pull(_) => {}
        }
        Ok(Done::Ok)
    }

    fn seal(&self, cycle: Option<u64>) -> Result<()> {
        let closed = self.file.lock().update.as_ref().is_some_and(|update| update.closed);
        if let Some(cycle) = cycle.filter(|_| closed) {
            // Nothing was added since it was closed: there is no epoch to end.
            return self.note(|file| {
                if let Some(update) = &mut file.update {
                    update.sealed_cycle = cycle;
                }
            });
        }
        self.updating()?.seal(cycle, |open_epoch| {
            self.note(|file| {
                let Some(update) = &mut file.update else { return };
                update.open_epoch = open_epoch;
                match cycle {
                    Some(cycle) => update.sealed_cycle = cycle,
                    None => update.closed = true,
                }
            })
        })
    }

    fn roll_back(&self, to: u64) -> Result<()> {
        self.note(|file| {
            let Some(read) = &mut file.read else { return };
            if let Some(prepared) = read.prepared.take() {
                file.numbers.remove(&prepared.generation);
            }
        })?;
        let number = self.file.lock().numbers.get(&to).copied();
        let generations = self.reading()?;
        match number {
            Some(number) => generations.store.roll_back(number)?,
            None => {
                let what = format!("generation {to} is not kept in {}", generations.dir.display());
                return Err(NodeError::Foreign { what });
            }
        }
        self.let_go()
    }

    fn keep(&self, generation: u64, ranges: RangeSet, ticket: Option<Ticket>, kept: &[u64]) -> Result<()> {
        let generations = self.reading()?;
        let number = self.file.lock().next_number;
        // Never the same number again, also if what follows fails.
        self.note(|file| file.next_number = number + 1)?;
        let (_, Pulled { tombstones, runs, urls }) = std::mem::take(&mut *self.job.lock());
        tombstones.write(&generations.dir, number)?;
        runs.write(&generations.dir, number)?;
        if let Some(urls) = urls {
            generations.urls.save(number, urls)?;
        }
        generations.store.keep_generation(number)?;
        self.note(|file| {
            file.numbers.insert(generation, number);
            let Some(read) = &mut file.read else { return };
            match ticket {
                Some(ticket) => read.prepared = Some(Prepared { ticket, generation, ranges }),
                None => {
                    read.kept.retain(|g, _| kept.contains(g));
                    read.kept.insert(generation, ranges);
                    read.current = generation;
                    read.prepared = None;
                }
            }
        })?;
        self.let_go()
    }

    /// Lets go of all that the store keeps and the file does not name.
    fn let_go(&self) -> Result<()> {
        let generations = self.reading()?;
        let named = {
            let mut file = self.file.lock();
            let Some(read) = file.read.clone() else { return Ok(()) };
            let prepared = read.prepared.as_ref().map(|p| p.generation);
            let needed =
                |g: u64| read.kept.contains_key(&g) || prepared == Some(g) || (g == 0 && read.current == 0);
            file.numbers.retain(|g, _| needed(*g));
            file.numbers.values().copied().collect::<Vec<_>>()
        };
        for number in generations.store.generations() {
            if !named.contains(&number) {
                generations.store.drop_generation(number)?;
                Tombstones::remove(&generations.dir, number)?;
                Runs::remove(&generations.dir, number)?;
            }
        }
        generations.urls.retain(&named)
    }
}
