//! `webbase schedule --allocate`: a bandwidth shared out among the pages of a table.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use webbase_crawler::scheduler::{BuiltIn, Demand, Limits, allocate};

use super::table::Table;

const PAGE: usize = 0;
const IMPORTANCE: usize = 1;
const CHANGE_RATE: usize = 2;
const HOST: usize = 3;

pub(super) fn limits(cycle: Option<f64>, wait: Option<f64>, host: Option<f64>) -> Result<Limits> {
    for (name, value) in [("--cycle", cycle), ("--longest-wait", wait), ("--host-limit", host)] {
        if value.is_some_and(|value| !(value.is_finite() && value > 0.0)) {
            bail!("{name} must be a positive number");
        }
    }
    if let (Some(cycle), Some(wait)) = (cycle, wait)
        && wait < cycle
    {
        bail!("--longest-wait {wait} is shorter than --cycle {cycle}: no page can be read so often");
    }
    Ok(Limits { cycle, longest_wait: wait, host_frequency_max: host })
}

pub(super) fn run(
    path: &Path,
    bandwidth: f64,
    policy: BuiltIn,
    limits: &Limits,
    out: impl Write,
) -> Result<()> {
    if !(bandwidth.is_finite() && bandwidth >= 0.0) {
        bail!("--bandwidth must be a number of page reads, not {bandwidth}");
    }
    let mut table = Table::open(path, ["page", "importance", "change_rate", "host"], 3)?;
    if limits.host_frequency_max.is_some() && !table.has(HOST) {
        bail!("--host-limit needs a column host in {}", path.display());
    }
    let (mut pages, mut demands) = (Vec::new(), Vec::new());
    let mut hosts: HashMap<String, u32> = HashMap::new();
    while table.next()? {
        let weight = amount(&table, IMPORTANCE, "importance")?;
        let rate = amount(&table, CHANGE_RATE, "change_rate")?;
        let page = table.field(PAGE);
        if page.is_empty() {
            bail!("{}: no page", table.place());
        }
        let count = u32::try_from(hosts.len()).context("more hosts than can be counted")?;
        let host = Some(table.field(HOST)).filter(|host| !host.is_empty());
        let host = host.map(|host| *hosts.entry(host.to_owned()).or_insert(count));
        pages.push(page.to_owned());
        demands.push(Demand { weight, rate, host });
    }
    let found = allocate(&policy, &demands, bandwidth, limits);
    if found.spent < bandwidth * (1.0 - 1e-6) && !pages.is_empty() {
        eprintln!(
            "webbase: {} of {bandwidth} reads are left over: no page gains by more, or may have more",
            bandwidth - found.spent
        );
    }
    let mut rows = csv::Writer::from_writer(out);
    rows.write_record(["page", "frequency"])?;
    for (page, frequency) in pages.iter().zip(&found.frequencies) {
        rows.write_record([page.as_str(), &frequency.to_string()])?;
    }
    rows.flush().context("cannot write to stdout")
}

/// A finite number that is not negative.
fn amount<const N: usize>(table: &Table<N>, column: usize, name: &str) -> Result<f64> {
    let text = table.field(column);
    if text.is_empty() {
        bail!("{}: no {name}", table.place());
    }
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        Ok(_) => bail!("{}: {name} must be finite and not negative, found {text:?}", table.place()),
        Err(_) => bail!("{}: {name} must be a number, found {text:?}", table.place()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(text: &str, bandwidth: f64, policy: &str, cycle: Option<f64>) -> Result<String> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("pages.csv");
        std::fs::write(&path, text)?;
        let mut out = Vec::new();
        run(&path, bandwidth, policy.parse()?, &limits(cycle, None, None)?, &mut out)?;
        Ok(String::from_utf8(out)?)
    }

    #[test]
    fn a_table_becomes_a_table() {
        let text = "page,importance,change_rate\na,1,1\n\"b,c\",1,3\n";
        let found = shared(text, 4.0, "proportional", None).unwrap();
        assert_eq!(found, "page,frequency\na,1\n\"b,c\",3\n");
        let found = shared(text, 4.0, "proportional", Some(0.5)).unwrap();
        assert_eq!(found, "page,frequency\na,2\n\"b,c\",2\n");
        // Columns in another order, beside others, after a byte order mark.
        let text = "\u{feff}change_rate,x,Page,importance\r\n1,,a,1\r\n1,,b,1\r\n";
        assert_eq!(shared(text, 1.0, "uniform", None).unwrap(), "page,frequency\na,0.5\nb,0.5\n");
        assert_eq!(shared("page,importance,change_rate\n", 4.0, "xyleme", None).unwrap(), "page,frequency\n");
        let still = "page,importance,change_rate\na,1,0\nb,1,2\n";
        assert_eq!(shared(still, 4.0, "crawl-value", None).unwrap(), "page,frequency\na,0\nb,4\n");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let error = |text: &str| shared(text, 1.0, "xyleme", None).unwrap_err().to_string();
        assert!(error("").contains("line 1 is no header"));
        assert!(error("page,importance\n").contains("no change_rate"));
        let with = |row: &str| error(&format!("page,importance,change_rate\na,1,1\n{row}\n"));
        assert!(with("b,1,inf").contains("line 3: change_rate must be finite"), "{}", with("b,1,inf"));
        assert!(with("b,NaN,1").contains("line 3: importance must be finite"));
        assert!(with("b,-1,1").contains("line 3: importance"));
        assert!(with("b,x,1").contains("line 3: importance must be a number"));
        assert!(with("b,1").contains("line 3: no change_rate"));
        assert!(with(",1,1").contains("line 3: no page"));
        assert!(shared("page,importance,change_rate\n", -1.0, "xyleme", None).is_err());
        assert!(shared("page,importance,change_rate\n", 1.0, "xyleme", Some(0.0)).is_err());
        assert!(shared("page,importance,change_rate\n", 1.0, "best", None).is_err());
    }
}
