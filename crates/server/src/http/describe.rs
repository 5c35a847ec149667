//! Descriptions of bodies and answers, taken from the types of handlers.

use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{Html, Response};
use axum::{Extension, Json};
use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::{Caller, Fields, Params, Plain, Raw};

/// A content of a body or an answer: its media type, and its schema where it has one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Content {
    pub(crate) media: &'static str,
    pub(crate) schema: Option<fn(&mut SchemaGenerator) -> Schema>,
}

/// Everything that a handler's types tell of its route.
#[derive(Debug, Clone, Default)]
pub(crate) struct Description {
    /// The forms in which the body may come; none if there is none.
    pub(crate) body: Vec<Content>,
    /// Names of the query's parameters.
    pub(crate) query: Vec<&'static str>,
    /// The forms in which the answer comes; none if it is a status alone.
    pub(crate) answers: Vec<Content>,
    /// True if the types do not tell the body, if there is one: the route has to.
    pub(crate) lacks_body: bool,
    /// True if the types do not tell the answer: the route has to.
    pub(crate) lacks_answer: bool,
}

impl Content {
    /// JSON of a type.
    pub(crate) const fn json<T: JsonSchema>(media: &'static str) -> Self {
        Self { media, schema: Some(SchemaGenerator::subschema_for::<T>) }
    }

    /// Bytes of any kind.
    pub(crate) const fn plain(media: &'static str) -> Self {
        Self { media, schema: None }
    }
}

/// The media type of JSON.
pub(crate) const JSON: &str = "application/json";
/// The media type of a form with files.
pub(crate) const FORM: &str = "multipart/form-data";
/// The media type of bytes of any kind.
pub(crate) const BYTES: &str = "application/octet-stream";
/// Parameters of a list that comes in pages.
pub(crate) const PAGE: &[&str] = &["limit", "after", "order"];

/// An argument of a handler.
pub(crate) trait Argument {
    /// Adds what it tells of the route; nothing unless it is the body or the query.
    fn describe(_: &mut Description) {}
}

/// The result of a handler.
pub(crate) trait Answer {
    /// Adds what it tells of the answer.
    fn describe(description: &mut Description);
}

/// A handler whose arguments of the types `T` and whose result describe themselves.
pub(crate) trait Described<T> {
    /// The description.
    fn description() -> Description;
}

impl<T> Argument for State<T> {}
impl<T> Argument for Path<T> {}
impl<T> Argument for Query<T> {}
impl<T> Argument for Extension<T> {}
impl<T> Argument for Option<T> {}
impl Argument for Caller {}
impl Argument for HeaderMap {}
impl Argument for Uri {}
impl Argument for Params {}

impl Argument for Fields {
    fn describe(description: &mut Description) {
        description.lacks_body = true;
    }
}

impl Argument for Raw {
    fn describe(description: &mut Description) {
        description.lacks_body = true;
    }
}

impl Argument for Plain {
    fn describe(description: &mut Description) {
        description.lacks_body = true;
    }
}

impl Argument for Request {
    fn describe(description: &mut Description) {
        description.lacks_body = true;
    }
}

impl<T: JsonSchema> Answer for Json<T> {
    fn describe(description: &mut Description) {
        description.answers.push(Content::json::<T>(JSON));
    }
}

impl<T: Answer> Answer for (HeaderMap, T) {
    fn describe(description: &mut Description) {
        T::describe(description);
    }
}

impl<T: Answer, E> Answer for Result<T, E> {
    fn describe(description: &mut Description) {
        T::describe(description);
    }
}

impl Answer for StatusCode {
    fn describe(_: &mut Description) {}
}

impl Answer for &'static str {
    fn describe(description: &mut Description) {
        description.answers.push(Content::plain("text/plain"));
    }
}

impl<T> Answer for Html<T> {
    fn describe(description: &mut Description) {
        description.answers.push(Content::plain("text/html"));
    }
}

impl Answer for Response {
    fn describe(description: &mut Description) {
        description.lacks_answer = true;
    }
}

/// Describes handlers of so many arguments, as axum takes them.
macro_rules! described {
    ($($argument:ident)+) => {
        impl<F, R, M, $($argument,)+> Described<(M, $($argument,)+)> for F
        where
            F: FnOnce($($argument,)+) -> R,
            R: Future<Output: Answer>,
            $($argument: Argument,)+
        {
            fn description() -> Description {
                let mut description = Description::default();
                $($argument::describe(&mut description);)+
                R::Output::describe(&mut description);
                description
            }
        }
    };
}

impl<F: FnOnce() -> R, R: Future<Output: Answer>> Described<((),)> for F {
    fn description() -> Description {
        let mut description = Description::default();
        R::Output::describe(&mut description);
        description
    }
}

described!(A);
described!(A B);
described!(A B C);
described!(A B C D);
described!(A B C D E);
described!(A B C D E G);
