//! The tools that people have, against a real repository: pywb replays pages straight from its endpoints in four configurations,
//! cdx_toolkit asks the index, curl fetches ranges, Schemathesis checks the description.
//!
//! `.ci/clients` installs them. Where one is missing, its test says so and passes; with `CI=true` it fails.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

mod curl;
mod replay;
mod schema;
mod toolkit;
mod tools;
