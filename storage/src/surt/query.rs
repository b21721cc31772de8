//! The query of a key: sorted parameters, without session ids.

use std::cmp::Ordering;

use super::{Profile, push_folded};

/// Appends `?` and the query, which needs no decoding, or says `None` where that takes more than a look at it: where
/// parameters are out of order or one may be a session id. An empty query is nothing.
pub(super) fn push_plain(profile: Profile, query: &str, out: &mut String) -> Option<()> {
    if query.is_empty() {
        return Some(());
    }
    let start = out.len();
    out.push('?');
    push_folded(profile, query, out);
    let folded = out.get(start + 1..)?;
    let mut before: Option<&str> = None;
    let in_order = folded.split('&').all(|parameter| {
        let rises = before.is_none_or(|before| compare(before, parameter) != Ordering::Greater);
        before = Some(parameter);
        rises && !may_be_session(parameter)
    });
    if !in_order {
        let folded = folded.to_owned();
        out.truncate(start);
        push(&folded, out);
    }
    Some(())
}

/// Appends `?` and the query, whose encoding and case are final, sorted and without session ids.
pub(super) fn push(query: &str, out: &mut String) {
    if query.is_empty() {
        return;
    }
    let mut parameters: Vec<&str> = query.split('&').collect();
    drop_sessions(&mut parameters);
    parameters.sort_unstable_by(|a, b| compare(a, b));
    for (n, parameter) in parameters.iter().enumerate() {
        out.push(if n == 0 { '?' } else { '&' });
        out.push_str(parameter);
    }
}

/// By name, then by value, where no value comes before an empty one.
fn compare(a: &str, b: &str) -> Ordering {
    // What differs before any `=` decides as texts do, unless one name ends there.
    let (name_a, value_a) = split(a);
    let (name_b, value_b) = split(b);
    name_a.cmp(name_b).then_with(|| value_a.cmp(&value_b))
}

fn split(parameter: &str) -> (&str, Option<&str>) {
    parameter.split_once('=').map_or((parameter, None), |(name, value)| (name, Some(value)))
}

/// Whether [`drop_sessions`] has to look at it.
fn may_be_session(parameter: &str) -> bool {
    is_session(parameter) || is_named(parameter, "cfid")
}

fn drop_sessions(parameters: &mut Vec<&str>) {
    parameters.retain(|parameter| !is_session(parameter));
    let mut pair = 0;
    while let Some([id, token, ..]) = parameters.get(pair..) {
        if is_named(id, "cfid") && is_named(token, "cftoken") {
            parameters.drain(pair..pair + 2);
        } else {
            pair += 1;
        }
    }
}

/// Whether a parameter has this name, in any case, and a value.
fn is_named(parameter: &str, name: &str) -> bool {
    let (found, value) = split(parameter);
    found.eq_ignore_ascii_case(name) && value.is_some_and(|value| !value.is_empty())
}

fn is_session(parameter: &str) -> bool {
    let (name, Some(value)) = split(parameter) else { return false };
    match value.len() {
        32 => {
            ["sid", "phpsessid", "jsessionid"].iter().any(|session| name.eq_ignore_ascii_case(session))
                && value.bytes().all(|byte| byte.is_ascii_alphanumeric())
        }
        24 => {
            let letters = name.get(.."aspsessionid".len()).is_some_and(|start| {
                start.eq_ignore_ascii_case("aspsessionid") && name.len() == "aspsessionid".len() + 8
            });
            letters && name.bytes().chain(value.bytes()).all(|byte| byte.is_ascii_alphabetic())
        }
        _ => false,
    }
}
