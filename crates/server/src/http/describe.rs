//! Descriptions of bodies and answers, derived from the types of handlers.

use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{Html, Response};
use axum::{Extension, Json};
use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::{Caller, Fields, Params, RawBody, RawJson};

/// A content of a body or an answer: its media type, and its schema if it has one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MediaType {
    pub(crate) media: &'static str,
    pub(crate) schema: Option<fn(&mut SchemaGenerator) -> Schema>,
}

/// The description of a route by its handler's types.
#[derive(Debug, Clone, Default)]
pub(crate) struct Description {
    /// The forms of the body; empty without one.
    pub(crate) body: Vec<MediaType>,
    /// Names of the query's parameters.
    pub(crate) query: Vec<&'static str>,
    /// The forms of the answer; empty if it is only a status.
    pub(crate) answers: Vec<MediaType>,
    /// True if the body is not described by its type, so that the route has to describe it.
    pub(crate) lacks_body: bool,
    /// True if the answer is not described by its type, so that the route has to describe it.
    pub(crate) lacks_answer: bool,
}

impl MediaType {
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
pub(crate) trait DescribeArgument {
    /// Adds its part of the route's description; only the body and the query have one.
    fn describe(_: &mut Description) {}
}

/// The result of a handler.
pub(crate) trait DescribeAnswer {
    /// Adds its part of the route's description.
    fn describe(description: &mut Description);
}

/// A handler whose arguments of the types `T` and whose result describe themselves.
pub(crate) trait Described<T> {
    /// The description.
    fn description() -> Description;
}

impl<T> DescribeArgument for State<T> {}
impl<T> DescribeArgument for Path<T> {}
impl<T> DescribeArgument for Query<T> {}
impl<T> DescribeArgument for Extension<T> {}
impl<T> DescribeArgument for Option<T> {}
impl DescribeArgument for Caller {}
impl DescribeArgument for HeaderMap {}
impl DescribeArgument for Uri {}
impl DescribeArgument for Params {}

impl DescribeArgument for Fields {
    fn describe(description: &mut Description) {
        description.lacks_body = true;
    }
}

impl DescribeArgument for RawJson {
    fn describe(description: &mut Description) {
        description.lacks_body = true;
    }
}

impl DescribeArgument for RawBody {
    fn describe(description: &mut Description) {
        description.lacks_body = true;
    }
}

impl DescribeArgument for Request {
    fn describe(description: &mut Description) {
        description.lacks_body = true;
    }
}

impl<T: JsonSchema> DescribeAnswer for Json<T> {
    fn describe(description: &mut Description) {
        description.answers.push(MediaType::json::<T>(JSON));
    }
}

impl<T: DescribeAnswer> DescribeAnswer for (HeaderMap, T) {
    fn describe(description: &mut Description) {
        T::describe(description);
    }
}

impl<T: DescribeAnswer, E> DescribeAnswer for Result<T, E> {
    fn describe(description: &mut Description) {
        T::describe(description);
    }
}

impl DescribeAnswer for StatusCode {
    fn describe(_: &mut Description) {}
}

impl DescribeAnswer for &'static str {
    fn describe(description: &mut Description) {
        description.answers.push(MediaType::plain("text/plain"));
    }
}

impl<T> DescribeAnswer for Html<T> {
    fn describe(description: &mut Description) {
        description.answers.push(MediaType::plain("text/html"));
    }
}

impl DescribeAnswer for Response {
    fn describe(description: &mut Description) {
        description.lacks_answer = true;
    }
}

/// Implements [`Described`] for handlers with these arguments, as axum takes them.
macro_rules! described {
    ($($argument:ident)+) => {
        impl<F, R, M, $($argument,)+> Described<(M, $($argument,)+)> for F
        where
            F: FnOnce($($argument,)+) -> R,
            R: Future<Output: DescribeAnswer>,
            $($argument: DescribeArgument,)+
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

impl<F: FnOnce() -> R, R: Future<Output: DescribeAnswer>> Described<((),)> for F {
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
