//! Visits in order of time, and the evidence they are.

use super::{Evidence, Prior};

/// One visit of a page.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Visit {
    /// When.
    pub time: f64,
    /// Whether the content was another than at the visit before. Means nothing at the first.
    pub changed: bool,
    /// When the page says that it was last changed.
    pub last_modified: Option<f64>,
}

/// A visit earlier than the one before it, or a time that is no number.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
#[error("the visit at {time} is not after the one at {before}")]
pub struct OutOfOrder {
    /// Its time.
    pub time: f64,
    /// The time of the visit before.
    pub before: f64,
}

/// How a rate was come by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Method {
    /// From changed or not at each visit.
    Changes,
    /// From Last-Modified alone.
    LastModified,
    /// From complete lists of changes alone.
    ChangeList,
    /// From several of these.
    Combined,
    /// No change was seen, or nothing but changes: the prior decides.
    Prior,
    /// Nothing was seen.
    NoData,
}

impl Method {
    /// Its name in output.
    pub fn name(self) -> &'static str {
        match self {
            Method::Changes => "changes",
            Method::LastModified => "last-modified",
            Method::ChangeList => "change-list",
            Method::Combined => "combined",
            Method::Prior => "prior",
            Method::NoData => "no-data",
        }
    }
}

/// Which estimator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Estimator {
    /// The rate of the highest likelihood; where that is 0 or infinite, the bias-corrected one.
    #[default]
    Likelihood,
    /// Likelihood with half an unchanged visit added, without the change that the first Last-Modified counts as, and with a
    /// prior: finite and positive always.
    BiasCorrected,
    /// The papers' formula for Last-Modified, C/Σl over the visits that saw a change: kept to compare.
    Papers,
    /// Changes seen, divided by the time between the first and the last visit: kept to compare.
    Naive,
}

/// A rate, and how it was come by.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// Changes per unit of time.
    pub rate: f64,
    /// From what.
    pub method: Method,
}

/// What was seen of one page, in order of time.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct History {
    evidence: Evidence,
    /// Everything up to here has been counted.
    counted_to: Option<f64>,
    first: Option<f64>,
    first_is_event: bool,
    /// Visits with a visit before them, their time, and how many saw a change.
    intervals: f64,
    interval_time: f64,
    changes: f64,
    /// The papers' Σl and its count.
    late: f64,
    late_count: f64,
    by_change: bool,
    by_date: bool,
    by_list: bool,
}

impl History {
    /// Adds a visit.
    ///
    /// A Last-Modified in the future is taken for none, and so is one that contradicts what was seen: older than the last
    /// visit although the content changed since. One that is newer although the content is the same was a touch, not a change.
    ///
    /// # Errors
    /// [`OutOfOrder`], and nothing is added.
    pub fn visit(&mut self, visit: Visit) -> Result<(), OutOfOrder> {
        let Visit { time, changed, last_modified } = visit;
        let date = last_modified.filter(|d| d.is_finite() && *d <= time);
        let Some(before) = self.counted_to else {
            if !time.is_finite() {
                return Err(OutOfOrder { time, before: f64::NEG_INFINITY });
            }
            if let Some(date) = date {
                self.evidence.events += 1.0;
                self.evidence.exposure += time - date;
                self.late += time - date;
                self.late_count += 1.0;
                self.first_is_event = true;
                self.by_date = true;
            }
            self.counted_to = Some(time);
            self.first = Some(time);
            return Ok(());
        };
        // Not `time <= before`: a time that is no number is refused too.
        if !(time > before && time.is_finite()) {
            return Err(OutOfOrder { time, before });
        }
        self.intervals += 1.0;
        self.interval_time += time - before;
        self.changes += f64::from(u8::from(changed));
        match (changed, date) {
            (true, Some(date)) if date > before => {
                self.evidence.events += 1.0;
                self.evidence.exposure += time - date;
                self.late += time - date;
                self.late_count += 1.0;
                self.by_date = true;
            }
            (true, _) => {
                self.evidence.changed.push(time - before);
                self.by_change = true;
            }
            (false, date) => {
                self.evidence.exposure += time - before;
                self.by_date |= date.is_some();
                self.by_change |= date.is_none();
            }
        }
        self.counted_to = Some(time);
        Ok(())
    }

    /// Adds a list of *all* changes up to `until`, as a site's own history of a page. What lies before the last visit or the
    /// last list is known already and not counted again; the first list counts from its first change on.
    ///
    /// # Errors
    /// [`OutOfOrder`] if `until` lies before what is counted already, and nothing is added.
    pub fn change_list(&mut self, changes: &[f64], until: f64) -> Result<(), OutOfOrder> {
        let first = changes.iter().copied().filter(|t| t.is_finite() && *t <= until).min_by(f64::total_cmp);
        let Some(from) = self.counted_to.or(first) else {
            return Ok(());
        };
        if !(until >= from && until.is_finite()) {
            return Err(OutOfOrder { time: until, before: from });
        }
        let known = changes.iter().filter(|t| **t > from && **t <= until).count();
        self.evidence.events += known as f64;
        self.evidence.exposure += until - from;
        self.by_list = true;
        self.first.get_or_insert(from);
        self.counted_to = Some(until);
        Ok(())
    }

    /// The evidence.
    pub fn evidence(&self) -> &Evidence {
        &self.evidence
    }

    /// The rate. `Estimator::Likelihood` and `BiasCorrected` fall back on the prior where they must.
    pub fn estimate(&self, estimator: Estimator, prior: Option<&Prior>) -> Estimate {
        let method = match (self.by_change, self.by_date, self.by_list) {
            (false, false, false) => Method::NoData,
            (true, false, false) => Method::Changes,
            (false, true, false) => Method::LastModified,
            (false, false, true) => Method::ChangeList,
            _ => Method::Combined,
        };
        let usable = |rate: &f64| rate.is_finite() && *rate > 0.0;
        let likeliest = match estimator {
            Estimator::Likelihood => self.evidence.maximum().filter(usable),
            Estimator::BiasCorrected => None,
            Estimator::Papers if self.by_date => Some(self.late_count / self.late).filter(usable),
            Estimator::Papers => self.evidence.maximum().filter(usable),
            Estimator::Naive => {
                let seen = self.changes.max(self.evidence.events - f64::from(u8::from(self.first_is_event)));
                let time = self.counted_to.zip(self.first).map(|(last, first)| last - first);
                return Estimate { rate: time.filter(|t| *t > 0.0).map_or(0.0, |t| seen / t), method };
            }
        };
        if let Some(rate) = likeliest {
            return Estimate { rate, method };
        }
        let one_sided = self.evidence.maximum().is_none_or(|rate| !usable(&rate));
        let method = if one_sided && method != Method::NoData { Method::Prior } else { method };
        Estimate { rate: self.corrected(prior), method }
    }

    /// Half a visit that saw no change (which takes away the first order of the bias of changed-or-not), the first date not
    /// counted as a change (which takes away that of Last-Modified), and the prior.
    fn corrected(&self, prior: Option<&Prior>) -> f64 {
        let mut evidence = self.evidence.clone();
        if !evidence.changed.is_empty() && self.intervals > 0.0 {
            evidence.exposure += 0.5 * self.interval_time / self.intervals;
        }
        if self.first_is_event {
            evidence.events -= 1.0;
        }
        // Without a prior: half a change in the time that was seen.
        let weak = Prior { events: 0.5, ..Prior::NONE };
        let one_sided = evidence.events <= 0.0 && evidence.changed.is_empty();
        let prior = prior.unwrap_or(if one_sided || self.first_is_event { &weak } else { &Prior::NONE });
        let rate = evidence.maximum_with(prior).unwrap_or(0.0);
        // All dates equal to the visits: the changes of the visits themselves bound it.
        if rate.is_finite() {
            rate
        } else {
            2.0 * (self.changes + 1.0) / self.interval_time.max(f64::MIN_POSITIVE)
        }
    }
}

/// The rate of a page from its visits, by [`Estimator::Likelihood`] where that has a finite positive answer.
///
/// # Errors
/// [`OutOfOrder`] at the first visit that is not after the one before it.
pub fn estimate(
    visits: &[Visit],
    estimator: Estimator,
    prior: Option<&Prior>,
) -> Result<Estimate, OutOfOrder> {
    let mut history = History::default();
    for visit in visits {
        history.visit(*visit)?;
    }
    Ok(history.estimate(estimator, prior))
}
