//! OpenAPI documents for each dialect, made from its routes; and a page that shows them.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::LazyLock;

use axum::body::Bytes;
use axum::extract::Path;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{Html, IntoResponse, Response};
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::dialects::{self, Dialect, Manual};
use crate::error::ApiError;
use crate::http::{JSON, MediaType, Operation, Routes};
use crate::own_routes;
use crate::paths::{DOCS, OF_DIALECTS, OPENAPI};

/// The paths of dialects' documents.
const OF_DIALECT: &str = "/openapi/{name}";

/// Path of the schemas in a document.
const SCHEMAS: &str = "/components/schemas";

/// The server's own routes.
const SERVER: Manual = Manual {
    name: "aludel",
    title: "Aludel's own",
    reference: "/docs",
    key: "authorization",
    error: Some(MediaType::json::<aludel_wire::openai::ErrorEnvelope>(JSON)),
};

/// The routes of documents.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .get(DOCS, page, "List everything that is served")
        .gives_any("text/html")
        .get(OPENAPI, own, "Describe these routes")
        .gives_any(JSON)
        .get(OF_DIALECT, of_dialect, "Describe the routes of a protocol, as /openapi/openai.json")
        .gives_any(JSON)
}

/// A document of the API.
struct Document {
    manual: &'static Manual,
    operations: Vec<Operation>,
}

impl Document {
    fn of(dialect: &'static Dialect) -> Self {
        Self { manual: &dialect.manual, operations: (dialect.routes)().operations().to_vec() }
    }

    fn own() -> Self {
        let routes = [own_routes::routes(), routes()];
        Self { manual: &SERVER, operations: routes.iter().flat_map(Routes::operations).cloned().collect() }
    }

    fn all() -> Vec<Self> {
        std::iter::once(Self::own()).chain(dialects::ALL.iter().map(Self::of)).collect()
    }

    /// Path of the document.
    fn path(&self) -> String {
        if self.manual.name == SERVER.name {
            OPENAPI.to_owned()
        } else {
            format!("{OF_DIALECTS}{}.json", self.manual.name)
        }
    }

    fn json(&self) -> Value {
        let Manual { title, reference, key, error, .. } = self.manual;
        let settings = SchemaSettings::draft2020_12().with(|settings| settings.definitions_path = SCHEMAS.into());
        let mut schemas = settings.into_generator();
        let error = error.map(|error| content(&[error], &mut schemas));
        let mut paths: Map<String, Value> = Map::new();
        for operation in &self.operations {
            let methods = paths.entry(plain(&operation.path)).or_insert_with(|| json!({}));
            let described = self.described(operation, error.as_ref(), &mut schemas);
            methods[operation.method.as_str().to_ascii_lowercase()] = described;
        }
        let scheme = match *key {
            "authorization" => json!({ "type": "http", "scheme": "bearer" }),
            header => json!({ "type": "apiKey", "in": "header", "name": header }),
        };
        json!({
            "openapi": "3.1.0",
            "info": {
                "title": format!("{title}, served by aludel"),
                "version": env!("CARGO_PKG_VERSION"),
                "description": "Made of the routes and of the types of their messages. What is not served is refused by name, fields that are \
                    not described are ignored or handed on, and null is the same as absent.",
            },
            "externalDocs": { "url": reference },
            "components": { "securitySchemes": { "key": scheme }, "schemas": schemas.take_definitions(true) },
            "security": [{ "key": [] }, {}],
            "paths": paths,
        })
    }

    fn described(&self, operation: &Operation, error: Option<&Value>, schemas: &mut SchemaGenerator) -> Value {
        let Operation { method, path, summary, description } = operation;
        let in_path = parameters(path)
            .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }));
        let query = description.query.iter();
        let in_query = query.map(|name| json!({ "name": name, "in": "query", "schema": { "type": "string" } }));
        let words = path.split(|character: char| !character.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let id: Vec<&str> = std::iter::once(method.as_str()).chain(words).collect();
        let mut answer = json!({ "description": "Done." });
        if !description.answers.is_empty() {
            answer["content"] = content(&description.answers, schemas);
        }
        let mut refusal = json!({ "description": "Refused, in this API's words." });
        if let Some(error) = error {
            refusal["content"] = error.clone();
        }
        let mut operation = json!({
            "operationId": id.join("_").to_ascii_lowercase(),
            "summary": summary,
            "tags": [self.manual.name],
            "parameters": in_path.chain(in_query).collect::<Vec<Value>>(),
            "responses": { "2XX": answer, "default": refusal },
        });
        if !description.body.is_empty() {
            operation["requestBody"] = json!({ "content": content(&description.body, schemas) });
        }
        operation
    }
}

/// Contents of a body or an answer, by their media types.
fn content(contents: &[MediaType], schemas: &mut SchemaGenerator) -> Value {
    let described = contents.iter().map(|MediaType { media, schema }| {
        let schema = schema.map_or_else(|| json!({}), |schema| json!({ "schema": schema(schemas) }));
        ((*media).to_owned(), schema)
    });
    Value::Object(described.collect())
}

/// The names of a path's parameters.
fn parameters(path: &str) -> impl Iterator<Item = &str> {
    path.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name.trim_start_matches('*'))
}

/// A path in OpenAPI's form, which has no parameters over several segments.
fn plain(path: &str) -> String {
    path.replace("{*", "{")
}

/// All documents, made once, so that serving them costs no more than their bytes.
static DOCUMENTS: LazyLock<HashMap<&'static str, Bytes>> = LazyLock::new(|| {
    let text = |document: Document| (document.manual.name, Bytes::from(document.json().to_string()));
    Document::all().into_iter().map(text).collect()
});

/// The page, made once.
static PAGE: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(html()));

/// `GET /openapi.json`.
async fn own() -> Result<Response, ApiError> {
    document(SERVER.name)
}

/// `GET /openapi/{name}.json`.
async fn of_dialect(Path(name): Path<String>) -> Result<Response, ApiError> {
    document(name.strip_suffix(".json").unwrap_or(&name))
}

fn document(name: &str) -> Result<Response, ApiError> {
    let found = DOCUMENTS.get(name).cloned();
    let text = found.ok_or_else(|| ApiError::not_found(format!("There is no document '{name}'; /docs lists them.")))?;
    Ok(([(CONTENT_TYPE, "application/json")], text).into_response())
}

/// `GET /docs`.
async fn page() -> Response {
    let policy = "default-src 'none'; style-src 'unsafe-inline'";
    ([(CONTENT_SECURITY_POLICY, policy)], Html(PAGE.clone())).into_response()
}

fn html() -> String {
    let mut page = String::from(HEAD);
    for document in Document::all() {
        let Manual { title, reference, .. } = document.manual;
        let path = document.path();
        let _ = write!(
            page,
            "<h2>{title}</h2><p><a href=\"{path}\">OpenAPI document</a> · <a href=\"{reference}\">reference of the protocol</a></p><table>"
        );
        for Operation { method, path, summary, .. } in &document.operations {
            let path = plain(path);
            let _ = write!(page, "<tr><td><b>{method}</b></td><td><code>{path}</code></td><td>{summary}</td></tr>");
        }
        page.push_str("</table>");
    }
    page.push_str("</main></body></html>\n");
    page
}

const HEAD: &str = "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
    content=\"width=device-width\"><title>aludel</title><style>:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;\
    margin:0}main{max-width:60rem;margin:auto;padding:1rem}table{border-collapse:collapse;width:100%}td{padding:.2rem .8rem .2rem 0;\
    border-bottom:1px solid #8884;vertical-align:top}code{font:14px ui-monospace,monospace;overflow-wrap:anywhere}</style></head><body>\
    <main><h1>aludel</h1><p>Everything that this server serves. A program that speaks one of these protocols needs a base URL and a \
    key, and nothing else.</p>";

#[cfg(test)]
mod tests {
    use axum::http::Method;

    use super::*;

    #[test]
    fn every_route_tells_its_body_and_its_answer() {
        let mut silent = Vec::new();
        for document in Document::all() {
            for Operation { method, path, description, .. } in &document.operations {
                let has_body = matches!(*method, Method::POST | Method::PATCH);
                if has_body && description.lacks_body {
                    silent.push(format!("{} {method} {path}: its body", document.manual.name));
                }
                if description.lacks_answer {
                    silent.push(format!("{} {method} {path}: its answer", document.manual.name));
                }
            }
        }
        assert!(silent.is_empty(), "{}", silent.join("\n"));
    }
}
