//! A site's turn: its robots file if that is not known, or one of its pages.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout};
use url::Url;

use super::decode::UnpackLimits;
use super::error::FetchError;
use super::exchange::{Answer, Asked, Cut};
use super::queue::{Name, Priority, Went};
use super::resolve::literal;
use super::wire::{Whom, Wire};
use super::{Inner, Item, KEPT_FOR, Outcome, PRODUCT, Wanted};
use crate::robots::{ROBOTS_BYTES_MAX, ROBOTS_REDIRECTS_MAX, Robots, Standing};

/// A site that failed this often in a row gets all its waiting pages back, to be wanted again later.
const FAILURES_MAX: u32 = 4;
/// How long what a robots file redirects to waits for its site: longer than a polite turn takes, shorter than a long back-off.
const GUEST_TIME: Duration = Duration::from_secs(300);

/// A robots file and until when it counts.
pub(super) struct KnownRobots {
    pub(super) robots: Robots,
    until: Instant,
}

/// How one request went.
enum Asking {
    Answered(Box<Answer>),
    Failed(FetchError),
    /// The address is not free: the site waits for it.
    NotFree,
    /// The kept connection was dead: another try in the next turn.
    Stale,
}

/// A robots file is read whatever type it says it is.
fn robots_wanted(url: Url) -> Wanted {
    Wanted { any_type: true, ..Wanted::new(url, Priority::Loader) }
}

impl Inner {
    /// Takes the turn of a site.
    pub(super) async fn turn(
        &self,
        name: Name,
        priority: Priority,
        item: Item,
        permit: OwnedSemaphorePermit,
    ) {
        if let Err(e) = self.acceptable(&item.wanted) {
            self.queue.lock().done(&name, &Went::NotAsked, Instant::now());
            return self.tell(item, Err(e)).await;
        }
        if self.settings.robots {
            let origin = item.wanted.url.origin().ascii_serialization();
            let known = self.robots.get(&origin).filter(|known| known.until > Instant::now());
            let Some(known) = known else {
                return self.robots_turn(&name, priority, origin, item, permit).await;
            };
            if !known.robots.allows(&item.wanted.url) {
                self.queue.lock().done(&name, &Went::NotAsked, Instant::now());
                let error = match &known.robots.standing {
                    Standing::Unreachable { reason, .. } => FetchError::RobotsUnreachable(reason.clone()),
                    _ => FetchError::Robots,
                };
                return self.tell(item, Err(error)).await;
            }
        }
        self.page_turn(&name, priority, item, permit).await;
    }

    fn acceptable(&self, wanted: &Wanted) -> Result<(), FetchError> {
        let most = self.settings.limits.redirects_max;
        if !matches!(wanted.url.scheme(), "http" | "https") {
            return Err(FetchError::Scheme { url: wanted.url.to_string() });
        }
        if wanted.redirects > most { Err(FetchError::Redirects(most)) } else { Ok(()) }
    }

    async fn page_turn(&self, name: &str, priority: Priority, mut item: Item, _permit: OwnedSemaphorePermit) {
        let most = self.settings.limits.body_bytes_max;
        let result = match self.ask(name, &item.wanted, item.retried, most).await {
            Asking::NotFree => {
                return self.later(name, priority, item);
            }
            Asking::Stale => {
                item.retried = true;
                return self.again(name, priority, item);
            }
            Asking::Answered(answer) => Ok(*answer),
            Asking::Failed(e) => Err(e),
        };
        let given_up = self.finish(name, &result);
        self.tell(item, result).await;
        self.give_up(given_up).await;
    }

    /// Ends a turn in which the address was not free: the site waits for it, or for its time.
    fn later(&self, name: &str, priority: Priority, item: Item) {
        self.queue.lock().put_back(name, priority, item, Instant::now());
        self.wake.notify_one();
    }

    /// Ends a turn that came to nothing: the page waits for the next one.
    fn again(&self, name: &str, priority: Priority, item: Item) {
        {
            let mut queue = self.queue.lock();
            queue.put_back(name, priority, item, Instant::now());
            queue.done(name, &Went::Well, Instant::now());
        }
        self.wake.notify_one();
    }

    /// Ends a turn in which the site was asked; returns the pages that are given back because it fails again and again.
    fn finish(&self, name: &str, result: &Result<Answer, FetchError>) -> Vec<(Item, FetchError)> {
        let went = match result {
            Ok(answer) if matches!(answer.status, 429 | 503) => Went::Badly(answer.retry_after()),
            Err(e) if e.may_pass() => Went::Badly(None),
            Err(FetchError::Private(_) | FetchError::NoContact(_)) => Went::NotAsked,
            _ => Went::Well,
        };
        let mut queue = self.queue.lock();
        let mut given_up = Vec::new();
        if let (Err(e), Went::Badly(_)) = (result, &went)
            && queue.failures(name) + 1 >= FAILURES_MAX
        {
            given_up = queue.drain(name).into_iter().map(|item| (item, e.clone())).collect();
        }
        queue.done(name, &went, Instant::now());
        drop(queue);
        self.wake.notify_one();
        given_up
    }

    async fn give_up(&self, items: Vec<(Item, FetchError)>) {
        for (item, e) in items {
            self.tell(item, Err(e)).await;
        }
    }

    async fn tell(&self, item: Item, result: Result<Answer, FetchError>) {
        self.wake.notify_one();
        self.counts.count(&result);
        let outcome = Outcome { wanted: item.wanted, result };
        // Whoever waited may have gone; nobody misses it then.
        match item.to {
            Some(to) => drop(to.send(outcome)),
            None => drop(self.outcomes.send(outcome).await),
        }
    }

    /// Reads a site's robots file in a page's turn, which comes again after the delay.
    async fn robots_turn(
        &self,
        name: &str,
        priority: Priority,
        origin: String,
        item: Item,
        permit: OwnedSemaphorePermit,
    ) {
        let before = self.robots.get(&origin);
        let before = before.as_ref().map(|known| &known.robots);
        let mut permit = Some(permit);
        let mut redirects = 0;
        let mut answered = match Url::parse(&format!("{origin}/robots.txt")) {
            Err(e) => Err(FetchError::Scheme { url: format!("{origin}: {e}") }),
            Ok(url) => {
                self.counts.count_robots();
                let wanted = robots_wanted(url.clone());
                match self.ask(name, &wanted, false, ROBOTS_BYTES_MAX).await {
                    Asking::NotFree => {
                        return self.later(name, priority, item);
                    }
                    // A connection that was kept and is dead: in the next turn.
                    Asking::Stale => return self.again(name, priority, item),
                    Asking::Answered(answer) => Ok((url, *answer)),
                    Asking::Failed(e) => Err(e),
                }
            }
        };
        // Each further hop is a guest's visit. This site's turn goes on meanwhile, but nothing of it is on the wire.
        while let Ok((url, answer)) = &answered
            && let Some(next) = answer.location(url)
            && redirects < ROBOTS_REDIRECTS_MAX
        {
            redirects += 1;
            drop(permit.take());
            answered = self.robots_hop(next).await;
        }
        if let Ok((url, answer)) = &answered
            && answer.location(url).is_some()
        {
            self.counts.count_trouble("robots-redirects");
        }
        if let Ok((_, answer)) = &answered
            && answer.status == 200
        {
            self.count_robots_troubles(answer);
        }
        let now = (self.settings.clock)();
        let robots = match &answered {
            Ok((url, answer)) => {
                Robots::answered(answer.status, &answer.body, PRODUCT, Some(url), before, now)
            }
            Err(e) => Robots::unreachable(e.to_string(), before, now),
        };
        let result = answered.map(|(_, answer)| answer);
        let crawl_delay = robots.crawl_delay;
        let until = Instant::now() + robots.good_for;
        self.robots.insert(origin, Arc::new(KnownRobots { robots, until }));
        {
            let mut queue = self.queue.lock();
            queue.pace(name, crawl_delay, Instant::now());
            queue.put_back(name, priority, item, Instant::now());
        }
        let given_up = match &result {
            // How another site answered says nothing of this one.
            _ if redirects > 0 => {
                self.queue.lock().done(name, &Went::Well, Instant::now());
                Vec::new()
            }
            Err(e @ (FetchError::Private(_) | FetchError::NoContact(_) | FetchError::Dns(_))) => {
                self.nowhere(name, e)
            }
            _ => self.finish(name, &result),
        };
        self.give_up(given_up).await;
        self.wake.notify_one();
    }

    /// A robots file that is longer than is read, or a web page: what can be read of it counts.
    fn count_robots_troubles(&self, answer: &Answer) {
        if answer.cut == Some(Cut::Length) {
            self.counts.count_trouble("robots-long");
        }
        let is_html = || answer.unpacked(UnpackLimits::default()).bytes.trim_ascii_start().starts_with(b"<");
        if answer.mime() == "text/html" || is_html() {
            self.counts.count_trouble("robots-html");
        }
    }

    /// A site that is nowhere: all its pages share its fate.
    fn nowhere(&self, name: &str, e: &FetchError) -> Vec<(Item, FetchError)> {
        let mut queue = self.queue.lock();
        let all = queue.drain(name);
        queue.done(name, &Went::Badly(None), Instant::now());
        all.into_iter().map(|item| (item, e.clone())).collect()
    }

    /// A redirect of a robots file, wherever it leads: asked for without asking that site's own robots file, but within its politeness.
    async fn robots_hop(&self, url: Url) -> Result<(Url, Answer), FetchError> {
        let wanted = robots_wanted(url.clone());
        self.acceptable(&wanted)?;
        let Some(name) = url.host_str() else { return Err(FetchError::Scheme { url: url.to_string() }) };
        let address = self.locate(&url).await?;
        self.queue.lock().guest_came(name, Instant::now());
        let answered = self.visit(name, address, &wanted).await;
        let went = match &answered {
            Ok(answer) if matches!(answer.status, 429 | 503) => Went::Badly(answer.retry_after()),
            _ => Went::NotAsked,
        };
        self.queue.lock().guest_went(name, &went, Instant::now());
        self.wake.notify_one();
        Ok((url.clone(), answered?))
    }

    /// Asks a site in another site's turn, as soon as its politeness allows.
    async fn visit(&self, name: &str, address: SocketAddr, wanted: &Wanted) -> Result<Answer, FetchError> {
        let until = Instant::now() + GUEST_TIME;
        let mut retried = false;
        loop {
            let now = Instant::now();
            let free = self.queue.lock().visit(name, address.ip(), now);
            match free {
                Err(_) if now >= until => return Err(FetchError::Time(GUEST_TIME)),
                Err(next_at) => tokio::time::sleep_until(next_at.min(until)).await,
                Ok(()) => {
                    let asking = self.ask_at(address, wanted, retried, ROBOTS_BYTES_MAX).await;
                    self.queue.lock().leave(name, address.ip(), Instant::now());
                    match asking {
                        Asking::Answered(answer) => return Ok(*answer),
                        Asking::Failed(e) => return Err(e),
                        Asking::NotFree | Asking::Stale => retried = true,
                    }
                }
            }
        }
    }

    /// Asks a site for a page; the site's turn is ours.
    async fn ask(&self, name: &str, wanted: &Wanted, retried: bool, body_bytes_max: usize) -> Asking {
        let address = match self.locate(&wanted.url).await {
            Ok(address) => address,
            Err(e) => return Asking::Failed(e),
        };
        if !self.queue.lock().take(name, address.ip(), Instant::now()) {
            return Asking::NotFree;
        }
        let asking = self.ask_at(address, wanted, retried, body_bytes_max).await;
        self.queue.lock().leave(name, address.ip(), Instant::now());
        self.wake.notify_one();
        asking
    }

    async fn ask_at(
        &self,
        address: SocketAddr,
        wanted: &Wanted,
        retried: bool,
        body_bytes_max: usize,
    ) -> Asking {
        let origin = wanted.url.origin().ascii_serialization();
        let kept = self.wires.lock().remove(&origin);
        let kept = kept.filter(|(wire, since)| {
            wire.is_open() && wire.address == address && since.elapsed() < KEPT_FOR && !retried
        });
        let is_kept = kept.is_some();
        let wire = match kept {
            Some((wire, _)) => Ok(wire),
            None => self.connect(address, &wanted.url).await,
        };
        let mut wire = match wire {
            Ok(wire) => wire,
            Err(e) => return Asking::Failed(e),
        };
        let mut limits = self.settings.limits.clone();
        limits.body_bytes_max = body_bytes_max;
        let asked = Asked {
            url: &wanted.url,
            known: &wanted.known,
            user_agent: &self.user_agent,
            limits: &limits,
            now_ms: (self.settings.clock)(),
            wants: if wanted.any_type { &|_| true } else { &*self.settings.wants },
        };
        match asked.ask(&mut wire).await {
            Ok((answer, reusable)) => {
                if reusable {
                    self.keep(origin, wire);
                }
                Asking::Answered(Box::new(answer))
            }
            Err(FetchError::Protocol(_)) if is_kept => Asking::Stale,
            Err(e) => Asking::Failed(e),
        }
    }

    async fn connect(&self, address: SocketAddr, url: &Url) -> Result<Wire, FetchError> {
        let tls = match url.scheme() {
            "https" => {
                let connector = self.tls.as_ref().map_err(|e| FetchError::Tls(e.clone()))?;
                Some((connector, url.host_str().unwrap_or_default().trim_matches(['[', ']'])))
            }
            _ => None,
        };
        let limits = &self.settings.limits;
        Wire::connect(Whom { address, tls, time: limits.connect_time, head_bytes_max: limits.head_bytes_max })
            .await
    }

    /// Keeps a connection for the site's next turn, as long as there is room.
    fn keep(&self, origin: String, wire: Wire) {
        let mut wires = self.wires.lock();
        if wires.len() >= 2 * self.settings.connections {
            wires.retain(|_, (wire, since)| wire.is_open() && since.elapsed() < KEPT_FOR);
        }
        if wires.len() < 2 * self.settings.connections {
            wires.insert(origin, (wire, Instant::now()));
        }
    }

    /// An address of a URL's host that may be reached.
    async fn locate(&self, url: &Url) -> Result<SocketAddr, FetchError> {
        let (Some(host), Some(port)) = (url.host(), url.port_or_known_default()) else {
            return Err(FetchError::Scheme { url: url.to_string() });
        };
        let found = match literal(&host) {
            Some(address) => vec![SocketAddr::new(address, port)],
            None => {
                let name = url.host_str().unwrap_or_default();
                let time = self.settings.limits.dns_time;
                match timeout(time, self.resolver.resolve(name, port)).await {
                    Err(_) => {
                        return Err(FetchError::Dns(format!("no answer within {} s", time.as_secs_f32())));
                    }
                    Ok(Err(e)) => return Err(FetchError::Dns(e)),
                    Ok(Ok(found)) => found,
                }
            }
        };
        let Some(first) = found.first() else { return Err(FetchError::Dns("there is none".to_owned())) };
        let reach = self.settings.reach;
        let address = found.iter().find(|address| reach.allows(address.ip()));
        let address = *address.ok_or(FetchError::Private(first.ip()))?;
        if self.settings.contact.is_none() && !address.ip().is_loopback() {
            return Err(FetchError::NoContact(address.ip()));
        }
        Ok(address)
    }
}
