//! What one can ask of the gateway: one table, of which both the router and its description are made, so that they cannot differ.

use std::sync::Arc;

use axum::routing::MethodRouter;

use super::Gateway;

/// A parameter of an operation.
#[derive(Clone, Copy)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    /// `query`, `path` or `header`.
    pub(super) place: &'static str,
    /// What JSON Schema calls its type.
    pub(super) kind: &'static str,
    pub(super) required: bool,
    pub(super) about: &'static str,
}

/// A parameter of the query.
pub(super) const fn query(name: &'static str, kind: &'static str, about: &'static str) -> Parameter {
    Parameter { name, place: "query", kind, required: false, about }
}

impl Parameter {
    pub(super) const fn required(self) -> Parameter {
        Parameter { required: true, ..self }
    }

    pub(super) const fn in_path(self) -> Parameter {
        Parameter { place: "path", required: true, ..self }
    }
}

/// An answer: status, content type (empty for none), and when.
pub(super) type Answer = (u16, &'static str, &'static str);

/// JSON.
pub(super) const JSON: &str = "application/json";
/// Any content type, as stored.
pub(super) const ANY: &str = "*/*";

/// One path with its methods.
pub(super) struct Operation {
    pub(super) path: &'static str,
    /// Lower case, as OpenAPI has them; `get` answers `HEAD` too.
    pub(super) method: &'static str,
    pub(super) name: &'static str,
    pub(super) summary: &'static str,
    pub(super) parameters: Vec<Parameter>,
    /// The content type that has to be sent, if any, and what it is.
    pub(super) body: Option<(&'static str, &'static str)>,
    pub(super) answers: &'static [Answer],
    /// It may take as long as it takes; what bounds it is how long nothing moves.
    pub(super) is_long: bool,
    pub(super) route: MethodRouter<Arc<Gateway>>,
}
