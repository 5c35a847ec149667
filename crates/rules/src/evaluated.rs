//! Texts that are evaluated: by Python itself, and by libraries with the names that the program has.

use ruff_python_ast::{Expr, ExprCall};

use crate::act::Act;
use crate::calls::Arguments;
use crate::dotted::{first, last};
use crate::expressions::elements;
use crate::meaning::{Meaning, Meanings, texts};
use crate::reader::Reader;

/// Functions that return texts of files and of people.
const READ: [&str; 4] = ["builtins.open", "builtins.input", "io.open", "pathlib.Path"];
/// Packages whose queries are given no expressions of Python.
const DATABASES: [&str; 4] = ["duckdb", "sqlalchemy", "scipy", "sklearn"];
/// Parts of a template that reach into its arguments.
const REACHING: [&str; 6] = ["attr", "map", "__", "~", "['", "[\""];

/// A library's language of texts that are evaluated.
#[derive(PartialEq)]
enum Language {
    /// Queries of tables. Tables come from everywhere.
    Query,
    /// Formulas of statsmodels and patsy, and whatever is given to sympy.
    Formula,
    /// Templates of Jinja.
    Template,
}

impl Language {
    fn of(function: &Meaning) -> Option<Self> {
        match (first(function.origin().unwrap_or_default()), name_of(function)) {
            ("jinja2", _) => Some(Self::Template),
            ("sympy" | "statsmodels" | "patsy", _) => Some(Self::Formula),
            (package, "query" | "eval") if package == "pandas" || matches!(function, Meaning::Member { .. }) => {
                Some(Self::Query)
            }
            _ => None,
        }
    }
}

/// The name under which a function is called.
fn name_of(function: &Meaning) -> &str {
    match function {
        Meaning::Path(path) | Meaning::Member { path, .. } => last(path),
        _ => "",
    }
}

impl Reader<'_> {
    /// Reads texts that are run.
    pub(crate) fn programs(&mut self, texts: &Meanings, at: usize) {
        let has_encoding = |meaning: &Meaning| matches!(meaning, Meaning::Bytes(bytes) if bytes.windows(6).any(|part| part == b"coding"));
        if texts.iter().any(has_encoding) {
            self.undecidable(at, "runs a text in an encoding of its own");
        }
        for program in self.known_texts(texts, at, "runs a text") {
            self.inner(&program, at);
        }
    }

    /// Reads texts that a library evaluates.
    pub(crate) fn evaluated(&mut self, function: &Meaning, call: &ExprCall, arguments: &Arguments<'_>, at: usize) {
        let Some(language) = Language::of(function) else { return };
        let (package, name) = (first(function.origin().unwrap_or_default()), name_of(function));
        let is_formula = package == "sympy" || name == "from_formula" || matches!(function, Meaning::Path(_));
        let is_read = |one: &Meaning| READ.iter().any(|function| one.is_result_of(function));
        if language == Language::Formula && is_formula && arguments.all().flatten().any(is_read) {
            self.undecidable(at, "evaluates a text that is read while it runs");
        }
        let is_source = match language {
            Language::Query => !DATABASES.contains(&package),
            Language::Formula => false,
            Language::Template => matches!(name, "Template" | "from_string"),
        };
        if is_source && arguments.all().next().is_some() && !arguments.all().any(|argument| texts(argument).1) {
            self.undecidable(at, "evaluates a text that is put together while it runs");
        }
        let mut known: Vec<String> = arguments.all().flat_map(|argument| texts(argument).0).collect();
        known.extend(call.arguments.args.iter().flat_map(written).map(str::to_owned));
        for text in known {
            if language == Language::Template {
                if REACHING.iter().any(|way| text.contains(way)) {
                    self.undecidable(at, "has a template that reaches into its arguments");
                }
                text.split(['{', '%', '}']).for_each(|part| self.formula(part.trim(), at));
            } else {
                let plain = text.split('`').step_by(2).collect::<Vec<_>>().join("x").replace('@', "");
                plain.split('~').for_each(|side| self.formula(side.trim(), at));
            }
        }
    }

    /// Notes attributes that the fields of a format reach.
    pub(crate) fn fields(&mut self, formats: &Meanings, at: usize) {
        for text in texts(formats).0 {
            for field in text.split('{').skip(1).filter_map(|rest| rest.split('}').next()) {
                for attribute in field.split(['.', '[', ']']).skip(1) {
                    self.note(at, Act::Attribute(attribute.to_owned()));
                }
            }
        }
    }
}

/// The texts that are written out in an expression.
fn written(expr: &Expr) -> Vec<&str> {
    match expr {
        Expr::StringLiteral(text) => vec![text.value.to_str()],
        Expr::Dict(dict) => {
            dict.items.iter().flat_map(|item| item.key.iter().chain([&item.value])).flat_map(written).collect()
        }
        Expr::Set(set) => set.elts.iter().flat_map(written).collect(),
        other => elements(other).iter().flat_map(written).collect(),
    }
}
