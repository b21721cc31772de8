//! What a world is like.

/// How often pages change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rates {
    /// As on the web: 23 % of the pages one to four times a day, 47 % every five to fifty days, 30 % less than once in four months;
    /// home pages and feeds at least every two days.
    Web,
    /// All alike, in changes a day.
    Same(f64),
    /// Spread evenly over the orders of magnitude between two rates, in changes a day.
    Spread {
        /// The rarest.
        slowest: f64,
        /// The most frequent.
        fastest: f64,
    },
}

/// What a world is like: all that its seed then decides the details of.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What all chance comes from.
    pub seed: u64,
    /// How many pages there ever are.
    pub pages: usize,
    /// When the world began, in milliseconds since 1970: no page is older.
    pub began_at_ms: u64,
    /// How often pages change.
    pub rates: Rates,
    /// How many times larger than usual (3 to 50 pages) sites are.
    pub site_scale: u32,
    /// Which share of the pages is not there from the beginning.
    pub later_share: f64,
    /// At which rate those appear: how many a day of each that is still to come.
    pub births_a_day: f64,
    /// Which share of the pages dies some day.
    pub mortal_share: f64,
    /// At which rate those die: how many a day of each that still lives.
    pub deaths_a_day: f64,
    /// Which share of a site's pages are XML documents, in sites that have any.
    pub xml_share: f64,
}

impl Plan {
    /// A usual world with this many pages.
    pub fn new(seed: u64, pages: usize, began_at_ms: u64) -> Plan {
        Plan {
            seed,
            pages,
            began_at_ms,
            rates: Rates::Web,
            site_scale: 1,
            later_share: 0.2,
            births_a_day: 1.0 / 60.0,
            mortal_share: 0.2,
            deaths_a_day: 1.0 / 200.0,
            xml_share: 0.15,
        }
    }

    /// The same world without births and deaths.
    #[must_use]
    pub fn eternal(self) -> Plan {
        Plan { later_share: 0.0, mortal_share: 0.0, ..self }
    }
}
