//! A web in a box: sites, pages, links and dates, invented from a seed, always the same, whose truth is known.
//!
//! ```text
//!   Plan ──▶ World ── the truth: rates, moments of change, births, deaths, links     (plain functions of a page and a moment)
//!              │
//!              ├─ answer(asked, at)   what a site answers at a moment                 (no sockets: discrete-event experiments)
//!              │
//!   Clock ─────┴▶ WebBox              the same over HTTP on loopback, with a log and, on request, sites that misbehave
//! ```
//!
//! Site *s* of a [`World`] has the host `word-word-s.example` (or `.test`) and a number of pages that varies. Its page 0 is its
//! home page, from which all of its pages are reached; sites of a dozen pages and more have a feed and a DTD, and XML documents
//! that name it. Change rates are spread as on the web: most pages change rarely, some daily. A page's *version* at a moment is how
//! often it has changed by then, at moments that the seed fixes, so that whoever reads a page twice can be told what should have
//! changed. Some pages appear later, some die.
//!
//! Useful for: tests, experiments and a demo that need a web. Not useful for: showing what the real one looks like; its text is
//! word salad.

mod answer;
mod clock;
mod life;
mod misbehaviour;
mod plan;
mod random;
mod render;
mod server;
mod site;
mod text;
mod world;

pub use self::answer::{Answer, Asked, Fetched};
pub use self::clock::{Clock, Hand};
pub use self::life::Changes;
pub use self::misbehaviour::Misbehaviour;
pub use self::plan::{Plan, Rates};
pub use self::server::{Serving, Visit, WebBox};
pub use self::site::{Dates, Sitemaps};
pub use self::world::{Kind, World};

/// A day, in milliseconds.
pub const DAY_MS: u64 = 86_400_000;
