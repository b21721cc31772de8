//! What consumers of a repository use: [`warc`], the format in which the web-archive world hands pages over.

pub mod warc;
