//! What the program is made of, for its own commands, for tests and for experiments: the HTTP [`gateway`], a whole repository in
//! one process ([`embedded`]), and a [`demo`] web to look at. The commands are here, too ([`main`]): a program of its own would compile
//! much of this once more.

mod client;
mod cmd;
mod config;
pub mod coverage;
pub mod demo;
pub mod embedded;
mod exit;
pub mod gateway;
pub mod keys;
mod program;
pub mod standing;
mod traces;

// The commands name the library as everybody does.
extern crate self as webbase;

use self::program::Program;
pub use self::program::main;
