//! What consumers of a repository use.
