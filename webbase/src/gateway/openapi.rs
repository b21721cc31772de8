//! `GET /openapi.json`: the description of everything the gateway does, made of the table that the router is made of.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::header::CONTENT_TYPE;
use serde_json::{Map, Value, json};

use super::Gateway;
use super::operation::{JSON, Operation};

pub(super) fn operations() -> Vec<Operation> {
    vec![Operation {
        path: "/openapi.json",
        method: "get",
        name: "openapi",
        summary: "This description",
        parameters: vec![],
        body: None,
        answers: &[(200, JSON, "An OpenAPI 3.1 document")],
        is_long: false,
        route: get(show),
    }]
}

async fn show(State(gateway): State<Arc<Gateway>>) -> Response {
    ([(CONTENT_TYPE, JSON)], gateway.description.clone()).into_response()
}

/// The document.
pub(super) fn describe(operations: &[Operation]) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for operation in operations {
        // What takes the rest of a path is a parameter like others to the document.
        let path = paths.entry(operation.path.replace("{*", "{")).or_insert_with(|| json!({}));
        if let Value::Object(methods) = path {
            methods.insert(operation.method.to_owned(), one(operation));
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "webbase",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "A repository of web pages: look one up, stream many, add more.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Problem": {
                "type": "object",
                "description": "RFC 9457",
                "required": ["status", "title", "code", "detail"],
                "properties": {
                    "status": {"type": "integer"},
                    "title": {"type": "string"},
                    "code": {"type": "string", "description": "what it is, for programs"},
                    "detail": {"type": "string", "description": "what it is, for people"},
                },
            }},
        },
        "security": [{}, {"token": []}],
    })
}

fn one(operation: &Operation) -> Value {
    let parameters: Vec<Value> = operation
        .parameters
        .iter()
        .map(|p| {
            json!({
                "name": p.name.trim_start_matches('*'),
                "in": p.place,
                "required": p.required,
                "description": p.about,
                "schema": {"type": p.kind},
            })
        })
        .collect();
    let mut answers: Map<String, Value> = Map::new();
    for (status, kind, about) in operation.answers {
        // A status may have several content types, each with its own meaning.
        let answer = answers.entry(status.to_string()).or_insert_with(|| json!({"description": ""}));
        if let Some(Value::String(all)) = answer.get_mut("description") {
            *all = if all.is_empty() { (*about).to_owned() } else { format!("{all}. {about}") };
        }
        if let (Value::Object(answer), false) = (answer, kind.is_empty()) {
            let content = answer.entry("content").or_insert_with(|| json!({}));
            if let Value::Object(content) = content {
                content.insert((*kind).to_owned(), json!({}));
            }
        }
    }
    answers.insert(
        "default".into(),
        json!({
            "description": "What went wrong",
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }),
    );
    let mut all = json!({
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": parameters,
        "responses": answers,
    });
    if let (Value::Object(all), Some((kind, about))) = (&mut all, operation.body) {
        let body = json!({"required": true, "description": about, "content": {kind: {}}});
        all.insert("requestBody".into(), body);
    }
    all
}
