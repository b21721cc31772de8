//! `webbase schedule`: what the page scheduler says, and its calculators for anybody's data.

mod allocate;
mod crawl;
mod estimate;
pub(crate) mod settings;
mod table;

use std::path::PathBuf;

use anyhow::Result;
use webbase_crawler::change_rate::Estimator;
use webbase_crawler::scheduler::{BuiltIn, Publication};

/// What a crawl reads next and why; and the scheduler as a calculator.
///
/// Without a table it is about a crawl: what is due in its folder, why one page is due when, and, while it runs, other settings
/// and wishes for pages. Both calculators read CSV with a header ("-" is stdin) and write CSV to stdout. Their columns may stand in any order and
/// beside others.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Schedule {
    /// The crawl's folder.
    #[arg(long, value_name = "DIR", default_value = "webbase-crawl", conflicts_with_all = ["allocate", "estimate"])]
    crawl: PathBuf,
    /// Say when this page is due, and why then, rather than what is due soonest.
    #[arg(value_name = "URL", conflicts_with_all = ["allocate", "estimate"])]
    url: Option<String>,
    /// How many pages to list.
    #[arg(long, value_name = "N", default_value_t = 20)]
    due: usize,
    /// Change a setting of the crawl that runs, or look at one that does not as if it had it; may be given several times.
    #[arg(long, value_name = "NAME=VALUE", long_help = SET_HELP)]
    set: Vec<String>,
    /// Read the page now.
    #[arg(long, requires = "url")]
    now: bool,
    /// Say of the page that it changes so often a day, is to be read so often a day, or never: `changes=2`, `refresh=0.5`,
    /// `never`; `none` takes it back.
    #[arg(long, value_name = "WHAT", requires = "url", value_parser = publication)]
    publish: Option<Publication>,
    /// Pause the crawl.
    #[arg(long, conflicts_with = "resume")]
    pause: bool,
    /// Let it go on.
    #[arg(long)]
    resume: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
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

const SET_HELP: &str = "Change a setting of the crawl that runs, or look at one that does not as if it had it; may be given several \
times: bandwidth=100/s, cycle=6h, policy=crawl-value, chi=1, chi-share=0.5, discovery-xml=0.2, discovery-html=0.2, longest-wait=90d, \
gone=3, factor.xml=1";

const EXAMPLES: &str = "Examples:
  webbase schedule --crawl webbase-crawl                      what is due soonest
  webbase schedule http://example.org/ --json                 why this page is due when
  webbase schedule --set chi=4 --set factor.html=0.5          while the crawl runs
  webbase schedule http://example.org/ --publish refresh=24
  webbase schedule --allocate pages.csv --bandwidth 1000
  webbase schedule --allocate pages.csv --bandwidth 1000 --policy crawl-value --cycle 0.25
  webbase schedule --estimate visits.csv > rates.csv

pages.csv:                              visits.csv:
  page,importance,change_rate             page,time,changed,last_modified
  http://example.org/,0.7,2.5             http://example.org/,0,1,-3.5
  http://example.org/old,0.1,0.01         http://example.org/,1.5,0,-3.5";

fn publication(text: &str) -> Result<Publication, String> {
    let rate = |text: &str| text.parse::<f64>().ok().filter(|rate| *rate > 0.0 && rate.is_finite());
    let published = match text.split_once('=') {
        None if text == "never" => Some(Publication::Never),
        None if text == "none" => Some(Publication::None),
        Some(("changes", a_day)) => rate(a_day).map(Publication::ChangeRate),
        Some(("refresh", a_day)) => rate(a_day).map(Publication::FixedRefresh),
        _ => None,
    };
    published.ok_or_else(|| "one of changes=N, refresh=N (both a day), never, none".to_owned())
}

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
    pub(crate) async fn run(self) -> Result<()> {
        let out = std::io::stdout();
        match (&self.allocate, &self.estimate, self.bandwidth) {
            (Some(pages), None, Some(bandwidth)) => {
                let limits = allocate::limits(self.cycle, self.longest_wait, self.host_limit)?;
                allocate::run(pages, bandwidth, self.policy, &limits, out)
            }
            (None, Some(visits), _) => estimate::run(visits, self.estimator, out),
            _ => {
                let url = self.url.as_deref();
                let asked = crawl::Asked {
                    dir: &self.crawl,
                    why: url,
                    due: self.due,
                    set: &self.set,
                    now: url.filter(|_| self.now),
                    publish: url.zip(self.publish),
                    pause: (self.pause || self.resume).then_some(self.pause),
                    json: self.json,
                };
                crawl::run(asked, out).await
            }
        }
    }
}
