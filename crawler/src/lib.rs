//! The acquisition system: what to read next, and reading it.
