//! The management server as seen by its clients: one connection, opened again by itself, and one answer for each question.
//!
//! Each question has a control call for itself while it waits, so a cycle that waits to begin holds up nobody's plan. Calls
//! are used again. While the server cannot be reached, all questions together try to connect, at growing intervals.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until, timeout_at};
use webbase_storage::{PageId, PageKey};

use crate::client::{Client, ClientSettings};
use crate::control::Control;
use crate::cycle::message::{NodeId, Removal, SeenAgain};
use crate::error::{NodeError, Result, Retry};
use crate::plan::{
    AddPlan, Addresses, Ask, INDEX_KEYS_MAX, Index, Lease, ReadPlan, Repository, Status, TOPIC, Told,
};
use crate::wire::message::{self, Key};

/// Pages in one question, at most; longer lists are sent in several.
pub const LIST_MAX: usize = 100_000;
/// Calls kept to be used again.
const IDLE_MAX: usize = 8;
/// Between two tries to connect: at first, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// A client of the management server. Clones share the connection.
#[derive(Clone)]
pub struct Management {
    inner: Arc<Inner>,
}

struct Inner {
    address: SocketAddr,
    settings: ClientSettings,
    link: Mutex<Link>,
}

struct Link {
    client: Option<Client>,
    idle: Vec<Line>,
    /// No try to connect before then.
    next_try: Instant,
    pause: Duration,
}

/// A call, and the connection it lives by.
struct Line {
    control: Control,
    client: Client,
}

impl Link {
    fn forget(&mut self) {
        self.client = None;
        self.idle.clear();
    }
}

impl Management {
    /// Connects. From then on broken connections are made again when somebody asks something.
    ///
    /// # Errors
    /// When nobody listens, the server refuses, or it takes too long.
    pub async fn connect(address: SocketAddr, settings: ClientSettings) -> Result<Management> {
        let management = Management::new(address, settings);
        let mut link = management.inner.link.lock().await;
        link.client = Some(Client::connect(address, management.inner.settings.clone()).await?);
        drop(link);
        Ok(management)
    }

    /// As [`Management::connect`], but the first question connects.
    pub fn new(address: SocketAddr, settings: ClientSettings) -> Management {
        let link = Link { client: None, idle: Vec::new(), next_try: Instant::now(), pause: PAUSE_MIN };
        Management { inner: Arc::new(Inner { address, settings, link: Mutex::new(link) }) }
    }

    /// Where the management server is.
    pub fn address(&self) -> SocketAddr {
        self.inner.address
    }

    /// Asks. What only reads, and leases, are asked again when the connection breaks; of a command the caller learns that it
    /// may have been carried out.
    ///
    /// # Errors
    /// When it is refused ([`NodeError::Denied`]), or there is no answer in time.
    pub async fn ask(&self, ask: Ask) -> Result<Told> {
        let settings = &self.inner.settings;
        let (what, command) = name(&ask);
        // Who looks for pages can ask the nodes.
        let waits = !matches!(ask, Ask::Find(_) | Ask::FindId(_));
        let limit = if command { settings.long_answer } else { settings.answer };
        let patience = Instant::now() + settings.answer;
        let question: bytes::Bytes = message::encode(&ask).into();
        let mut pause = PAUSE_MIN;
        loop {
            let mut line = self.call(patience).await?;
            let (sent, answer) = match line.control.send(question.clone()).await {
                Ok(()) => (true, answer(&mut line.control, limit).await),
                Err(e) => (false, Err(e)),
            };
            let peer = || self.inner.address.to_string();
            let failed = match answer {
                Ok(Told::NotYet(why)) => {
                    self.put_back(line);
                    let denied = NodeError::Denied { peer: peer(), what, why };
                    if !waits || Instant::now() + pause >= patience {
                        return Err(denied);
                    }
                    sleep_until(Instant::now() + pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                    continue;
                }
                Ok(told) => {
                    self.put_back(line);
                    return match told {
                        Told::Refused(why) => Err(NodeError::Denied { peer: peer(), what, why }),
                        told => Ok(told),
                    };
                }
                Err(failed) => failed,
            };
            // What was not sent whole was not carried out.
            let again = !(sent && command) && failed.retry() != Retry::Useless;
            if !again || Instant::now() + pause >= patience {
                return Err(failed);
            }
            sleep_until(Instant::now() + pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// A call nobody uses, connecting if need be.
    async fn call(&self, patience: Instant) -> Result<Line> {
        let Inner { address, settings, link } = &*self.inner;
        let after_ms = settings.answer.as_millis() as u64;
        let mut late = NodeError::Timeout { peer: address.to_string(), after_ms };
        loop {
            let Ok(mut link) = timeout_at(patience, link.lock()).await else { return Err(late) };
            if let Some(client) = link.client.clone() {
                if client.closed().is_none() {
                    while let Some(line) = link.idle.pop() {
                        if line.client.closed().is_none() {
                            return Ok(line);
                        }
                    }
                    match client.control(TOPIC) {
                        // It is going down: the next one listens at the same address, soon.
                        Err(e) if e.retry() == Retry::Safe => {}
                        control => return control.map(|control| Line { control, client }),
                    }
                }
                link.forget();
            }
            if link.next_try >= patience {
                return Err(late);
            }
            sleep_until(link.next_try).await;
            match Client::connect(*address, settings.clone()).await {
                Ok(client) => (link.client, link.pause) = (Some(client), PAUSE_MIN),
                Err(e) if e.retry() == Retry::Useless || Instant::now() >= patience => return Err(e),
                Err(e) => {
                    late = e;
                    link.next_try = Instant::now() + link.pause;
                    link.pause = (link.pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    fn put_back(&self, line: Line) {
        // While somebody connects there is nothing worth keeping.
        let Ok(mut link) = self.inner.link.try_lock() else { return };
        if line.client.closed().is_none() && link.client.is_some() && link.idle.len() < IDLE_MAX {
            link.idle.push(line);
        }
    }

    fn unexpected<T>(&self, told: &Told) -> Result<T> {
        let what = format!("an answer to another question: {told:?}").chars().take(200).collect();
        Err(NodeError::Protocol { peer: self.inner.address.to_string(), what })
    }

    async fn command(&self, ask: Ask) -> Result<()> {
        match self.ask(ask).await? {
            Told::Done => Ok(()),
            told => self.unexpected(&told),
        }
    }

    async fn lease(&self, ask: Ask) -> Result<(Lease, ReadPlan, Addresses)> {
        match self.ask(ask).await? {
            Told::Lease(lease, plan, addresses) => Ok((lease, plan, addresses)),
            told => self.unexpected(&told),
        }
    }

    /// What the repository is.
    ///
    /// # Errors
    /// As for [`Management::ask`], like all that follow.
    pub async fn repository(&self) -> Result<Repository> {
        match self.ask(Ask::Repository).await? {
            Told::Repository(repository) => Ok(repository),
            told => self.unexpected(&told),
        }
    }

    /// Where to add pages.
    ///
    /// # Errors
    /// As for [`Management::ask`].
    pub async fn add_plan(&self) -> Result<(AddPlan, Addresses)> {
        match self.ask(Ask::AddPlan).await? {
            Told::AddPlan(plan, addresses) => Ok((plan, addresses)),
            told => self.unexpected(&told),
        }
    }

    /// Where to read the current generation, which may go at any time; a lease holds it.
    ///
    /// # Errors
    /// As for [`Management::ask`].
    pub async fn read_plan(&self) -> Result<(ReadPlan, Addresses)> {
        match self.ask(Ask::ReadPlan).await? {
            Told::ReadPlan(plan, addresses) => Ok((plan, addresses)),
            told => self.unexpected(&told),
        }
    }

    /// A lease on the current generation, with its plan. It counts from before this was called.
    ///
    /// # Errors
    /// As for [`Management::ask`].
    pub async fn open_lease(&self) -> Result<(Lease, ReadPlan, Addresses)> {
        self.lease(Ask::OpenLease).await
    }

    /// Goes on with a lease, and gives a new plan for its generation.
    ///
    /// # Errors
    /// As for [`Management::ask`]; refused when the generation has to go.
    pub async fn renew_lease(&self, lease: &Lease) -> Result<(Lease, ReadPlan, Addresses)> {
        self.lease(Ask::RenewLease { id: lease.id, generation: lease.generation }).await
    }

    /// A lease on a generation that is kept, with its plan.
    ///
    /// # Errors
    /// As for [`Management::ask`]; refused when the generation is gone or has to go.
    pub async fn lease_on(&self, generation: u64) -> Result<(Lease, ReadPlan, Addresses)> {
        self.lease(Ask::LeaseOn { generation }).await
    }

    /// Publishes an index of a generation that is kept: readers get it, with that generation, from now on.
    ///
    /// # Errors
    /// As for [`Management::ask`]; refused when the generation is gone, or an index of a later one is published.
    pub async fn publish(&self, index: &Index) -> Result<()> {
        self.command(Ask::Publish(index.clone())).await
    }

    /// Takes an index back; its generation may go then.
    ///
    /// # Errors
    /// As for [`Management::ask`].
    pub async fn unpublish(&self, name: &str) -> Result<()> {
        self.command(Ask::Unpublish(name.to_owned())).await
    }

    /// An index, with a lease on its generation and where to read that.
    ///
    /// # Errors
    /// As for [`Management::ask`]; refused when there is none, or its generation had to go.
    pub async fn open_index(&self, name: &str) -> Result<(Index, Lease, ReadPlan, Addresses)> {
        match self.ask(Ask::OpenIndex { name: name.to_owned() }).await? {
            Told::Index(index, lease, plan, addresses) => Ok((index, lease, plan, addresses)),
            told => self.unexpected(&told),
        }
    }

    /// Gives a lease back early.
    ///
    /// # Errors
    /// As for [`Management::ask`].
    pub async fn end_lease(&self, lease: &Lease) -> Result<()> {
        self.command(Ask::EndLease { id: lease.id }).await
    }

    /// Begins a cycle, waiting until it can begin, and says its number.
    ///
    /// # Errors
    /// As for [`Management::ask`]; refused while one runs, and when it cannot begin for long.
    pub async fn start_cycle(&self) -> Result<u64> {
        match self.ask(Ask::StartCycle).await? {
            Told::CycleBegun(cycle) => Ok(cycle),
            told => self.unexpected(&told),
        }
    }

    /// Aborts the running cycle.
    ///
    /// # Errors
    /// As for [`Management::ask`]; refused when none runs, or it is committed.
    pub async fn abort_cycle(&self) -> Result<()> {
        self.command(Ask::AbortCycle).await
    }

    /// Has everything moved off a node, which then leaves.
    ///
    /// # Errors
    /// As for [`Management::ask`].
    pub async fn drain(&self, node: NodeId) -> Result<()> {
        self.command(Ask::Drain(node)).await
    }

    /// Gives up a node that is down.
    ///
    /// # Errors
    /// As for [`Management::ask`].
    pub async fn remove_lost(&self, node: NodeId) -> Result<()> {
        self.command(Ask::RemoveLost(node)).await
    }

    /// Gives up a node that is down for a new one, and waits until that has come.
    ///
    /// # Errors
    /// As for [`Management::ask`].
    pub async fn replace(&self, old: NodeId, new: NodeId) -> Result<()> {
        self.command(Ask::Replace { old, new }).await
    }

    /// Removes pages in the next cycle. Of a list longer than [`LIST_MAX`] a part may be taken when there is an error, as
    /// with all lists; asking again does no harm.
    ///
    /// # Errors
    /// As for [`Management::ask`].
    pub async fn remove(&self, pages: &[Removal]) -> Result<()> {
        self.list(pages, Ask::Remove).await
    }

    /// Says that the crawler was given these pages to look at.
    ///
    /// # Errors
    /// As for [`Management::ask`].
    pub async fn due(&self, pages: &[Removal]) -> Result<()> {
        self.list(pages, Ask::Due).await
    }

    /// Says that the crawler saw these again, or could not verify them. Returns those for which that came too late: the
    /// running cycle removes them, and adding them again brings them back.
    ///
    /// # Errors
    /// As for [`Management::ask`].
    pub async fn seen(&self, pages: &[SeenAgain]) -> Result<Vec<PageKey>> {
        let mut late = Vec::new();
        for some in pages.chunks(LIST_MAX) {
            match self.ask(Ask::Seen(some.to_vec())).await? {
                Told::Done => {}
                Told::Late(pages) => late.extend(pages.into_iter().map(PageKey::from)),
                told => return self.unexpected(&told),
            }
        }
        Ok(late)
    }

    /// The ranges of pages that will be added, under the distribution `uniform`: a page that has none gets one, for ever.
    /// None, when no update node is up and has room.
    ///
    /// # Errors
    /// As for [`Management::ask`].
    pub async fn assign(&self, keys: &[PageKey]) -> Result<Vec<Option<u32>>> {
        self.ranges(keys, Ask::Assign).await
    }

    /// The ranges of pages, under the distribution `uniform`; none of a page that is not in the repository.
    ///
    /// # Errors
    /// As for [`Management::ask`].
    pub async fn find(&self, keys: &[PageKey]) -> Result<Vec<Option<u32>>> {
        self.ranges(keys, Ask::Find).await
    }

    async fn ranges(&self, keys: &[PageKey], ask: impl Fn(Vec<Key>) -> Ask) -> Result<Vec<Option<u32>>> {
        let mut all = Vec::with_capacity(keys.len());
        for some in keys.chunks(INDEX_KEYS_MAX) {
            match self.ask(ask(some.iter().map(|key| Key::from(*key)).collect())).await? {
                Told::Ranges(ranges) if ranges.len() == some.len() => {
                    all.extend(ranges.into_iter().map(|range| range.map(u32::from)));
                }
                told => return self.unexpected(&told),
            }
        }
        Ok(all)
    }

    /// The keys of the pages with an id, under the distribution `uniform`.
    ///
    /// # Errors
    /// As for [`Management::ask`].
    pub async fn find_id(&self, id: PageId) -> Result<Vec<PageKey>> {
        match self.ask(Ask::FindId(id.0)).await? {
            Told::Pages(pages) => Ok(pages.into_iter().map(|(key, _)| key.into()).collect()),
            told => self.unexpected(&told),
        }
    }

    async fn list<T: Clone>(&self, pages: &[T], ask: impl Fn(Vec<T>) -> Ask) -> Result<()> {
        for some in pages.chunks(LIST_MAX) {
            self.command(ask(some.to_vec())).await?;
        }
        Ok(())
    }

    /// How things stand.
    ///
    /// # Errors
    /// As for [`Management::ask`].
    pub async fn status(&self) -> Result<Status> {
        match self.ask(Ask::Status).await? {
            Told::Status(status) => Ok(*status),
            told => self.unexpected(&told),
        }
    }
}

async fn answer(control: &mut Control, limit: Duration) -> Result<Told> {
    match control.receive(Some(limit)).await? {
        Some(answer) => message::decode(&answer)
            .map_err(|what| NodeError::Protocol { peer: control.peer().to_owned(), what }),
        None => {
            let why = "the call ended without an answer".into();
            Err(NodeError::Closed { peer: control.peer().to_owned(), why })
        }
    }
}

/// What is asked, for errors, and whether it is a command, which is not repeated and may take long.
fn name(ask: &Ask) -> (&'static str, bool) {
    match ask {
        Ask::Repository => ("describe the repository", false),
        Ask::AddPlan => ("plan adds", false),
        Ask::ReadPlan => ("plan reads", false),
        Ask::OpenLease => ("open a lease", false),
        Ask::RenewLease { .. } => ("renew the lease", false),
        Ask::LeaseOn { .. } => ("open a lease", false),
        Ask::OpenIndex { .. } => ("open the index", false),
        Ask::Publish(_) => ("publish the index", true),
        Ask::Unpublish(_) => ("take the index back", true),
        Ask::EndLease { .. } => ("end the lease", false),
        Ask::Status => ("tell its status", false),
        Ask::Assign(_) => ("assign ranges to pages", false),
        Ask::Find(_) | Ask::FindId(_) => ("find pages", false),
        Ask::StartCycle => ("start a cycle", true),
        Ask::AbortCycle => ("abort the cycle", true),
        Ask::Drain(_) => ("drain the node", true),
        Ask::RemoveLost(_) => ("remove the lost node", true),
        Ask::Replace { .. } => ("replace the node", true),
        Ask::Remove(_) => ("remove pages", true),
        Ask::Due(_) => ("note due pages", true),
        Ask::Seen(_) => ("note pages seen again", true),
    }
}
