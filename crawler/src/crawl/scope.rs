//! Which URLs belong to a crawl.

use std::collections::{HashMap, HashSet};

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
    seeds: Seeds,
}

/// What seeds say, each by what is looked up for every link.
#[derive(Clone, Debug, Default)]
struct Seeds {
    urls: HashSet<String>,
    hosts: HashSet<String>,
    domains: HashSet<String>,
    /// By host.
    prefixes: HashMap<String, Vec<String>>,
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
        let folder = url.as_str().rsplit_once('/').map_or(url.as_str(), |(folder, _)| folder);
        let prefixes = self.seeds.prefixes.entry(host.clone()).or_default();
        let prefix = format!("{}/", schemeless(folder));
        if !prefixes.contains(&prefix) {
            prefixes.push(prefix);
        }
        self.seeds.urls.insert(schemeless(url.as_str()).to_owned());
        self.seeds.domains.insert(domain(&host).to_owned());
        self.seeds.hosts.insert(host);
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
        if !self.exclude_suffixes.is_empty() {
            let path = url.path().to_ascii_lowercase();
            if self.exclude_suffixes.iter().any(|suffix| path.ends_with(suffix.as_str())) {
                return Err(Outside::Suffix);
            }
        }
        if self.exclude.iter().any(|prefix| url.as_str().starts_with(prefix.as_str())) {
            return Err(Outside::Excluded);
        }
        let bare = schemeless(url.as_str());
        let included = self.include.is_empty()
            || self.include.iter().any(|prefix| url.as_str().starts_with(prefix.as_str()));
        if !included && !self.seeds.urls.contains(bare) {
            return Err(Outside::Elsewhere);
        }
        let host = url.host_str().unwrap_or_default();
        let near = match self.within {
            Within::Anywhere => true,
            Within::Page => self.seeds.urls.contains(bare),
            Within::Prefix => {
                let prefixes = self.seeds.prefixes.get(host);
                prefixes.is_some_and(|all| all.iter().any(|prefix| bare.starts_with(prefix.as_str())))
            }
            Within::Host => self.seeds.hosts.contains(host),
            Within::Domain => self.seeds.domains.contains(domain(host)),
        };
        if near { Ok(()) } else { Err(Outside::Elsewhere) }
    }
}

fn schemeless(url: &str) -> &str {
    url.split_once("://").map_or(url, |(_, rest)| rest)
}

/// The part of a host's name that somebody registered.
fn domain(host: &str) -> &str {
    psl::domain_str(host).unwrap_or(host)
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
