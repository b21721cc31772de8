//! The buffer: URLs that wait for their site's turn. Bounded, polite, and quick: the next one is found in O(log sites).
//!
//! ```text
//!   ready: a heap of (when, site)       sites: URLs by priority, then order of arrival; when it may be asked; why
//!   due: sites whose time has come, the most urgent first
//!   addresses: who is asking, when the next may, which sites wait for it
//! ```
//!
//! 1. A site is *idle* (nothing waits), in the heap (once), due (once), *asked* (a URL of it is out), or waits for its address.
//! 2. It is asked once at a time, and again only `delay` after the last answer was there. So is an address.
//! 3. Where sites wait for an address, it is being asked, or it is the turn of one of them, which takes it or hands the turn on.
//! 4. There are never more than `urls_max` URLs: a URL of the most crowded site is turned back to whoever sent it.
//!
//! No clock, no sockets: every method is told what time it is.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

/// What doubles with every failure, where the site's delay is less.
const BACK_OFF_MIN: Duration = Duration::from_millis(250);

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

/// The URLs that wait.
#[derive(Debug)]
pub(super) struct Queue<T> {
    politeness: Politeness,
    sites: HashMap<String, Site<T>>,
    ready: BinaryHeap<Reverse<(Instant, u64, String)>>,
    due: BTreeSet<(Priority, u64, String)>,
    crowded: BTreeSet<(usize, String)>,
    addresses: HashMap<IpAddr, Address>,
    waiting: usize,
    arrivals: u64,
}

#[derive(Debug)]
struct Site<T> {
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    InHeap,
    /// Since which arrival, and how urgent.
    Due(Priority, u64),
    Asked,
    AtAddress,
}

#[derive(Debug, Default)]
struct Address {
    asked: bool,
    next_at: Option<Instant>,
    sites: VecDeque<String>,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<T> {
    /// Ask for this; the site is being asked until [`Queue::done`].
    Ask(String, Priority, T),
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
        self.sites.entry(name.to_owned()).or_insert_with(|| Site {
            urls: BTreeMap::new(),
            state: State::Idle,
            next_at: now,
            delay,
            usual: Pace::Usual,
            pace: Pace::Usual,
            failures: 0,
            handed: None,
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
                self.due.remove(&(priority, since, name.to_owned()));
                self.due.insert((place.0, since, name.to_owned()));
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
        self.crowded.remove(&(before, name.to_owned()));
        if now > 0 {
            self.crowded.insert((now, name.to_owned()));
        }
        if came { self.waiting += 1 } else { self.waiting -= 1 }
    }

    fn schedule(&mut self, name: &str) {
        if let Some(site) = self.sites.get_mut(name) {
            site.state = State::InHeap;
            self.arrivals += 1;
            self.ready.push(Reverse((site.next_at, self.arrivals, name.to_owned())));
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

    /// Takes an address for a site that is being asked. Where it is not free, the URL has to be put back: the site waits.
    pub(super) fn take(&mut self, name: &str, address: IpAddr, now: Instant) -> bool {
        if self.politeness.address_delay.is_none() {
            return true;
        }
        if self.sites.get(name).is_some_and(|site| site.handed.is_some_and(|handed| handed != address)) {
            self.hand_on(name);
        }
        let at = self.addresses.entry(address).or_default();
        let site = self.sites.get_mut(name);
        if at.asked {
            at.sites.push_back(name.to_owned());
            if let Some(site) = site {
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

    /// Takes an address if it is free; the site, whose turn goes on, does not wait in line.
    pub(super) fn try_take(&mut self, address: IpAddr, now: Instant) -> bool {
        if self.politeness.address_delay.is_none() {
            return true;
        }
        let at = self.addresses.entry(address).or_default();
        let free = !at.asked && at.next_at.is_none_or(|next_at| next_at <= now);
        at.asked |= free;
        free
    }

    /// Gives an address back: the first site that waits for it may try after its delay.
    pub(super) fn give(&mut self, address: IpAddr, now: Instant) {
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
        match went {
            Went::NotAsked => {}
            Went::Well => {
                site.pace = site.usual.clone();
                site.failures = 0;
                site.next_at = now + site.delay;
            }
            Went::Badly(asked) => {
                site.failures = site.failures.saturating_add(1);
                let doubled = site.delay.max(BACK_OFF_MIN) * (1 << site.failures.min(16));
                let wait = asked.unwrap_or(doubled).max(site.delay).min(longest.max(site.delay));
                site.pace = if asked.is_some() { Pace::RetryAfter } else { Pace::BackOff(site.failures) };
                site.next_at = now + wait;
            }
        }
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
                site.state != State::Idle || site.next_at > now || !site.urls.is_empty() || site.failures > 0
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
            is_asked: site.state == State::Asked,
        })
    }

    /// The URLs of a site that wait, taken out.
    pub(super) fn drain(&mut self, name: &str) -> Vec<T> {
        let Some(site) = self.sites.get_mut(name) else { return Vec::new() };
        let count = site.urls.len();
        let urls = std::mem::take(&mut site.urls);
        self.crowded.remove(&(count, name.to_owned()));
        self.waiting -= count;
        urls.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn politeness() -> Politeness {
        Politeness {
            delay: Duration::from_secs(2),
            address_delay: None,
            urls_max: 5,
            ..Politeness::default()
        }
    }

    fn asked(next: Next<u32>) -> u32 {
        match next {
            Next::Ask(_, _, url) => url,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_site_is_asked_once_at_a_time_and_then_after_its_delay() {
        let (mut queue, now) = (Queue::new(politeness()), Instant::now());
        for url in 0..3 {
            assert_eq!(queue.push("a", Priority::Discovery, url, now), None);
        }
        queue.push("b", Priority::Discovery, 9, now);
        assert_eq!((asked(queue.next(now)), asked(queue.next(now))), (0, 9));
        assert_eq!(queue.next(now), Next::Nothing, "both sites are being asked");
        let later = now + Duration::from_secs(5);
        queue.done("a", &Went::Well, later);
        assert_eq!(queue.next(later), Next::Wait(later + Duration::from_secs(2)));
        assert_eq!(asked(queue.next(later + Duration::from_secs(2))), 1);
        assert_eq!(queue.len(), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_urgent_come_first_and_the_most_crowded_site_gives_way() {
        let (mut queue, now) = (Queue::new(politeness()), Instant::now());
        for url in 0..4 {
            queue.push("big", Priority::Discovery, url, now);
        }
        queue.push("small", Priority::Discovery, 8, now);
        assert_eq!(queue.push("small", Priority::Discovery, 9, now), Some(3));
        assert_eq!(queue.push("big", Priority::User, 10, now), Some(2));
        assert_eq!(asked(queue.next(now)), 10);
        assert_eq!(queue.len(), (4, 2));
        assert_eq!(queue.push("third", Priority::Refresh, 11, now), None);
        assert_eq!(asked(queue.next(now)), 11, "more urgent than what waited longer");
        assert_eq!(asked(queue.next(now)), 8);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_serves_one_site_at_a_time() {
        let second = Duration::from_secs(1);
        let politeness = Politeness { address_delay: Some(second), ..politeness() };
        let (mut queue, now) = (Queue::new(politeness), Instant::now());
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        for (url, name) in ["a", "b", "c"].into_iter().enumerate() {
            queue.push(name, Priority::Discovery, url as u32, now);
        }
        asked(queue.next(now));
        assert!(queue.take("a", address, now));
        for name in ["b", "c"] {
            let url = asked(queue.next(now));
            assert!(!queue.take(name, address, now));
            queue.put_back(name, Priority::Discovery, url, now);
        }
        assert_eq!(queue.next(now), Next::Nothing);
        queue.give(address, now);
        queue.done("a", &Went::Well, now);
        assert_eq!(queue.next(now), Next::Wait(now + second));
        assert_eq!(asked(queue.next(now + second)), 1);
        assert!(queue.take("b", address, now + second));
        queue.give(address, now + second);
        queue.done("b", &Went::Well, now + second);
        assert_eq!(asked(queue.next(now + 2 * second)), 2);
        assert_eq!(queue.len(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn trouble_slows_a_site_down_and_an_answer_ends_it() {
        let (mut queue, now) = (Queue::new(politeness()), Instant::now());
        let wait = |queue: &Queue<u32>| queue.view("a", now).unwrap().next_in.as_secs();
        queue.push("a", Priority::Discovery, 1, now);
        queue.next(now);
        queue.done("a", &Went::Badly(None), now);
        assert_eq!(wait(&queue), 4);
        queue.done("a", &Went::Badly(None), now);
        assert_eq!(wait(&queue), 8);
        queue.done("a", &Went::Badly(Some(Duration::from_secs(100_000))), now);
        assert_eq!((wait(&queue), queue.view("a", now).unwrap().pace), (3600, Pace::RetryAfter));
        queue.done("a", &Went::Well, now);
        assert_eq!((wait(&queue), queue.view("a", now).unwrap().pace), (2, Pace::Usual));
        queue.pace("a", Some(Duration::from_secs(1000)), now);
        let view = queue.view("a", now).unwrap();
        assert_eq!(view.delay, Duration::from_secs(60));
        assert_eq!(view.pace, Pace::CrawlDelay { asked: Some(Duration::from_secs(1000)) });
    }

    /// Sites of one address, some of whose turns come to nothing: every URL gets its turn.
    #[tokio::test(start_paused = true)]
    async fn no_site_waits_for_ever_for_its_address() {
        let address = IpAddr::from([127, 0, 0, 1]);
        for seed in 0..500_u64 {
            let mut state = seed;
            let mut below = |n: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % n
            };
            let mut queue = Queue::new(Politeness {
                address_delay: Some(Duration::from_secs(1)),
                urls_max: 1000,
                ..politeness()
            });
            let mut now = Instant::now();
            for url in 0..40_u32 {
                queue.push(&format!("s{}", below(8)), Priority::Discovery, url, now);
            }
            let (mut told, mut out) = (0, Vec::new());
            loop {
                if !out.is_empty() && below(3) == 0 {
                    let name: String = out.remove(below(out.len() as u64) as usize);
                    queue.give(address, now);
                    queue.done(&name, &Went::Well, now);
                    told += 1;
                    continue;
                }
                match queue.next(now) {
                    Next::Ask(name, _, _) if below(3) == 0 => {
                        queue.done(&name, &Went::NotAsked, now);
                        told += 1;
                    }
                    Next::Ask(name, priority, url) => match queue.take(&name, address, now) {
                        true => out.push(name),
                        false => queue.put_back(&name, priority, url, now),
                    },
                    Next::Wait(until) => now = until,
                    Next::Nothing if out.is_empty() => break,
                    Next::Nothing => now += Duration::from_millis(100),
                }
                assert!(out.len() <= 1, "seed {seed}: an address is asked twice at once");
            }
            assert_eq!((told, queue.len().0), (40, 0), "seed {seed}");
        }
    }
}
