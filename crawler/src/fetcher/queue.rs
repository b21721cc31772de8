//! The buffer: URLs that wait for their site's turn. Bounded, polite, and quick: the next one is found in O(log sites).
//!
//! ```text
//!   ready: a heap of (when, site)       sites: URLs by priority, then order of arrival; when it may be asked; why
//!   due: sites whose time has come, the most urgent first
//!   addresses: who is asking, when the next may, which sites wait for it
//! ```
//!
//! 1. A site is *idle* (nothing waits), in the heap (once), due (once), *asked* (a URL of it is out), or waits: for its address, or for guests.
//! 2. It is asked once at a time, and again only `delay` after the last answer was there. So is an address.
//! 3. Where sites wait for an address, it is being asked, or it is the turn of one of them, which takes it or hands the turn on.
//! 4. A *guest* asks a site in another site's turn: for what a robots file redirects to. It keeps to 2 all the same, and goes before
//!    the site's own URLs. A site that is *asked* but has nothing on the wire takes guests, so that two sites never wait for each other.
//! 5. There are never more than `urls_max` URLs: a URL of the most crowded site is turned back to whoever sent it.
//!
//! No clock, no sockets: every method is told what time it is.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

#[cfg(test)]
mod tests;

/// What doubles with every failure, where the site's delay is less.
const BACK_OFF_MIN: Duration = Duration::from_millis(250);
/// After how long a guest tries again that comes while the site or its address is being asked.
const GUEST_WAIT: Duration = Duration::from_millis(50);

/// Who wants a page, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A document is being loaded and waits for a part of it.
    Loader,
    /// Somebody asked for the page.
    User,
    /// A page is known and due.
    Refresh,
    /// A page was never read.
    Discovery,
}

/// Why a site is asked no sooner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// The usual delay between two requests.
    #[default]
    Usual,
    /// Its robots file asks for it.
    CrawlDelay {
        /// What it asked for, where that was more than is kept.
        asked: Option<Duration>,
    },
    /// It said how long to leave it alone.
    RetryAfter,
    /// It failed this often in a row.
    BackOff(u32),
}

/// How polite to be.
#[derive(Clone, Debug)]
pub struct Politeness {
    /// The time between the end of an answer and the next request to the site.
    pub delay: Duration,
    /// The same for an address, which may have many sites; `None` for no limit.
    pub address_delay: Option<Duration>,
    /// The longest `Crawl-delay` that is kept.
    pub crawl_delay_max: Duration,
    /// The longest time that a site in trouble is left alone, `Retry-After` included.
    pub back_off_max: Duration,
    /// How many URLs wait at most.
    pub urls_max: usize,
}

impl Default for Politeness {
    fn default() -> Politeness {
        Politeness {
            delay: Duration::from_secs(1),
            address_delay: Some(Duration::from_millis(200)),
            crawl_delay_max: Duration::from_secs(60),
            back_off_max: Duration::from_secs(3600),
            urls_max: 100_000,
        }
    }
}

/// A site's name, which is in many places.
pub(super) type Name = Arc<str>;

/// The URLs that wait.
#[derive(Debug)]
pub(super) struct Queue<T> {
    politeness: Politeness,
    sites: HashMap<Name, Site<T>>,
    ready: BinaryHeap<Reverse<(Instant, u64, Name)>>,
    due: BTreeSet<(Priority, u64, Name)>,
    crowded: BTreeSet<(usize, Name)>,
    addresses: HashMap<IpAddr, Address>,
    waiting: usize,
    arrivals: u64,
}

#[derive(Debug)]
struct Site<T> {
    name: Name,
    urls: BTreeMap<(Priority, u64), T>,
    state: State,
    next_at: Instant,
    delay: Duration,
    /// Why the delay is what it is, and why the site is asked no sooner now.
    usual: Pace,
    pace: Pace,
    failures: u32,
    /// The address whose turn it has, with others behind it.
    handed: Option<IpAddr>,
    /// Whether a request to it is out, its own or a guest's.
    on_wire: bool,
    /// Guests that are here, or wait.
    guests: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    InHeap,
    /// Since which arrival, and how urgent.
    Due(Priority, u64),
    Asked,
    AtAddress,
    /// Guests go first.
    GivesWay,
}

#[derive(Debug, Default)]
struct Address {
    asked: bool,
    next_at: Option<Instant>,
    sites: VecDeque<Name>,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<T> {
    /// Ask for this; the site is being asked until [`Queue::done`].
    Ask(Name, Priority, T),
    /// Nothing before this.
    Wait(Instant),
    /// Nothing at all.
    Nothing,
}

/// How asking a site went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Went {
    /// It answered.
    Well,
    /// It was not asked at all.
    NotAsked,
    /// It is in trouble; how long it asks to be left alone.
    Badly(Option<Duration>),
}

/// A site, for those who ask why it is slow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteView {
    /// How many of its URLs wait.
    pub waiting: usize,
    /// In how long it can be asked next.
    pub next_in: Duration,
    /// The time between two requests.
    pub delay: Duration,
    /// Why.
    pub pace: Pace,
    /// Whether it is being asked now.
    pub is_asked: bool,
}

impl<T> Site<T> {
    /// When it may be asked next, after it was asked.
    fn rest(&mut self, went: &Went, longest: Duration, now: Instant) {
        match went {
            Went::NotAsked => {}
            Went::Well => {
                self.pace = self.usual.clone();
                self.failures = 0;
                self.next_at = now + self.delay;
            }
            Went::Badly(asked) => {
                self.failures = self.failures.saturating_add(1);
                let doubled = self.delay.max(BACK_OFF_MIN) * (1 << self.failures.min(16));
                let wait = asked.unwrap_or(doubled).max(self.delay).min(longest.max(self.delay));
                self.pace = if asked.is_some() { Pace::RetryAfter } else { Pace::BackOff(self.failures) };
                self.next_at = now + wait;
            }
        }
    }
}

impl<T> Queue<T> {
    pub(super) fn new(politeness: Politeness) -> Queue<T> {
        Queue {
            politeness,
            sites: HashMap::new(),
            ready: BinaryHeap::new(),
            due: BTreeSet::new(),
            crowded: BTreeSet::new(),
            addresses: HashMap::new(),
            waiting: 0,
            arrivals: 0,
        }
    }

    /// How many URLs wait, and of how many sites.
    pub(super) fn len(&self) -> (usize, usize) {
        (self.waiting, self.crowded.len())
    }

    fn site(&mut self, name: &str, now: Instant) -> &mut Site<T> {
        let delay = self.politeness.delay;
        // Looked up by the name as it is; only a new site makes a copy of it.
        let name = match self.sites.get_key_value(name) {
            Some((name, _)) => Arc::clone(name),
            None => Arc::from(name),
        };
        self.sites.entry(Arc::clone(&name)).or_insert_with(|| Site {
            name,
            urls: BTreeMap::new(),
            state: State::Idle,
            next_at: now,
            delay,
            usual: Pace::Usual,
            pace: Pace::Usual,
            failures: 0,
            handed: None,
            on_wire: false,
            guests: 0,
        })
    }

    /// Adds a URL. Where that is one too many, the least urgent one of the most crowded site comes back: it may be this one.
    pub(super) fn push(&mut self, name: &str, priority: Priority, url: T, now: Instant) -> Option<T> {
        self.arrivals += 1;
        let place = (priority, self.arrivals);
        self.insert(name, place, url, now);
        if self.waiting <= self.politeness.urls_max {
            return None;
        }
        let (_, most) = self.crowded.last()?.clone();
        let returned = self.sites.get_mut(&most)?.urls.pop_last().map(|(_, url)| url);
        self.count(&most, false);
        returned
    }

    /// Puts a URL back that could not be asked for yet, before those that came later.
    pub(super) fn put_back(&mut self, name: &str, priority: Priority, url: T, now: Instant) {
        self.insert(name, (priority, 0), url, now);
    }

    fn insert(&mut self, name: &str, place: (Priority, u64), url: T, now: Instant) {
        let site = self.site(name, now);
        site.urls.insert(place, url);
        match site.state {
            State::Idle => self.schedule(name),
            State::Due(priority, since) if place.0 < priority => {
                site.state = State::Due(place.0, since);
                let name = Arc::clone(&site.name);
                self.due.remove(&(priority, since, Arc::clone(&name)));
                self.due.insert((place.0, since, name));
            }
            _ => {}
        }
        self.count(name, true);
    }

    /// Keeps the counts after a URL has come or gone.
    fn count(&mut self, name: &str, came: bool) {
        let Some(site) = self.sites.get(name) else { return };
        let now = site.urls.len();
        let before = if came { now - 1 } else { now + 1 };
        let mut place = (before, Arc::clone(&site.name));
        self.crowded.remove(&place);
        if now > 0 {
            place.0 = now;
            self.crowded.insert(place);
        }
        if came { self.waiting += 1 } else { self.waiting -= 1 }
    }

    fn schedule(&mut self, name: &str) {
        if let Some(site) = self.sites.get_mut(name) {
            site.state = State::InHeap;
            self.arrivals += 1;
            self.ready.push(Reverse((site.next_at, self.arrivals, Arc::clone(&site.name))));
        }
    }

    /// The next URL whose site may be asked: of those sites the one with the most urgent URL, and then the one that waited longest.
    pub(super) fn next(&mut self, now: Instant) -> Next<T> {
        while let Some(Reverse((at, _, _))) = self.ready.peek()
            && *at <= now
            && let Some(Reverse((_, since, name))) = self.ready.pop()
        {
            let Some(site) = self.sites.get_mut(&name) else { continue };
            match site.urls.first_key_value() {
                // Its last URL was turned back meanwhile.
                None => {
                    site.state = State::Idle;
                    self.hand_on(&name);
                }
                Some(((priority, _), _)) => {
                    site.state = State::Due(*priority, since);
                    self.due.insert((*priority, since, name));
                }
            }
        }
        while let Some((_, _, name)) = self.due.pop_first() {
            let Some(site) = self.sites.get_mut(&name) else { continue };
            if site.on_wire || site.guests > 0 {
                site.state = State::GivesWay;
                continue;
            }
            // A guest was here meanwhile.
            if site.next_at > now {
                self.schedule(&name);
                continue;
            }
            match site.urls.pop_first() {
                None => {
                    site.state = State::Idle;
                    self.hand_on(&name);
                }
                Some(((priority, _), url)) => {
                    site.state = State::Asked;
                    self.count(&name, false);
                    return Next::Ask(name, priority, url);
                }
            }
        }
        self.ready.peek().map_or(Next::Nothing, |Reverse((at, _, _))| Next::Wait(*at))
    }

    /// Takes an address for a site that is being asked, until [`Queue::leave`]. Where it is not free, or a guest is here, the URL
    /// has to be put back: the site waits.
    pub(super) fn take(&mut self, name: &str, address: IpAddr, now: Instant) -> bool {
        if let Some(site) = self.sites.get_mut(name) {
            if site.on_wire {
                site.state = State::GivesWay;
                return false;
            }
            if site.next_at > now {
                self.schedule(name);
                return false;
            }
        }
        let free = self.take_address(name, address, now);
        if let Some(site) = self.sites.get_mut(name) {
            site.on_wire = free;
        }
        free
    }

    fn take_address(&mut self, name: &str, address: IpAddr, now: Instant) -> bool {
        if self.politeness.address_delay.is_none() {
            return true;
        }
        if self.sites.get(name).is_some_and(|site| site.handed.is_some_and(|handed| handed != address)) {
            self.hand_on(name);
        }
        let at = self.addresses.entry(address).or_default();
        let site = self.sites.get_mut(name);
        if at.asked {
            if let Some(site) = site {
                at.sites.push_back(Arc::clone(&site.name));
                (site.state, site.handed) = (State::AtAddress, None);
            }
            return false;
        }
        match at.next_at.filter(|next_at| *next_at > now) {
            None => {
                at.asked = true;
                if let Some(site) = site {
                    site.handed = None;
                }
                true
            }
            Some(next_at) => {
                if let Some(site) = site {
                    site.next_at = site.next_at.max(next_at);
                }
                self.schedule(name);
                false
            }
        }
    }

    /// Somebody wants to ask a site in another site's turn, until [`Queue::guest_went`].
    pub(super) fn guest_came(&mut self, name: &str, now: Instant) {
        self.site(name, now).guests += 1;
    }

    /// Takes a site and its address for a guest, until [`Queue::leave`]; or says when to try again.
    pub(super) fn visit(&mut self, name: &str, address: IpAddr, now: Instant) -> Result<(), Instant> {
        let soon = now + GUEST_WAIT;
        let site = self.sites.get(name);
        if site.is_some_and(|site| site.on_wire) {
            return Err(soon);
        }
        if let Some(site) = site.filter(|site| site.next_at > now) {
            return Err(site.next_at);
        }
        if self.politeness.address_delay.is_some() {
            let at = self.addresses.entry(address).or_default();
            if at.asked {
                return Err(soon);
            }
            if let Some(next_at) = at.next_at.filter(|next_at| *next_at > now) {
                return Err(next_at);
            }
            at.asked = true;
        }
        self.site(name, now).on_wire = true;
        Ok(())
    }

    /// Nothing is on the wire any more: the site and its address rest for their delays.
    pub(super) fn leave(&mut self, name: &str, address: IpAddr, now: Instant) {
        if let Some(site) = self.sites.get_mut(name) {
            site.on_wire = false;
            site.next_at = site.next_at.max(now + site.delay);
        }
        self.way_is_free(name);
        self.give(address, now);
    }

    /// A guest has gone, or waits no longer; how asking the site went, if it was asked.
    pub(super) fn guest_went(&mut self, name: &str, went: &Went, now: Instant) {
        let longest = self.politeness.back_off_max;
        if let Some(site) = self.sites.get_mut(name) {
            site.guests = site.guests.saturating_sub(1);
            if let Went::Badly(_) = went {
                site.rest(went, longest, now);
            }
        }
        self.way_is_free(name);
    }

    /// A site that gave way comes back once there are no guests.
    fn way_is_free(&mut self, name: &str) {
        let waits = |site: &Site<T>| site.state == State::GivesWay && !site.on_wire && site.guests == 0;
        if self.sites.get(name).is_some_and(waits) {
            self.schedule(name);
        }
    }

    /// Gives an address back: the first site that waits for it may try after its delay.
    fn give(&mut self, address: IpAddr, now: Instant) {
        let Some(delay) = self.politeness.address_delay else { return };
        let Some(at) = self.addresses.get_mut(&address) else { return };
        at.asked = false;
        at.next_at = Some(now + delay);
        self.hand(address);
        if self.addresses.len() > 2 * self.politeness.urls_max {
            self.addresses.retain(|_, at| at.asked || !at.sites.is_empty() || at.next_at > Some(now));
        }
    }

    /// Gives the turn of an address that nobody asks to the first site that waits for it.
    fn hand(&mut self, address: IpAddr) {
        let Some(at) = self.addresses.get_mut(&address).filter(|at| !at.asked) else { return };
        let Some(name) = at.sites.pop_front() else { return };
        if let Some(site) = self.sites.get_mut(&name) {
            site.next_at = at.next_at.map_or(site.next_at, |next_at| site.next_at.max(next_at));
            site.handed = Some(address);
        }
        self.schedule(&name);
    }

    /// A site that had the turn of an address did not need it: the next one gets it.
    fn hand_on(&mut self, name: &str) {
        if let Some(address) = self.sites.get_mut(name).and_then(|site| site.handed.take()) {
            self.hand(address);
        }
    }

    /// A site has been asked.
    pub(super) fn done(&mut self, name: &str, went: &Went, now: Instant) {
        let longest = self.politeness.back_off_max;
        let Some(site) = self.sites.get_mut(name) else { return };
        site.rest(went, longest, now);
        if site.state == State::Asked {
            site.state = State::Idle;
            if !site.urls.is_empty() {
                self.schedule(name);
            }
            self.hand_on(name);
        }
        self.forget(now);
    }

    /// What a site's robots file asks for.
    pub(super) fn pace(&mut self, name: &str, crawl_delay: Option<Duration>, now: Instant) {
        let (usual, most) = (self.politeness.delay, self.politeness.crawl_delay_max);
        let site = self.site(name, now);
        let Some(asked) = crawl_delay else { return };
        site.delay = asked.min(most).max(usual);
        site.usual = Pace::CrawlDelay { asked: (asked > most).then_some(asked) };
        site.pace = site.usual.clone();
    }

    /// Forgets sites that nobody waits for and that could be asked at once, when there are many.
    fn forget(&mut self, now: Instant) {
        let most = self.politeness.urls_max.max(1000) + self.crowded.len();
        if self.sites.len() > 2 * most {
            self.sites.retain(|_, site| {
                let quiet = site.state == State::Idle && site.guests == 0 && !site.on_wire;
                !quiet || site.next_at > now || !site.urls.is_empty() || site.failures > 0
            });
        }
    }

    /// How often a site failed in a row.
    pub(super) fn failures(&self, name: &str) -> u32 {
        self.sites.get(name).map_or(0, |site| site.failures)
    }

    /// A site, as it stands.
    pub(super) fn view(&self, name: &str, now: Instant) -> Option<SiteView> {
        let site = self.sites.get(name)?;
        Some(SiteView {
            waiting: site.urls.len(),
            next_in: site.next_at.saturating_duration_since(now),
            delay: site.delay,
            pace: site.pace.clone(),
            is_asked: site.state == State::Asked || site.on_wire,
        })
    }

    /// The URLs of a site that wait, taken out.
    pub(super) fn drain(&mut self, name: &str) -> Vec<T> {
        let Some(site) = self.sites.get_mut(name) else { return Vec::new() };
        let count = site.urls.len();
        let urls = std::mem::take(&mut site.urls);
        self.crowded.remove(&(count, Arc::clone(&site.name)));
        self.waiting -= count;
        urls.into_values().collect()
    }
}
