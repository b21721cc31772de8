//! Which pages a request for a stream names: its parameters, as a specification.

use std::time::Duration;

use webbase_stream::{Condition, How, Projection, StreamOrder, StreamSpec};

use super::operation::{Parameter, query};
use super::params::Params;
use super::problem::Problem;

/// The parameters, for the description.
pub(super) fn parameters() -> Vec<Parameter> {
    vec![
        query(
            "domain",
            "string",
            "only pages of this domain and those in it; may be repeated, as all of these up to status",
        ),
        query("host", "string", "only pages of this host"),
        query("prefix", "string", "only pages whose URL begins so; the scheme does not count"),
        query("mime", "string", "only pages of this MIME type; text/* means all that begin so"),
        query("status", "string", "only pages with this HTTP status: 200, 400-499 or 4xx"),
        query(
            "since",
            "string",
            "only pages fetched at this time or later: milliseconds since 1970, or as RFC 3339 has it",
        ),
        query("until", "string", "only pages fetched before this time"),
        query("modified_since", "string", "only pages known to have changed at this time or later"),
        query("modified_until", "string", "only pages known to have changed last before this time"),
        query("min_size", "integer", "only pages whose body has at least so many bytes"),
        query("max_size", "integer", "only pages whose body has at most so many bytes"),
        query("min_importance", "number", "only pages known to be at least so important"),
        query("sample", "integer", "one in so many pages, always the same ones"),
        query("part", "string", "I/N: the I-th of N equal parts, from 1"),
        query("order", "string", "store (fastest), id, fetched, modified, importance or url"),
        query("what", "string", "everything, without-body or body-only"),
        query("shared", "boolean", "shares scans of the disks with others; begins wherever a scan is"),
    ]
}

/// A parameter, and the condition that its value makes.
type Named<T> = (&'static str, fn(T) -> Condition);

/// Takes them off a request. None of them, and the answer is `None`.
pub(super) fn take(params: &mut Params) -> Result<Option<(StreamSpec, How)>, Problem> {
    let mut conditions = Vec::new();
    let lists: [Named<Vec<String>>; 4] = [
        ("domain", Condition::Domain),
        ("host", Condition::Host),
        ("prefix", Condition::Prefix),
        ("mime", Condition::Mime),
    ];
    for (name, condition) in lists {
        let values = params.take_all(name);
        if !values.is_empty() {
            conditions.push(condition(values));
        }
    }
    let statuses = params.take_all("status");
    if !statuses.is_empty() {
        conditions
            .push(Condition::Status(statuses.iter().map(|text| status(text)).collect::<Result<_, _>>()?));
    }
    let times: [Named<u64>; 4] = [
        ("since", Condition::FetchedSince),
        ("until", Condition::FetchedUntil),
        ("modified_since", Condition::ModifiedSince),
        ("modified_until", Condition::ModifiedUntil),
    ];
    for (name, condition) in times {
        if let Some(text) = params.take(name)? {
            conditions.push(condition(time(name, &text)?));
        }
    }
    let numbers: [Named<u64>; 3] =
        [("min_size", Condition::BytesMin), ("max_size", Condition::BytesMax), ("sample", Condition::Sample)];
    for (name, condition) in numbers {
        conditions.extend(params.number(name)?.map(condition));
    }
    if let Some(text) = params.take("min_importance")? {
        let least = text.parse().map_err(|_| bad(format!("min_importance is a number, not {text:?}")))?;
        conditions.push(Condition::ImportanceMin(least));
    }
    let mut spec = StreamSpec { conditions, ..StreamSpec::all() };
    if let Some(text) = params.take("part")? {
        let (part, parts) = part(&text)?;
        spec = spec.part(part, parts);
    }
    if let Some(text) = params.take("order")? {
        let known = StreamOrder::ALL.iter().find(|(name, _)| *name == text);
        let names = || StreamOrder::ALL.map(|(name, _)| name).join(", ");
        spec.order = known.ok_or_else(|| bad(format!("an order is one of {}, not {text:?}", names())))?.1;
    }
    if let Some(text) = params.take("what")? {
        spec.projection = match text.as_str() {
            "everything" => Projection::Everything,
            "without-body" => Projection::WithoutBody,
            "body-only" => Projection::BodyOnly,
            _ => return Err(bad(format!("what is everything, without-body or body-only, not {text:?}"))),
        };
    }
    let how = How { shared: params.flag("shared")?, direct: false };
    if spec == StreamSpec::all() && !how.shared {
        return Ok(None);
    }
    Ok(Some((spec.checked().map_err(bad)?, how)))
}

fn bad(text: String) -> Problem {
    Problem::bad("bad-parameter", text.chars().take(500).collect::<String>())
}

fn status(text: &str) -> Result<(u16, u16), Problem> {
    let none = || bad(format!("a status is 200, 400-499 or 4xx, not {text:?}"));
    let number = |text: &str| text.trim().parse::<u16>().map_err(|_| none());
    if let Some((low, high)) = text.split_once('-') {
        return Ok((number(low)?, number(high)?));
    }
    match text.to_ascii_lowercase().strip_suffix("xx") {
        Some(class) => {
            let first = number(class)?.checked_mul(100).ok_or_else(none)?;
            Ok((first, first.saturating_add(99)))
        }
        None => number(text).map(|status| (status, status)),
    }
}

/// A time: milliseconds, or a date, with or without a time of day and a zone.
fn time(name: &str, text: &str) -> Result<u64, Problem> {
    if let Ok(ms) = text.parse() {
        return Ok(ms);
    }
    // A day begins at midnight, in UTC where nothing else is said.
    let whole = match (text.len(), text.contains('T') || text.contains(' ')) {
        (10, false) => format!("{text}T00:00:00Z"),
        (_, _) if text.ends_with(['Z', 'z']) => text.to_owned(),
        (_, true) if !text.get(10..).is_some_and(|rest| rest.contains(['+', '-'])) => format!("{text}Z"),
        _ => text.to_owned(),
    };
    let parsed = humantime::parse_rfc3339_weak(&whole).ok();
    let since = parsed.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    let ms = since.map(|since: Duration| since.as_millis() as u64);
    ms.ok_or_else(|| {
        bad(format!("{name} is a time such as 2026-01-31, 2026-01-31T12:00:00Z or milliseconds since 1970, not {text:?}"))
    })
}

fn part(text: &str) -> Result<(u32, u32), Problem> {
    let none = || bad(format!("a part is I/N, with I from 1 to N, not {text:?}"));
    let (part, parts) = text.split_once('/').ok_or_else(none)?;
    let (part, parts): (u32, u32) = (part.parse().map_err(|_| none())?, parts.parse().map_err(|_| none())?);
    if part == 0 || part > parts || parts > 65_536 {
        return Err(none());
    }
    Ok((part - 1, parts))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(query: &str) -> Result<Option<(StreamSpec, How)>, Problem> {
        let mut params = Params::parse(Some(query)).unwrap();
        let taken = take(&mut params)?;
        params.finish()?;
        Ok(taken)
    }

    #[test]
    fn parameters_become_a_specification() {
        assert_eq!(taken("").unwrap(), None);
        let (spec, how) =
            taken("domain=edu&domain=org&status=200&status=4xx&order=url&part=2/4&shared=1&since=1970-01-02")
                .unwrap()
                .unwrap();
        assert!(how.shared && spec.order == StreamOrder::Url);
        let day = 86_400_000;
        assert_eq!(
            spec.conditions,
            [
                Condition::Domain(vec!["edu".into(), "org".into()]),
                Condition::Status(vec![(200, 200), (400, 499)]),
                Condition::FetchedSince(day),
                Condition::Ids(1 << 62, (2 << 62) - 1),
            ]
        );
        for (text, ms) in [
            ("1970-01-02", day),
            ("1970-01-02T00:00:01", day + 1000),
            ("1970-01-02T00:00:01Z", day + 1000),
            ("12345", 12345),
        ] {
            assert_eq!(time("since", text).unwrap(), ms, "{text}");
        }
    }

    #[test]
    fn what_is_no_parameter_is_refused() {
        for bad in [
            "status=x",
            "status=99999",
            "status=1000xx",
            "since=yesterday",
            "min_size=-1",
            "min_importance=x",
            "min_importance=NaN",
            "part=0/3",
            "part=4/3",
            "part=1",
            "order=random",
            "what=head",
            "sample=0",
            "domain=",
            "host=a/b",
            "shared=maybe",
            "since=1&since=2",
        ] {
            assert_eq!(taken(bad).unwrap_err().status(), 400, "{bad}");
        }
    }
}
