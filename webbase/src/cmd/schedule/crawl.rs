//! What a crawl's scheduler says: what is due, why one page is due when; and steering it while it runs.

use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use serde_json::{Value, json};
use webbase_crawler::crawl::{CrawlState, saved_schedule};
use webbase_crawler::scheduler::Publication;

use super::settings;
use crate::cmd::crawl::control::{Question, ask};

/// What is asked of a crawl.
pub(super) struct Asked<'a> {
    pub(super) dir: &'a Path,
    pub(super) why: Option<&'a str>,
    pub(super) due: usize,
    pub(super) set: &'a [String],
    pub(super) now: Option<&'a str>,
    pub(super) publish: Option<(&'a str, Publication)>,
    pub(super) pause: Option<bool>,
    pub(super) json: bool,
}

pub(super) async fn run(asked: Asked<'_>, mut out: impl Write) -> Result<()> {
    let dir = asked.dir;
    let mut told = Vec::new();
    if !asked.set.is_empty() {
        told.push(Question::Set(asked.set.to_vec()));
    }
    told.extend(asked.now.map(|url| Question::Now(url.to_owned())));
    told.extend(asked.publish.map(|(url, publication)| Question::Publish(url.to_owned(), publication)));
    told.extend(asked.pause.map(Question::Pause));
    for question in &told {
        if ask(dir, question).await?.is_none() {
            // Settings are looked at below; the rest is for a crawl that runs.
            if !matches!(question, Question::Set(_)) {
                bail!("no crawl runs in {}: this is for one that does", dir.display());
            }
        }
    }
    if told.iter().any(|question| !matches!(question, Question::Set(_))) {
        return Ok(());
    }
    let question = match asked.why {
        Some(url) => Question::Why(url.to_owned()),
        None => Question::Due(asked.due),
    };
    let answer = match ask(dir, &question).await? {
        Some(answer) => answer,
        None => at_rest(&asked)?,
    };
    if asked.json {
        writeln!(out, "{answer}")?;
    } else if let Some(pages) = answer.as_array() {
        for page in pages {
            writeln!(out, "{}", in_one_line(page))?;
        }
    } else if answer.is_null() {
        bail!("{} is not known to this crawl", asked.why.unwrap_or_default());
    } else {
        write!(out, "{}", in_full(&answer))?;
    }
    Ok(())
}

/// Asks the folder of a crawl that does not run.
fn at_rest(asked: &Asked<'_>) -> Result<Value> {
    let dir = asked.dir;
    if !dir.join("frontier.redb").exists() {
        bail!("{} is no folder of a crawl: --crawl DIR says which", dir.display());
    }
    // A crawl that never had a bandwidth is looked at as if it had the usual one.
    let mut schedule = saved_schedule(dir)?.unwrap_or_default();
    for change in asked.set {
        settings::set(&mut schedule, change)?;
    }
    let state =
        CrawlState::open(dir, Some(schedule)).with_context(|| format!("cannot open {}", dir.display()))?;
    Ok(match asked.why {
        Some(url) => json!(state.why(url)?),
        None => json!(state.due(asked.due)?),
    })
}

fn moment(page: &Value, name: &str) -> Option<String> {
    let at_ms = page.get(name)?.as_i64()?;
    Timestamp::from_millisecond(at_ms).ok().map(|moment| moment.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

fn text<'a>(page: &'a Value, name: &str) -> &'a str {
    page.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn number(page: &Value, name: &str) -> f64 {
    page.get(name).and_then(Value::as_f64).unwrap_or(0.0)
}

fn in_one_line(page: &Value) -> String {
    let due = moment(page, "due_at_ms").unwrap_or_else(|| "-".to_owned());
    format!("{due:19}  {}  ({})", text(page, "url"), text(page, "reason"))
}

fn in_full(page: &Value) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "{name:12} {value}");
    };
    let or_none = |moment: Option<String>| moment.unwrap_or_else(|| "-".to_owned());
    line("page", text(page, "url").to_owned());
    line("stands", format!("{}, {}", text(page, "state"), text(page, "kind")));
    line("due", or_none(moment(page, "due_at_ms")));
    line("because of", text(page, "reason").to_owned());
    line("weight", format!("{:.4} (1 is the mean)", number(page, "weight")));
    line("changes", format!("{:.5} a day", number(page, "change_rate")));
    line(
        "read",
        format!("{:.5} a day, at a price of {:.3e}", number(page, "frequency"), number(page, "price")),
    );
    line("first read", or_none(moment(page, "first_read_ms")));
    line("last read", or_none(moment(page, "last_read_ms")));
    line(
        "seen",
        format!("{} changes, {} reads without one", number(page, "changes"), number(page, "unchanged")),
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_crawl_is_looked_at_with_the_settings_it_had() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let asked =
            Asked { dir, why: None, due: 3, set: &[], now: None, publish: None, pause: None, json: true };
        assert!(at_rest(&asked).is_err(), "no crawl was ever here");
        drop(CrawlState::open(dir, None).unwrap());
        assert_eq!(at_rest(&asked).unwrap(), json!([]), "one without a bandwidth");
        // What it had is what counts: settings that nobody can read are said, not replaced by the usual ones.
        std::fs::write(dir.join("schedule.json"), r#"{"version": 9}"#).unwrap();
        let error = at_rest(&asked).unwrap_err().to_string();
        assert!(error.contains("schedule.json") && error.contains("version 9"), "{error}");
    }
}
