//! A schedule's settings by name, for `webbase crawl --set` and, while that runs, for `webbase schedule --set`.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use webbase_crawler::scheduler::{Chi, Kind, Settings};

/// What can be set, for help and messages.
pub(crate) const NAMES: &str = "bandwidth=100/s (or /min, /h, /d), cycle=6h, policy=crawl-value, chi=1 (mean weight of XML against HTML), \
chi-share=0.5 (XML's share of the bandwidth), discovery-xml=0.2, discovery-html=0.2, longest-wait=90d, longest-wait-share=0.1, gone=3, \
factor.html=1 (and xml, dtd, other, error)";

/// Sets one thing.
///
/// # Errors
/// When there is no such thing, or the value is none for it. Whether all of them fit together is for [`Settings::check`].
pub(crate) fn set(settings: &mut Settings, text: &str) -> Result<()> {
    let (name, value) =
        text.split_once('=').with_context(|| format!("{text:?} is no NAME=VALUE: {NAMES}"))?;
    let number = || value.parse::<f64>().with_context(|| format!("{name}: {value:?} is no number"));
    let time = || humantime::parse_duration(value).with_context(|| format!("{name}: {value:?} is no time"));
    match name {
        "bandwidth" => settings.bandwidth = reads_a_day(value).map_err(anyhow::Error::msg)?,
        "cycle" => settings.cycle_s = u32::try_from(time()?.as_secs()).context("cycle: too long")?,
        "policy" => settings.policy = value.parse()?,
        "chi" => settings.chi = Chi::MeanWeight(number()?),
        "chi-share" => settings.chi = Chi::Share(number()?),
        "discovery-xml" => settings.discovery_xml = number()?,
        "discovery-html" => settings.discovery_html = number()?,
        "longest-wait" => {
            settings.longest_wait_days =
                if value == "none" { None } else { Some(time()?.as_secs_f64() / 86_400.0) };
        }
        "longest-wait-share" => settings.longest_wait_share = number()?,
        "gone" => {
            settings.gone_max = value.parse().with_context(|| format!("gone: {value:?} is no number"))?
        }
        _ => {
            let kind = name
                .strip_prefix("factor.")
                .and_then(|kind| Kind::ALL.into_iter().find(|k| k.name() == kind));
            let Some(factor) = kind.and_then(|kind| settings.factors.get_mut(kind as usize)) else {
                bail!("nothing is called {name:?}: {NAMES}");
            };
            *factor = value.parse().with_context(|| format!("{name}: {value:?} is no number"))?;
        }
    }
    Ok(())
}

/// A bandwidth: reads a second, minute, hour or (if nothing is said) day.
pub(crate) fn reads_a_day(text: &str) -> Result<f64, String> {
    let (number, unit) = text.split_once('/').unwrap_or((text, "d"));
    let number: f64 = number.trim().parse().map_err(|_| format!("{text:?} is no bandwidth such as 100/s"))?;
    let unit = match unit.trim() {
        "s" => Duration::from_secs(1),
        "m" | "min" => Duration::from_secs(60),
        "h" => Duration::from_secs(3600),
        "d" | "day" => Duration::from_secs(86_400),
        _ => return Err(format!("{text:?} is no bandwidth: per s, min, h or d")),
    };
    Ok(number * 86_400.0 / unit.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_by_name() {
        let mut settings = Settings::default();
        for text in [
            "bandwidth=2/s",
            "chi-share=0.3",
            "factor.xml=4",
            "cycle=1h",
            "policy=lambda",
            "longest-wait=10d",
        ] {
            set(&mut settings, text).unwrap();
        }
        assert_eq!((settings.bandwidth, settings.cycle_s), (172_800.0, 3600));
        assert_eq!((settings.chi, settings.factors[1]), (Chi::Share(0.3), 4.0));
        assert_eq!(settings.longest_wait_days, Some(10.0));
        settings.check().unwrap();
        for text in ["chi", "chi=x", "factor.pdf=1", "bandwidth=1/week", "nothing=1"] {
            assert!(set(&mut settings, text).is_err(), "{text}");
        }
    }
}
