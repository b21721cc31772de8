//! Which URLs belong to a crawl.

use url::Url;

/// How far from its seeds a crawl goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Within {
    /// Only the seeds themselves.
    Page,
    /// URLs that begin as a seed does, up to its last slash.
    Prefix,
    /// The seeds' hosts.
    #[default]
    Host,
    /// The seeds' registered domains, with all their hosts.
    Domain,
    /// Wherever links lead.
    Anywhere,
}

/// Which URLs belong to a crawl.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// How far from its seeds it goes.
    pub within: Within,
    /// How many links from a seed, at most.
    pub depth_max: Option<u16>,
    /// URLs that begin with one of these are not read.
    pub exclude: Vec<String>,
    /// If there are any, only URLs that begin with one of these are read, beside the seeds.
    pub include: Vec<String>,
    /// Paths that end so are not asked for at all.
    pub exclude_suffixes: Vec<String>,
    places: Vec<Place>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    host: String,
    domain: String,
    prefix: String,
    url: String,
}

/// Why a URL is not part of a crawl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outside {
    /// It is none that can be fetched.
    Scheme,
    /// It is too far from a seed.
    Depth,
    /// It is elsewhere.
    Elsewhere,
    /// It is excluded.
    Excluded,
    /// Its suffix is excluded.
    Suffix,
}

impl Scope {
    /// All within a distance of the seeds.
    pub fn new(within: Within) -> Scope {
        Scope { within, ..Scope::default() }
    }

    /// Takes a seed into account.
    pub fn seed(&mut self, url: &Url) {
        let host = url.host_str().unwrap_or_default().to_owned();
        let prefix = url.as_str().rsplit_once('/').map_or(url.as_str(), |(folder, _)| folder);
        let place = Place {
            domain: domain(&host),
            prefix: format!("{}/", schemeless(prefix)),
            url: schemeless(url.as_str()).to_owned(),
            host,
        };
        if !self.places.contains(&place) {
            self.places.push(place);
        }
    }

    /// Whether a URL at a depth belongs to the crawl.
    ///
    /// # Errors
    /// Why it does not.
    pub fn admits(&self, url: &Url, depth: u16) -> Result<(), Outside> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Outside::Scheme);
        }
        if self.depth_max.is_some_and(|most| depth > most) {
            return Err(Outside::Depth);
        }
        let path = url.path().to_ascii_lowercase();
        if self.exclude_suffixes.iter().any(|suffix| path.ends_with(suffix.as_str())) {
            return Err(Outside::Suffix);
        }
        if self.exclude.iter().any(|prefix| url.as_str().starts_with(prefix.as_str())) {
            return Err(Outside::Excluded);
        }
        let included = self.include.is_empty()
            || self.include.iter().any(|prefix| url.as_str().starts_with(prefix.as_str()));
        let bare = schemeless(url.as_str());
        if !included && !self.places.iter().any(|place| place.url == bare) {
            return Err(Outside::Elsewhere);
        }
        let host = url.host_str().unwrap_or_default();
        let near = match self.within {
            Within::Anywhere => true,
            Within::Page => self.places.iter().any(|place| place.url == bare),
            Within::Prefix => self.places.iter().any(|place| bare.starts_with(&place.prefix)),
            Within::Host => self.places.iter().any(|place| place.host == host),
            Within::Domain => {
                let domain = domain(host);
                self.places.iter().any(|place| place.domain == domain)
            }
        };
        if near { Ok(()) } else { Err(Outside::Elsewhere) }
    }
}

fn schemeless(url: &str) -> &str {
    url.split_once("://").map_or(url, |(_, rest)| rest)
}

/// The part of a host's name that somebody registered.
fn domain(host: &str) -> String {
    psl::domain_str(host).unwrap_or(host).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_a_crawl() {
        let url = |text: &str| Url::parse(text).unwrap();
        let scope = |within| {
            let mut scope = Scope { within, depth_max: Some(3), ..Scope::default() };
            scope.exclude = vec!["http://www.a.co.uk/x/no".to_owned()];
            scope.exclude_suffixes = vec![".zip".to_owned()];
            scope.seed(&url("http://www.a.co.uk/x/y.html"));
            scope
        };
        let urls = [
            "http://www.a.co.uk/x/y.html",
            "https://www.a.co.uk/x/z",
            "http://www.a.co.uk/z",
            "http://b.a.co.uk/",
            "http://b.co.uk/",
        ];
        for (within, count) in [
            (Within::Page, 1),
            (Within::Prefix, 2),
            (Within::Host, 3),
            (Within::Domain, 4),
            (Within::Anywhere, 5),
        ] {
            let admitted = urls.map(|text| scope(within).admits(&url(text), 1).is_ok());
            assert_eq!(admitted.iter().filter(|yes| **yes).count(), count, "{within:?}: {admitted:?}");
        }
        let scope = scope(Within::Anywhere);
        assert_eq!(scope.admits(&url("http://b/"), 4), Err(Outside::Depth));
        assert_eq!(scope.admits(&url("http://www.a.co.uk/x/nothing"), 0), Err(Outside::Excluded));
        assert_eq!(scope.admits(&url("http://b/X.ZIP"), 0), Err(Outside::Suffix));
        assert_eq!(scope.admits(&url("ftp://b/"), 0), Err(Outside::Scheme));
    }
}
