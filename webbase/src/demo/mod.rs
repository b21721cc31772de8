//! The demo: a repository filled with the web in a box, and kept moving, until there is a crawler to read it.

mod fill;
mod life;

pub use self::fill::{fill, world};
pub use self::life::live;
