//! `webbase schedule --estimate`: change rates from a table of visits.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use webbase_crawler::change_rate::{Estimate, Estimator, History, Method, Visit};

use super::table::Table;

const PAGE: usize = 0;
const TIME: usize = 1;
const CHANGED: usize = 2;
const LAST_MODIFIED: usize = 3;

pub(super) fn run(path: &Path, estimator: Estimator, out: impl Write) -> Result<()> {
    let mut table = Table::open(path, ["page", "time", "changed", "last_modified"], 3)?;
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut pages: Vec<(String, Vec<(Visit, String)>)> = Vec::new();
    let mut dates = None;
    while table.next()? {
        let time = moment(table.field(TIME)).with_context(|| {
            format!("{}: time must be a number or a date, found {:?}", table.place(), table.field(TIME))
        })?;
        if *dates.get_or_insert(time.is_date) != time.is_date {
            bail!("{}: times are numbers or dates, not both in one table", table.place());
        }
        let changed = match table.field(CHANGED).to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" => true,
            "0" | "false" | "no" => false,
            // The first visit of a page has nothing to compare with.
            "" if !places.contains_key(table.field(PAGE)) => true,
            other => bail!("{}: changed must be 0 or 1, found {other:?}", table.place()),
        };
        let last_modified = match table.field(LAST_MODIFIED) {
            "" => None,
            text => match moment(text) {
                Some(date) if date.is_date == time.is_date => Some(date.value),
                Some(_) => bail!("{}: last_modified and time must both be numbers or dates", table.place()),
                None => bail!("{}: last_modified must be a number or a date, found {text:?}", table.place()),
            },
        };
        let page = table.field(PAGE);
        if page.is_empty() {
            bail!("{}: no page", table.place());
        }
        let at = *places.entry(page.to_owned()).or_insert_with(|| {
            pages.push((page.to_owned(), Vec::new()));
            pages.len() - 1
        });
        if let Some((_, visits)) = pages.get_mut(at) {
            visits.push((Visit { time: time.value, changed, last_modified }, table.place()));
        }
    }
    let mut estimates = Vec::with_capacity(pages.len());
    for (page, mut visits) in pages {
        visits.sort_by(|a, b| a.0.time.total_cmp(&b.0.time));
        let mut history = History::default();
        for (visit, place) in visits {
            history
                .visit(visit)
                .with_context(|| format!("{place}: {page} is visited twice at the same time"))?;
        }
        estimates.push((page, history.estimate(estimator, None)));
    }
    let unknown = median(&estimates);
    let mut rows = csv::Writer::from_writer(out);
    rows.write_record(["page", "rate", "method"])?;
    for (page, Estimate { rate, method }) in &estimates {
        // Of a page that nothing is known of, it is most likely that it is like the others.
        let rate = if *method == Method::NoData { unknown } else { *rate };
        rows.write_record([page.as_str(), &rate.to_string(), method.name()])?;
    }
    rows.flush().context("cannot write to stdout")
}

fn median(estimates: &[(String, Estimate)]) -> f64 {
    let known = estimates.iter().filter(|(_, e)| e.method != Method::NoData).map(|(_, e)| e.rate);
    let mut rates: Vec<f64> = known.collect();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(0.0)
}

struct Moment {
    /// The number, or days since 1970.
    value: f64,
    is_date: bool,
}

/// A finite number, or a date as RFC 3339, sitemaps or HTTP write it.
fn moment(text: &str) -> Option<Moment> {
    if let Ok(value) = text.parse::<f64>() {
        return value.is_finite().then_some(Moment { value, is_date: false });
    }
    let days = |milliseconds: f64| Some(Moment { value: milliseconds / 86_400_000.0, is_date: true });
    if let Ok(found) = text.parse::<jiff::Timestamp>() {
        return days(found.as_millisecond() as f64);
    }
    if let Ok(found) = text.parse::<jiff::civil::DateTime>() {
        return days(found.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_millisecond() as f64);
    }
    let found = httpdate::parse_http_date(text).ok()?;
    days(found.duration_since(std::time::UNIX_EPOCH).ok()?.as_millis() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimated(text: &str) -> Result<String> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("visits.csv");
        std::fs::write(&path, text)?;
        let mut out = Vec::new();
        run(&path, Estimator::Likelihood, &mut out)?;
        Ok(String::from_utf8(out)?)
    }

    #[test]
    fn visits_become_rates() {
        // Rows of pages may be mixed and out of order; the unknown page is like the others.
        let found = estimated(
            "page,time,changed,last_modified\n\
             a,40,0,15\nnew,3,1,\na,10,1,4\na,12,0,4\nstill,0,,\na,20,1,15\nstill,5,0,\n",
        );
        let rate = 2.0 / 33.0;
        assert_eq!(
            found.unwrap(),
            format!("page,rate,method\na,{rate},last-modified\nnew,0.1,no-data\nstill,0.1,prior\n")
        );
        let dates = estimated(
            "page,time,changed\na,2026-01-01T00:00:00Z,1\na,2026-01-02,0\na,\"Sat, 03 Jan 2026 00:00:00 GMT\",1\n",
        );
        let ln2 = dates.unwrap().lines().nth(1).unwrap().split(',').nth(1).unwrap().parse::<f64>().unwrap();
        assert!((ln2 - std::f64::consts::LN_2).abs() < 1e-9);
        assert_eq!(estimated("page,time,changed\n").unwrap(), "page,rate,method\n");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let error = |row: &str| {
            format!(
                "{:#}",
                estimated(&format!("page,time,changed,last_modified\na,1,1,\n{row}\n")).unwrap_err()
            )
        };
        assert!(error("a,x,1,").contains("line 3: time"), "{}", error("a,x,1,"));
        assert!(error("a,inf,1,").contains("line 3: time"));
        assert!(error("a,2,2,").contains("line 3: changed must be 0 or 1"));
        assert!(error("a,2,,").contains("line 3: changed"));
        assert!(error("a,2,1,y").contains("line 3: last_modified"));
        assert!(error("a,1,1,").contains("twice at the same time"));
        assert!(error("a,2026-01-01,1,").contains("not both"));
        assert!(error(",2,1,").contains("line 3: no page"));
        assert!(estimated("").is_err());
    }
}
