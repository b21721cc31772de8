//! A hand on a running crawl: what it does is seen and steered from here, from any thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use url::Url;

use super::progress::Progress;
use super::state::PageView;
use crate::fetcher::{Fetcher, SiteView};
use crate::scheduler::{BadSetting, Publication, Settings};

/// What somebody wishes for a page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wish {
    /// That it is read now.
    Now,
    /// That the scheduler treats it so.
    Publish(Publication),
}

/// What the keeper is asked.
pub(super) enum Question {
    Due(usize, oneshot::Sender<Vec<PageView>>),
    Why(String, oneshot::Sender<Option<PageView>>),
    Wish(Url, Wish, oneshot::Sender<()>),
}

/// A hand on a running crawl.
#[derive(Clone, Default)]
pub struct Control(Arc<Shared>);

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    pause: AtomicBool,
    progress: Mutex<Progress>,
    fetcher: Mutex<Option<Arc<Fetcher>>>,
    schedule: Mutex<Option<Settings>>,
    schedule_changed: AtomicBool,
    /// `None` while nobody answers.
    questions: Mutex<Option<Vec<Question>>>,
}

impl Control {
    /// Ends the crawl: what is being fetched is still taken, then everything is written.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
    }

    /// Hands out no more URLs, or again.
    pub fn pause(&self, paused: bool) {
        self.0.pause.store(paused, Ordering::Release);
    }

    /// How it goes.
    pub fn progress(&self) -> Progress {
        self.0.progress.lock().clone()
    }

    /// A site, as the fetcher sees it: why it is slow.
    pub fn site(&self, host: &str) -> Option<SiteView> {
        self.0.fetcher.lock().as_ref()?.site(host)
    }

    /// How the bandwidth is shared out; `None` without one, or while no crawl runs.
    pub fn schedule(&self) -> Option<Settings> {
        self.0.schedule.lock().clone()
    }

    /// Changes how the bandwidth is shared out (G, χ, factors, policy, …), from the next plan on. Without a bandwidth nothing happens.
    ///
    /// # Errors
    /// A setting that makes no sense; then nothing changes.
    pub fn set_schedule(&self, settings: Settings) -> Result<(), BadSetting> {
        settings.check()?;
        let mut schedule = self.0.schedule.lock();
        if schedule.is_some() {
            *schedule = Some(settings);
            self.0.schedule_changed.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// The pages that are due soonest; `None` while no crawl runs.
    pub async fn due(&self, count: usize) -> Option<Vec<PageView>> {
        self.ask(|to| Question::Due(count, to)).await
    }

    /// When a page is due, and why then; the outer `None` while no crawl runs, the inner for a page that is not known.
    pub async fn why(&self, url: &str) -> Option<Option<PageView>> {
        self.ask(|to| Question::Why(url.to_owned(), to)).await
    }

    /// Wishes something for a page; a page that is not known is found by it. `None` while no crawl runs.
    pub async fn wish(&self, url: Url, wish: Wish) -> Option<()> {
        self.ask(|to| Question::Wish(url, wish, to)).await
    }

    async fn ask<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> Question) -> Option<T> {
        let (to, answer) = oneshot::channel();
        self.0.questions.lock().as_mut()?.push(question(to));
        answer.await.ok()
    }

    pub(super) fn begin(&self, fetcher: Arc<Fetcher>, schedule: Option<Settings>) {
        *self.0.fetcher.lock() = Some(fetcher);
        *self.0.schedule.lock() = schedule;
        *self.0.questions.lock() = Some(Vec::new());
    }

    pub(super) fn end(&self) {
        *self.0.fetcher.lock() = None;
        *self.0.schedule.lock() = None;
        // Whoever still waits for an answer is told that there is none.
        *self.0.questions.lock() = None;
    }

    pub(super) fn questions(&self) -> Vec<Question> {
        self.0.questions.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Settings that were changed since they were last taken.
    pub(super) fn changed_schedule(&self) -> Option<Settings> {
        let changed = self.0.schedule_changed.swap(false, Ordering::AcqRel);
        changed.then(|| self.0.schedule.lock().clone()).flatten()
    }

    pub(super) fn tell(&self, progress: Progress) {
        *self.0.progress.lock() = progress;
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.0.stop.load(Ordering::Acquire)
    }

    pub(super) fn is_paused(&self) -> bool {
        self.0.pause.load(Ordering::Acquire)
    }
}
