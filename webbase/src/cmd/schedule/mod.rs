//! `webbase schedule`: what the page scheduler says, and its calculators for anybody's data.

mod allocate;
mod estimate;
mod table;

use std::path::PathBuf;

use anyhow::{Result, bail};
use webbase_crawler::change_rate::Estimator;
use webbase_crawler::scheduler::BuiltIn;

/// How often to read which page, and how often pages change: the scheduler as a calculator.
///
/// Both calculators read CSV with a header ("-" is stdin) and write CSV to stdout. Their columns may stand in any order and
/// beside others.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Schedule {
    /// Share a bandwidth out: a table with the columns page, importance, change_rate and, if you like, host. Writes
    /// page,frequency.
    #[arg(long, value_name = "PAGES.csv", requires = "bandwidth", conflicts_with = "estimate")]
    allocate: Option<PathBuf>,
    /// Page reads there are for refreshing, per unit of time of change_rate.
    #[arg(long, value_name = "G", allow_negative_numbers = true)]
    bandwidth: Option<f64>,
    /// uniform, proportional, xyleme (least obsolescence), crawl-value (most freshness) or lambda (nearly as fresh, and
    /// nobody is starved).
    #[arg(long, value_name = "NAME", default_value = "xyleme")]
    policy: BuiltIn,
    /// Never read a page twice within this time; what that leaves over goes to the others.
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    cycle: Option<f64>,
    /// Read every page at least once in this time, if the bandwidth can do it.
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    longest_wait: Option<f64>,
    /// Never read from one host more often than this; needs the column host.
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    host_limit: Option<f64>,
    /// Estimate change rates: a table with the columns page, time, changed (0 or 1) and, if you like, last_modified. Times are
    /// numbers in any unit, or dates (rates are then per day). Writes page,rate,method.
    #[arg(long, value_name = "VISITS.csv")]
    estimate: Option<PathBuf>,
    /// likelihood, bias-corrected, papers (C/Σl, which leaves unchanged time out) or naive (changes seen by time).
    #[arg(long, value_name = "NAME", default_value = "likelihood", value_parser = estimator)]
    estimator: Estimator,
}

const EXAMPLES: &str = "Examples:
  webbase schedule --allocate pages.csv --bandwidth 1000
  webbase schedule --allocate pages.csv --bandwidth 1000 --policy crawl-value --cycle 0.25
  webbase schedule --estimate visits.csv > rates.csv

pages.csv:                              visits.csv:
  page,importance,change_rate             page,time,changed,last_modified
  http://example.org/,0.7,2.5             http://example.org/,0,1,-3.5
  http://example.org/old,0.1,0.01         http://example.org/,1.5,0,-3.5";

fn estimator(name: &str) -> Result<Estimator, String> {
    match name {
        "likelihood" => Ok(Estimator::Likelihood),
        "bias-corrected" => Ok(Estimator::BiasCorrected),
        "papers" => Ok(Estimator::Papers),
        "naive" => Ok(Estimator::Naive),
        _ => Err("there are likelihood, bias-corrected, papers and naive".into()),
    }
}

impl Schedule {
    pub(crate) fn run(self) -> Result<()> {
        let out = std::io::stdout().lock();
        match (&self.allocate, &self.estimate, self.bandwidth) {
            (Some(pages), None, Some(bandwidth)) => {
                let limits = allocate::limits(self.cycle, self.longest_wait, self.host_limit)?;
                allocate::run(pages, bandwidth, self.policy, &limits, out)
            }
            (None, Some(visits), _) => estimate::run(visits, self.estimator, out),
            _ => bail!("say what to calculate: --allocate PAGES.csv --bandwidth G, or --estimate VISITS.csv"),
        }
    }
}
