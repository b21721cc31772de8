//! Keys by the table, and properties of keys of random URLs.

use proptest::prelude::*;

use super::*;
use crate::url::canonical;

const CASES: &str = "
    http://www.Example.com:80/Path/?b=2&a=1#f -> com,example)/path?a=1&b=2
    https://www2.example.com/ -> com,example)/
    http://example.com/a/./b/../c//d/ -> com,example)/a/c/d
    http://example.com/? -> com,example)/
    http://example.com:8080/ -> com,example:8080)/
    http://user:pw@example.com/ -> com,example)/
    http://example.com/x?PHPSESSID=9682993c8daa2c5497996114facdc805&z=1 -> com,example)/x?z=1
    http://example.com/x;jsessionid=0123456789abcdefghijklemopqrstuv?q=1 -> com,example)/x;jsessionid=0123456789abcdefghijklemopqrstuv?q=1
    http://bücher.example/ä?ö=1 -> example,xn--bcher-kva)/%c3%a4?%c3%b6=1
    http://example.com/%7Efoo/%2525 -> com,example)/~foo/%25
    http://1.2.3.4/x -> 4,3,2,1)/x
    http://[::1]:8080/x -> ::1:8080)/x
    dns:Example.com -> dns:example.com
    urn:UUID:x -> urn:uuid:x
    mailto:A@b.c?Subject=X&body=Y -> mailto:a@b.c?body=y&subject=x

    example.com -> com,example)/
    Example.com:8080/X -> com,example:8080)/x
    localhost:80/x -> localhost)/x
    user@e.com/x -> com,e)/x
    http:e.com/x -> com,e)/x
    http:\\\\e.com\\a -> com,e)/a
    ftp://e.com:21/x -> com,e)/x
    https://e.com:443/ -> com,e)/
    http://e.com:443/ -> com,e:443)/
    https://e.com:80/ -> com,e:80)/
    http://e.com:/ -> com,e)/
    whois://whois.e.com/Foo -> com,e,whois)/foo
    http://a..e.com./ -> com,e,a)/
    http://0x7f.1/ -> 1,0,0,127)/

    http://www.www.e.com/ -> com,e,www)/
    http://www.com/ -> com,www)/
    http://www3288.com/ -> com,www3288)/
    http://wwww.e.com/ -> com,e,wwww)/
    http://www-2.e.com/ -> com,e,www-2)/

    http://e.com/.. -> com,e)/
    http://e.com/a//../b -> com,e)/a/b
    http://e.com/a/%252e%252e/b -> com,e)/b
    http://e.com/a%2f..%2fb -> com,e)/b
    http://e.com/%2f%2fa -> com,e)/a
    http://e.com/%%34%31%zz -> com,e)/a%25zz
    http://e.com/\u{e9}%C3%89%ff -> com,e)/%c3%a9%c3%89%ff
    http://e.com/a b%23 -> com,e)/a%20b%23

    http://e.com/?a-b=1&a=1&a&a= -> com,e)/?a&a=&a=1&a-b=1
    http://e.com/?b=%20&b=! -> com,e)/?b=!&b=%20
    http://e.com/?&& -> com,e)/?&&
    http://e.com/a?b? -> com,e)/a?b?
    http://e.com/x?a=1&sid=9682993c8daa2c5497996114facdc805 -> com,e)/x?a=1
    http://e.com/x?asid=9682993c8daa2c5497996114facdc805 -> com,e)/x?asid=9682993c8daa2c5497996114facdc805
    http://e.com/x?ASPSESSIONIDABCDEFGH=ABCDEFGHIJKLMNOPQRSTUVWX&x=1 -> com,e)/x?x=1
    http://e.com/x?a=1&CFID=1169580&CFTOKEN=48630702&b=2 -> com,e)/x?a=1&b=2
    http://e.com/x?cfid=1&b=2&cftoken=3 -> com,e)/x?b=2&cfid=1&cftoken=3
    http://e.com/a/(S(4hqa0555fwsecu455xqckv45))/x.ASPX -> com,e)/a/x.aspx
    http://e.com/(a(4hqa0555fwsecu455xqckv45)f(4hqa0555fwsecu455xqckv45))/x.aspx -> com,e)/x.aspx
    http://e.com/(S(4hqa0555fwsecu455xqckv45))/x -> com,e)/(s(4hqa0555fwsecu455xqckv45))/x
";

#[test]
fn keys_by_the_table() {
    for case in CASES.lines().map(str::trim).filter(|case| !case.is_empty()) {
        let (url, wanted) = case.split_once(" -> ").expect("a case");
        assert_eq!(Profile::Ia1.key(url).as_deref(), Ok(wanted), "{url}");
    }
}

#[test]
fn strict_keeps_www_and_case() {
    let key = |url| Profile::Strict1.key(url).expect("a key");
    assert_eq!(key("http://WWW.Example.com/Path/?B=2&a=%41"), "com,example,www)/Path?B=2&a=A");
    assert_eq!(key("http://www2.example.com/%C3%89"), "com,example,www2)/%c3%89");
    assert_eq!(key("http://e.com/x?SID=9682993c8daa2c5497996114facdc805&z"), "com,e)/x?z");
    assert_eq!(key("dns:Example.com"), "dns:Example.com");
}

#[test]
fn profiles_have_names() {
    for profile in Profile::ALL {
        assert_eq!(Profile::from_name(profile.name()), Some(profile));
    }
    assert_eq!(Profile::default().name(), "surt-ia-1");
    assert_eq!(Profile::from_name("surt-ia-2"), None);
}

#[test]
fn what_is_no_url_is_refused() {
    let fault = |url| Profile::Ia1.key(url).expect_err("no URL");
    assert!(matches!(fault("  "), UrlError::Empty));
    assert!(matches!(fault("/x"), UrlError::Relative { .. }));
    assert!(matches!(fault("?x"), UrlError::Relative { .. }));
    assert!(matches!(fault("http://"), UrlError::NoHost { .. }));
    assert!(matches!(fault("http://e.com:99999/"), UrlError::Unparsable { .. }));
    assert!(matches!(fault("http://a b/"), UrlError::Unparsable { .. }));
    assert!(matches!(fault(&"a".repeat(URL_BYTES_MAX + 1)), UrlError::TooLong { .. }));
    let mut out = "kept".to_owned();
    assert!(Profile::Ia1.key_into("http://e.com:x/", &mut out).is_err());
    assert_eq!(out, "kept");
}

#[test]
fn ranges_have_what_they_ask_for() {
    let range = |url, by| Profile::Ia1.range(url, by).expect("a range");
    let of = |range: &KeyRange| format!("{} {}", range.start, range.end);
    assert_eq!(of(&range("http://e.com/a", Match::Exact)), "com,e)/a com,e)/a!");
    assert_eq!(of(&range("http://e.com/a/", Match::Exact)), "com,e)/a com,e)/a!");
    assert_eq!(of(&range("http://e.com/a", Match::Prefix)), "com,e)/a com,e)/b");
    assert_eq!(of(&range("http://e.com/a/", Match::Prefix)), "com,e)/a/ com,e)/a0");
    assert_eq!(of(&range("http://e.com/a?", Match::Prefix)), "com,e)/a? com,e)/a@");
    assert_eq!(of(&range("http://e.com", Match::Prefix)), "com,e)/ com,e)0");
    assert_eq!(of(&range("http://e.com/a~", Match::Prefix)), "com,e)/a~ com,e)/a\x7f");
    assert_eq!(of(&range("http://e.com/a", Match::Host)), "com,e)/ com,e*");
    assert_eq!(of(&range("http://e.com/a", Match::Domain)), "com,e)/ com,e-");

    let exact = range("http://e.com/a", Match::Exact);
    assert!(exact.contains("com,e)/a") && exact.contains("com,e)/a 2026") && !exact.contains("com,e)/a!"));
    let host = range("http://e.com/a", Match::Host);
    assert!(host.contains("com,e)/") && host.contains("com,e)/~") && !host.contains("com,e,x)/"));
    assert!(!host.contains("com,e:8080)/"));
    let domain = range("http://e.com/a", Match::Domain);
    assert!(domain.contains("com,e)/x") && domain.contains("com,e,x)/") && !domain.contains("com,e-x)/"));
}

/// The way of every URL, also of plain ones.
fn parsed_key(profile: Profile, url: &str) -> Result<String, UrlError> {
    let mut out = String::new();
    parsed::push(profile, url, &mut out)?;
    Ok(out)
}

#[test]
fn a_bomb_of_escapes_takes_no_time() {
    let url = format!("http://e.com/%{}41", "25".repeat(30_000));
    assert_eq!(Profile::Ia1.key(&url).as_deref(), Ok("com,e)/a"));
}

fn urls() -> impl Strategy<Value = String> {
    let scheme = prop_oneof![
        6 => Just("http://"), 3 => Just("https://"), 1 => Just(""), 1 => Just("ftp://"), 1 => Just("dns:"),
        1 => Just("foo://"), 1 => Just("HTTP:/"), 1 => Just("file:"), 1 => Just("urn:x"),
    ];
    let host = prop_oneof![
        6 => "(www[0-9]{0,2}\\.)?[a-zA-Z][a-z0-9-]{0,3}\\.[a-z]{2,3}", 1 => "[a-c.@:0-9xn\\-ü%]{1,8}",
        1 => Just("[::1]".to_owned()), 1 => "[0-9]{1,3}(\\.[0-9]{1,3}){0,4}",
    ];
    let port = prop_oneof![8 => Just(String::new()), 1 => ":[0-9]{0,5}", 1 => Just(":443".to_owned())];
    let path = prop_oneof![
        4 => "(/[a-zA-Z0-9._~-]{0,3}){0,4}", 2 => "(/[aB.%2e5/()\\\\é ]{0,4}){0,4}",
        1 => Just("/(S(4hqa0555fwsecu455xqckv45))/x.aspx".to_owned()),
    ];
    let parameter = prop_oneof![
        6 => "[a-cA-C]{0,2}(=[a-z0-9A-Z+=?-]{0,2})?", 1 => "[a-c%26= é]{0,5}",
        1 => Just("sid=9682993c8daa2c5497996114facdc805".to_owned()),
        1 => Just("cfid=1".to_owned()), 1 => Just("cftoken=2".to_owned()),
    ];
    let query = prop::option::of(prop::collection::vec(parameter, 0..5).prop_map(|all| all.join("&")));
    let fragment = prop_oneof![4 => Just(""), 1 => Just("#x?y/../"), 1 => Just(" "), 1 => Just("\n")];
    (scheme, host, port, path, query, fragment).prop_map(|(scheme, host, port, path, query, fragment)| {
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        format!("{scheme}{host}{port}{path}{query}{fragment}")
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn the_fast_way_and_the_parser_agree(url in urls()) {
        for profile in Profile::ALL {
            prop_assert_eq!(profile.key(&url).ok(), parsed_key(profile, &url).ok());
        }
    }

    #[test]
    fn every_page_has_a_key_of_printable_bytes(url in prop_oneof![urls(), ".{0,40}", "[a:/?#@.\\\\%\\[\\]0-9 -]{0,12}"]) {
        for profile in Profile::ALL {
            if canonical(&url).is_ok() {
                let key = profile.key(&url);
                prop_assert!(key.is_ok(), "{url:?}: {key:?}");
            }
            if let Ok(key) = profile.key(&url) {
                prop_assert!(!key.is_empty() && key.bytes().all(|byte| (0x21..0x7f).contains(&byte)), "{key:?}");
                for by in [Match::Exact, Match::Host, Match::Domain] {
                    let range = profile.range(&url, by).expect("it has a key");
                    prop_assert!(range.start < range.end);
                    if by == Match::Exact || key.contains(")/") {
                        prop_assert!(range.contains(&key), "{key:?} {range:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn one_page_has_one_key(url in urls()) {
        // The canonical form of `https` on port 80, however the port is written, reads as `http`.
        let reads_as_http = |parsed: &url::Url| parsed.scheme() == "https" && parsed.port() == Some(80);
        if let Ok(form) = canonical(&url)
            && (url.starts_with("http:") || url.starts_with("https:"))
            && !url::Url::parse(&url).is_ok_and(|parsed| reads_as_http(&parsed))
        {
            for profile in Profile::ALL {
                prop_assert_eq!(profile.key(&url).ok(), profile.key(&format!("http://{form}")).ok(), "{}", form);
            }
        }
    }
}
