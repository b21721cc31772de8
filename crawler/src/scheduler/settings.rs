//! What an operator sets, all of it changeable while running.

use super::page::Kind;
use super::policy::BuiltIn;

/// How XML stands against HTML. The papers mean the first, the thesis the second.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Chi {
    /// An XML page weighs on average χ times what an HTML page does: w = χ·I/mean(I) against J/mean(J).
    MeanWeight(f64),
    /// XML pages get this share of the refresh bandwidth, HTML pages the rest.
    Share(f64),
}

/// How the bandwidth is to be used.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// G: page reads a day.
    pub bandwidth: f64,
    /// No page is read twice within this time (the refresh cycle).
    pub cycle_s: u32,
    /// σ_X: the share of reads for first reads of XML suspects.
    pub discovery_xml: f64,
    /// σ_H: the share of reads for first reads of other pages.
    pub discovery_html: f64,
    /// XML against HTML.
    pub chi: Chi,
    /// A factor of each kind's weights, by [`Kind`]; 0 stops its refreshing.
    pub factors: [f64; Kind::COUNT],
    /// How pages share the refresh bandwidth.
    pub policy: BuiltIn,
    /// Every page is read at least once in this time, as far as `longest_wait_share` goes: nobody waits longer than the greater of
    /// this and the time in which that share of the refreshes reads all pages that would wait longer.
    pub longest_wait_days: Option<f64>,
    /// The most that refreshes of pages that waited longest may take of all refreshes.
    pub longest_wait_share: f64,
    /// Times in a row that a page is found gone before it is dead.
    pub gone_max: u8,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            bandwidth: 4_000_000.0,
            cycle_s: 6 * 3600,
            discovery_xml: 0.2,
            discovery_html: 0.2,
            chi: Chi::MeanWeight(1.0),
            factors: [1.0; Kind::COUNT],
            policy: BuiltIn::CrawlValue,
            longest_wait_days: Some(90.0),
            longest_wait_share: 0.1,
            gone_max: 3,
        }
    }
}

/// Settings that no scheduler can follow.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("{name} is {value}, which is not {expected}")]
pub struct BadSetting {
    /// Which.
    pub name: &'static str,
    /// As given.
    pub value: f64,
    /// What it must be.
    pub expected: &'static str,
}

impl Settings {
    /// The refresh cycle in days.
    pub fn cycle_days(&self) -> f64 {
        f64::from(self.cycle_s) / 86_400.0
    }

    /// How many of so many refreshes may be of pages that waited longest; one at least, so that all get their turn.
    pub(super) fn waited_max(&self, refreshes: usize) -> usize {
        ((refreshes as f64 * self.longest_wait_share).ceil() as usize).min(refreshes)
    }

    /// # Errors
    /// The first setting that makes no sense.
    pub fn check(&self) -> Result<(), BadSetting> {
        let bad = |name, value, expected| Err(BadSetting { name, value, expected });
        let positive = |v: f64| v.is_finite() && v > 0.0;
        let share = |v: f64| (0.0..=1.0).contains(&v);
        if !positive(self.bandwidth) {
            return bad("bandwidth", self.bandwidth, "a positive number of reads a day");
        }
        if self.cycle_s == 0 {
            return bad("cycle", 0.0, "at least a second");
        }
        if !share(self.discovery_xml) {
            return bad("discovery_xml", self.discovery_xml, "a share from 0 to 1");
        }
        if !(share(self.discovery_html) && self.discovery_xml + self.discovery_html <= 1.0) {
            return bad("discovery_html", self.discovery_html, "what discovery_xml leaves of 1, or less");
        }
        match self.chi {
            Chi::MeanWeight(chi) if !positive(chi) => return bad("chi", chi, "a positive factor"),
            Chi::Share(share_of_xml) if !share(share_of_xml) => {
                return bad("chi", share_of_xml, "a share from 0 to 1");
            }
            _ => {}
        }
        if let Some(factor) = self.factors.iter().find(|f| !(f.is_finite() && **f >= 0.0)) {
            return bad("factor", *factor, "a factor from 0 on");
        }
        if let Some(wait) =
            self.longest_wait_days.filter(|wait| *wait < self.cycle_days() || !wait.is_finite())
        {
            return bad("longest_wait", wait, "at least a cycle");
        }
        if !share(self.longest_wait_share) {
            return bad("longest_wait_share", self.longest_wait_share, "a share from 0 to 1");
        }
        if !(1..=15).contains(&self.gone_max) {
            return bad("gone_max", f64::from(self.gone_max), "from 1 to 15");
        }
        Ok(())
    }
}
