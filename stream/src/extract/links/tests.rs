use proptest::prelude::*;
use webbase_storage::Page;

use super::html::{refresh_target, srcset};
use super::*;

fn page<'a>(mime: &'a str, body: &'a [u8]) -> Page<'a> {
    Page { url: "http://a.example/x/y?z#w", mime, body, status: 200, ..Page::default() }
}

fn of(mime: &str, body: &str) -> Vec<Link> {
    links(&Content::of_page(&page(mime, body.as_bytes())))
}

/// Links as `kind url`, with `!` before those not to be followed.
fn told(mime: &str, body: &str) -> Vec<String> {
    let told = |link: Link| {
        let nofollow = if link.nofollow { "!" } else { "" };
        format!("{nofollow}{:?} {}", link.kind, link.url)
    };
    of(mime, body).into_iter().map(told).collect()
}

fn urls(mime: &str, body: &str) -> Vec<String> {
    of(mime, body).into_iter().map(|link| link.url.to_string()).collect()
}

/// What links to pages alone are, of whatever a page has.
fn told_of_pages(mime: &str, body: &str) -> Vec<String> {
    let found = page_links(&Content::of_page(&page(mime, body.as_bytes())));
    assert!(found.iter().all(|link| link.kind.is_page()));
    found.into_iter().map(|link| link.url.to_string()).collect()
}

#[test]
fn links_to_pages_alone() {
    let html = "<img src=p.png><a href=p.png>the picture</a><link rel=stylesheet href=s.css><link rel=next href=n>\
        <noscript><img src=q.png><a href=q></a></noscript><script src=s.js></script><a href=n#part>again</a>";
    let found = ["http://a.example/x/p.png", "http://a.example/x/n", "http://a.example/x/q"];
    assert_eq!(told_of_pages("text/html", html), found);
    // What is first part of a page and then linked to is a part, where parts are asked for.
    assert!(told("text/html", html).contains(&"Resource http://a.example/x/p.png".to_owned()));
    let xml = "<?xml-stylesheet href='s.css'?><rss><channel><link>http://a.example/p</link></channel></rss>";
    assert_eq!(told_of_pages("application/rss+xml", xml), ["http://a.example/p"]);
}

#[test]
fn links_of_html() {
    let body = "<a href='1?a=1&amp;b=2#top'>x</a><A HREF=/2>y</A><a href='mailto:x'>z</a><a href=1?a=1&b=2>again</a>\
        <a href='#here'>here</a><area href=3><a href='http://[bad'><a name=none>\
        <link rel=stylesheet href=s.css><link rel='alternate' href=f.rss><link REL=Canonical href=/c><link href=nothing>\
        <link rel=preconnect href=//cdn.example><iframe src=//b.example/></iframe><img src=i.png srcset='i2.png 2x, i3.png'>\
        <script src=s.js></script><!-- <a href=no> --><script>'<a href=no>'</script><q cite=q>q</q>";
    assert_eq!(
        told("text/html", body),
        [
            "Page http://a.example/x/1?a=1&b=2",
            "Page http://a.example/2",
            "Page http://a.example/x/3",
            "Resource http://a.example/x/s.css",
            "Related http://a.example/x/f.rss",
            "Canonical http://a.example/c",
            "Frame http://b.example/",
            "Resource http://a.example/x/i.png",
            "Resource http://a.example/x/i2.png",
            "Resource http://a.example/x/i3.png",
            "Resource http://a.example/x/s.js",
            "Page http://a.example/x/q",
        ]
    );
    assert!(told("image/png", body).is_empty());
}

#[test]
fn a_base_holds_wherever_it_stands_and_only_the_first() {
    let body = "<a href=1></a><base href=/z/><base href=/other/><a href=2>";
    assert_eq!(urls("text/html", body), ["http://a.example/z/1", "http://a.example/z/2"]);
    let elsewhere = "<base href='https://b.example/p?q'><a href=1>";
    assert_eq!(urls("text/html", elsewhere), ["https://b.example/1"]);
    assert_eq!(urls("text/html", "<base href='http://[bad'><a href=1>"), ["http://a.example/x/1"]);
}

#[test]
fn what_is_in_noscript_counts() {
    let body = "<noscript><a href=1>x</a><meta http-equiv=refresh content='0;url=2'></noscript><a href=3>";
    assert_eq!(
        told("text/html", body),
        ["Page http://a.example/x/3", "Page http://a.example/x/1", "Redirect http://a.example/x/2"]
    );
}

#[test]
fn that_links_are_not_to_be_followed_is_noted() {
    let body = "<a href=1 rel='external NoFollow'></a><a href=2 rel=ugc></a><a href=3 rel=me></a>\
        <a href=4 rel=nofollow></a><a href=4>";
    assert_eq!(
        told("text/html", body),
        [
            "!Page http://a.example/x/1",
            "!Page http://a.example/x/2",
            "Page http://a.example/x/3",
            "Page http://a.example/x/4"
        ]
    );
    for robots in ["noindex,nofollow", "NONE"] {
        let body = format!("<a href=1></a><meta name=robots content='{robots}'><a href=2>");
        assert!(of("text/html", &body).iter().all(|link| link.nofollow), "{robots}");
    }
    let head = b"HTTP/1.1 200 OK\r\nX-Robots-Tag: nofollow\r\n\r\n";
    let tagged = Page { head, ..page("text/html", b"<a href=1>") };
    assert!(links(&Content::of_page(&tagged))[0].nofollow);
}

#[test]
fn redirects_lead_somewhere() {
    let head = b"HTTP/1.1 301 Moved\r\nLocation: /there#x\r\n\r\n";
    let moved = Page { head, status: 301, ..page("text/html", b"<a href=1>") };
    let found = links(&Content::of_page(&moved));
    assert_eq!((found[0].url.as_str(), found[0].kind), ("http://a.example/there", LinkKind::Redirect));
    for (content, target) in [
        ("0;url=a", Some("a")),
        ("5; URL = 'a b' x", Some("a b")),
        (" 1.5 , a", Some("a")),
        ("0 url=\"a", Some("a")),
        ("3;urlx", Some("urlx")),
        ("3", None),
        ("3;", None),
        ("soon; url=a", None),
        ("", None),
    ] {
        assert_eq!(refresh_target(content), target, "{content:?}");
    }
}

#[test]
fn candidates_of_a_srcset() {
    for (set, expected) in [
        ("a, b 2x,c 100w", vec!["a", "b", "c"]),
        ("a,b", vec!["a,b"]),
        (" a 1x (x,y) , b", vec!["a", "b"]),
        ("data:,x 1x, b,", vec!["data:,x", "b"]),
        (",, ,", vec![]),
        ("a 1x (", vec!["a"]),
    ] {
        assert_eq!(srcset(set), expected, "{set:?}");
    }
}

#[test]
fn any_character_set() {
    // Paths are written in UTF-8, queries in the character set of the page, as browsers do it.
    let body = b"<meta charset=windows-1251><a href='/\xcf?\xcf'>";
    let found = links(&Content::of_page(&page("text/html", body)));
    assert_eq!(found[0].url.as_str(), "http://a.example/%D0%9F?%CF");
    let utf16: Vec<u8> = "\u{feff}<a href='/ž'>".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let found = links(&Content::of_page(&page("text/html", &utf16)));
    assert_eq!(found[0].url.as_str(), "http://a.example/%C5%BE");
    let latin2 = b"<?xml version='1.0' encoding='iso-8859-2'?><a href='/\xbe'/>";
    let found = links(&Content::of_page(&page("text/xml", latin2)));
    assert_eq!(found[0].url.as_str(), "http://a.example/%C5%BE");
}

#[test]
fn links_of_xml() {
    let body = "<?xml version='1.0'?><?xml-stylesheet type='text/xsl' href='s.xsl'?>\
        <!DOCTYPE c PUBLIC '-//X' \"/c.dtd\" [<!ENTITY e SYSTEM 'e.xml'> <!ENTITY % p PUBLIC 'x' 'p.ent'><!ENTITY t 'text'>]>\
        <c xmlns:xlink='http://www.w3.org/1999/xlink' xsi:schemaLocation='urn:x x.xsd urn:y /y.xsd'>\
        <ref href=\"1&amp;2\"/><r xlink:href='/3' rel='nofollow'/><r xlink:href='i.svg' xlink:show='embed'/>\
        <xi:include href='part.xml'/><g xml:base='sub/'><r href='4'/></g><r href='5'/><loc> http://b.example/6 </loc>\
        <name>http://b.example/no</name><url>not a url</url>";
    assert_eq!(
        told("application/xml", body),
        [
            "Resource http://a.example/x/s.xsl",
            "Dtd http://a.example/c.dtd",
            "Dtd http://a.example/x/e.xml",
            "Dtd http://a.example/x/p.ent",
            "Dtd http://a.example/x/x.xsd",
            "Dtd http://a.example/y.xsd",
            "Page http://a.example/x/1&2",
            "!Page http://a.example/3",
            "Frame http://a.example/x/i.svg",
            "Frame http://a.example/x/part.xml",
            "Page http://a.example/x/sub/4",
            "Page http://a.example/x/5",
            "Page http://b.example/6",
        ]
    );
}

#[test]
fn links_of_feeds() {
    let rss = "<rss><channel><link>http://a.example/</link><atom:link rel='self' href='/feed'/>\
        <item><link><![CDATA[/one?a=1&b=2]]></link><guid isPermaLink='false'>http://a.example/tag</guid>\
        <comments>http://a.example/one#c</comments><enclosure url='/one.mp3'/>\
        <description>&lt;p&gt;see &lt;a href=&quot;/two&quot;&gt;two&lt;/a&gt;</description></item>\
        <item><guid>http://a.example/three?x=1&amp;y=2</guid></item></channel></rss>";
    assert_eq!(
        told("application/rss+xml", rss),
        [
            "Page http://a.example/",
            "Related http://a.example/feed",
            "Page http://a.example/one?a=1&b=2",
            "Page http://a.example/one",
            "Resource http://a.example/one.mp3",
            "Page http://a.example/two",
            "Page http://a.example/three?x=1&y=2",
        ]
    );
    let atom = "<feed><entry><link href='http://b.example/1' rel='alternate'/><content src='/c'/><id>urn:x</id></entry></feed>";
    assert_eq!(urls("application/atom+xml", atom), ["http://b.example/1", "http://a.example/c"]);
}

#[test]
fn what_is_broken_gives_what_it_has() {
    let body = "<a href=1><b <<< x='<a href=2>'>< a href=no><a href='3'</a><a href=\"4>";
    assert!(urls("text/html", body).starts_with(&["http://a.example/x/1".to_owned()]));
    let xml = "<a href='1'/><b c=>&nope;<d <e/><f href='2'/> ]]> <!-- x -- > <g href='3'/> </z><h href='4'/>";
    let found = urls("text/xml", xml);
    assert!(found.contains(&"http://a.example/x/1".to_owned()), "{found:?}");
    assert!(found.contains(&"http://a.example/x/2".to_owned()), "{found:?}");
    for mime in ["text/html", "text/xml", ""] {
        for body in [
            "",
            "<",
            "<a",
            "<a href",
            "<a href=",
            "<a href='",
            "<!DOCTYPE",
            "<![CDATA[",
            "<?xml",
            "&",
            "\0\0",
        ] {
            assert!(urls(mime, body).is_empty(), "{mime} {body:?}");
        }
    }
    let no_url = Page { url: "nonsense", ..page("text/html", b"<a href=1>") };
    assert!(links(&Content::of_page(&no_url)).is_empty());
}

#[test]
fn a_page_with_a_million_links_has_as_many_as_the_matrix_takes() {
    let body: String = (0..1_000_000).map(|n| format!("<a href={n}>")).collect();
    let found = urls("text/html", &body);
    assert_eq!((found.len(), found[LINKS_MAX - 1].as_str()), (LINKS_MAX, "http://a.example/x/65533"));
    let long = format!("<a href='/{}'><a href=1>", "x".repeat(3000));
    assert_eq!(urls("text/html", &long), ["http://a.example/x/1"]);
    let data = format!("<img src='data:{}'><a href=1>", "x".repeat(1 << 20));
    assert_eq!(urls("text/html", &data), ["http://a.example/x/1"]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever bytes: no failure, and every link is one.
    #[test]
    fn any_bytes_are_gone_through(pieces in proptest::collection::vec(prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..9).prop_map(|bytes| bytes),
        prop_oneof![
            Just("<a href="), Just("<base href="), Just("'"), Just("\""), Just(">"), Just("<!--"), Just("-->"), Just("<![CDATA["),
            Just("<!DOCTYPE x ["), Just("<!ENTITY"), Just("SYSTEM"), Just("<noscript>"), Just("</noscript>"), Just("http://h/"),
            Just("<meta http-equiv=refresh content="), Just("0;url="), Just("<svg>"), Just("<script>"), Just("srcset="), Just("<img "),
            Just("&amp"), Just("&#x"), Just("xml:base="), Just("<link>"), Just("</link>"), Just("<?xml-stylesheet href="), Just("?>"),
        ].prop_map(|text| text.as_bytes().to_vec()),
    ], 0..40), mime in prop_oneof![Just("text/html"), Just("text/xml"), Just("")]) {
        let body = pieces.concat();
        for link in links(&Content::of_page(&page(mime, &body))) {
            prop_assert!(matches!(link.url.scheme(), "http" | "https") && link.url.fragment().is_none());
        }
    }
}
