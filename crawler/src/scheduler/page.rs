//! What the scan over all pages looks at: 16 bytes a page.
//!
//! ```text
//!   OFFSET  SIZE  FIELD
//!        0     4  last read, seconds since 1970; 0: never
//!        4     4  weight as given: importance, of HTML usefulness, or what stands for them while nobody has ranked the page, f32
//!        8     4  changes a day, or reads a day of a page with a fixed refresh, f32
//!       12     4  bits: kind 0–2, publication 3–4, XML suspect 5, issued 6, expired 7, wanted now 8, gone 9–12, told changed 13
//! ```

/// What a page is. Each kind has a factor of its own, changeable while running.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(u8)]
pub enum Kind {
    /// HTML, or not known yet.
    #[default]
    Html = 0,
    /// XML: the domain of interest.
    Xml = 1,
    /// A document type definition.
    Dtd = 2,
    /// Anything else that is kept.
    Other = 3,
    /// The last read failed.
    Error = 4,
    /// Gone from the web: it is not read again unless somebody asks.
    Dead = 5,
}

impl Kind {
    /// How many there are.
    pub const COUNT: usize = 6;

    /// All of them.
    pub const ALL: [Kind; Kind::COUNT] =
        [Kind::Html, Kind::Xml, Kind::Dtd, Kind::Other, Kind::Error, Kind::Dead];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Html => "html",
            Kind::Xml => "xml",
            Kind::Dtd => "dtd",
            Kind::Other => "other",
            Kind::Error => "error",
            Kind::Dead => "dead",
        }
    }

    /// A kind from its number.
    pub fn from_number(number: u8) -> Option<Kind> {
        Kind::ALL.get(usize::from(number)).copied()
    }

    /// Whether it counts as XML for χ: where an estimator has ranked it, it is weighed by importance, the others by usefulness.
    pub fn is_xml(self) -> bool {
        matches!(self, Kind::Xml | Kind::Dtd)
    }
}

/// What somebody published about a page.
#[derive(Clone, Copy, PartialEq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub enum Publication {
    /// Nothing: rates are estimated.
    #[default]
    None,
    /// It changes so often a day, whatever the estimate says.
    ChangeRate(f64),
    /// It is to be read so often a day.
    FixedRefresh(f64),
    /// It is not to be read again.
    Never,
}

/// The state of one page that every scan reads.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
#[repr(C)]
pub struct HotPage {
    pub(super) last_read_s: u32,
    pub(super) weight: f32,
    pub(super) rate: f32,
    bits: u32,
}

const _: () = assert!(size_of::<HotPage>() == 16);

const KIND: u32 = 0b111;
const PUBLICATION_AT: u32 = 3;
const PUBLICATION: u32 = 0b11 << PUBLICATION_AT;
pub(super) const SUSPECT: u32 = 1 << 5;
pub(super) const ISSUED: u32 = 1 << 6;
pub(super) const EXPIRED: u32 = 1 << 7;
pub(super) const WANTED: u32 = 1 << 8;
const GONE_AT: u32 = 9;
const GONE: u32 = 0b1111 << GONE_AT;
pub(super) const TOLD: u32 = 1 << 13;

const GIVEN_RATE: u32 = 1;
const FIXED: u32 = 2;
const NEVER: u32 = 3;

impl HotPage {
    /// A page that was never read, of an importance, suspected to be XML or not.
    pub fn unread(importance: f64, suspect: bool, rate: f64) -> HotPage {
        let bits = if suspect { SUSPECT | Kind::Xml as u32 } else { Kind::Html as u32 };
        HotPage { last_read_s: 0, weight: sound(importance), rate: sound(rate), bits }
    }

    /// A page that was read.
    pub fn read(kind: Kind, last_read_s: u32, weight: f64, rate: f64) -> HotPage {
        HotPage {
            last_read_s: last_read_s.max(1),
            weight: sound(weight),
            rate: sound(rate),
            bits: kind as u32,
        }
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        Kind::from_number((self.bits & KIND) as u8).unwrap_or_default()
    }

    /// When it was last read; `None` if never.
    pub fn last_read_s(&self) -> Option<u32> {
        (self.last_read_s > 0).then_some(self.last_read_s)
    }

    /// Its weight as it was given.
    pub fn weight(&self) -> f64 {
        f64::from(self.weight)
    }

    /// Changes a day; of a page with a fixed refresh, reads a day.
    pub fn rate(&self) -> f64 {
        f64::from(self.rate)
    }

    /// Whether it may be XML, going by its URL and by where it was found.
    pub fn is_suspect(&self) -> bool {
        self.has(SUSPECT)
    }

    /// What was published about it.
    pub fn publication(&self) -> Publication {
        match (self.bits & PUBLICATION) >> PUBLICATION_AT {
            GIVEN_RATE => Publication::ChangeRate(self.rate()),
            FIXED => Publication::FixedRefresh(self.rate()),
            NEVER => Publication::Never,
            _ => Publication::None,
        }
    }

    /// Whether its time in the repository is over.
    pub fn is_expired(&self) -> bool {
        self.has(EXPIRED)
    }

    /// Times in a row that it was found gone.
    pub fn gone_count(&self) -> u8 {
        ((self.bits & GONE) >> GONE_AT) as u8
    }

    pub(super) fn has(&self, flag: u32) -> bool {
        self.bits & flag != 0
    }

    pub(super) fn set(&mut self, flag: u32, on: bool) {
        if on { self.bits |= flag } else { self.bits &= !flag }
    }

    pub(super) fn set_kind(&mut self, kind: Kind) {
        self.bits = self.bits & !KIND | kind as u32;
    }

    pub(super) fn set_gone(&mut self, count: u8) {
        self.bits = self.bits & !GONE | u32::from(count.min(15)) << GONE_AT;
    }

    pub(super) fn publish(&mut self, publication: Publication) {
        let number = match publication {
            Publication::None => 0,
            Publication::ChangeRate(_) => GIVEN_RATE,
            Publication::FixedRefresh(_) => FIXED,
            Publication::Never => NEVER,
        };
        if let Publication::ChangeRate(rate) | Publication::FixedRefresh(rate) = publication {
            self.rate = sound(rate);
        }
        self.bits = self.bits & !PUBLICATION | number << PUBLICATION_AT;
    }

    /// Whether it takes part in sharing the refresh bandwidth out.
    pub(super) fn is_refreshed(&self) -> bool {
        let published = (self.bits & PUBLICATION) >> PUBLICATION_AT;
        self.last_read_s > 0 && self.kind() != Kind::Dead && published != FIXED && published != NEVER
    }

    pub(super) fn is_fixed(&self) -> bool {
        (self.bits & PUBLICATION) >> PUBLICATION_AT == FIXED && self.kind() != Kind::Dead
    }

    /// Whether it was read, and is still there.
    pub(super) fn is_kept(&self) -> bool {
        self.last_read_s > 0 && !matches!(self.kind(), Kind::Dead | Kind::Error)
    }

    /// Changes a day, as far as they are known: of a page with a fixed refresh they are not.
    pub(super) fn change_rate(&self) -> f64 {
        if self.is_fixed() { 0.0 } else { self.rate() }
    }

    pub(super) fn is_never(&self) -> bool {
        (self.bits & PUBLICATION) >> PUBLICATION_AT == NEVER || self.kind() == Kind::Dead
    }
}

/// A weight or rate that a sum survives.
fn sound(value: f64) -> f32 {
    if value.is_finite() && value > 0.0 { (value as f32).min(1e30) } else { 0.0 }
}
