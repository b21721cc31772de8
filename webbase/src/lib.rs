//! What the program is made of, for its own commands, for tests and for experiments: the HTTP [`gateway`], a whole repository in
//! one process ([`embedded`]), and a [`demo`] web to look at.

pub mod demo;
pub mod embedded;
pub mod gateway;
pub mod keys;
pub mod standing;
