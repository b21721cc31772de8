//! The page scheduler: which pages to read next, under a fixed bandwidth.
//!
//! A [`BuiltIn`] policy says how often a page of some weight and change rate is worth reading at a price; [`allocate`] finds
//! the price at which a bandwidth is used up. [`Scheduler`] does that for pages that come, change and go: 16 bytes of state a
//! page ([`HotPage`]), a plan for every cycle by a scan over all of them, or by the folders of a [`Calendar`].
//!
//! **Useful for:** what to read next, how often a page is read, why a page is due when. **Not useful for:** politeness between
//! two requests, which is the web interface's; the scheduler only shares bandwidth out.

mod allocation;
mod calendar;
mod explain;
mod hosts;
mod page;
mod plan;
pub mod policy;
mod population;
mod running;
mod settings;
mod suspect;
#[cfg(test)]
mod tests;
mod top;

pub use allocation::{Allocation, Demand, Limits, allocate};
pub use calendar::Calendar;
pub use explain::{Explanation, Reason};
pub use page::{HotPage, Kind, Publication};
pub use plan::Plan;
pub use policy::{ALPHA, BuiltIn, Policy, UnknownPolicy};
pub use population::Sums;
pub use running::Scheduler;
pub use settings::{BadSetting, Chi, Settings};
pub use suspect::is_xml_suspect;
