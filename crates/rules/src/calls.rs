//! Calls: of functions that are known by their names, and of anything else.

use ruff_python_ast::{Expr, ExprCall};

use crate::act::Act;
use crate::dotted::{first, fits, last};
use crate::lists::LISTS;
use crate::meaning::Meaning;
use crate::reader::Reader;

/// Functions that return texts of files and of people.
const READ: [&str; 4] = ["builtins.open", "builtins.input", "io.open", "pathlib.Path"];
/// Packages whose queries are given no expressions of Python.
const DATABASES: [&str; 4] = ["duckdb", "sqlalchemy", "scipy", "sklearn"];

const UNKNOWN_NAME: &str = "takes an attribute by a name that is not known";

/// A library's language of texts that are evaluated.
#[derive(Clone, Copy, PartialEq)]
enum Language {
    /// Queries of tables. Tables come from everywhere.
    Query,
    /// Formulas of statsmodels and patsy, and whatever is given to sympy.
    Formula,
    /// Templates of Jinja.
    Template,
}

impl Language {
    fn of(function: &Meaning, name: &str) -> Option<Self> {
        match (first(function.origin().unwrap_or_default()), name) {
            ("jinja2", _) => Some(Self::Template),
            ("sympy" | "statsmodels" | "patsy", _) => Some(Self::Formula),
            (package, "query" | "eval") if package == "pandas" || !matches!(function, Meaning::Path(_)) => {
                (!DATABASES.contains(&package)).then_some(Self::Query)
            }
            _ => None,
        }
    }
}

impl Reader<'_> {
    pub(crate) fn call(&mut self, call: &ExprCall) -> Meaning {
        let callee = self.value(&call.func);
        let name =
            call.func.as_attribute_expr().map_or(last(callee.origin().unwrap_or_default()), |method| &method.attr);
        let language = Language::of(&callee, name);
        let around = self.place.is_evaluated;
        self.place.is_evaluated |= matches!(language, Some(Language::Query | Language::Formula));
        let arguments: Vec<Meaning> = call.arguments.args.iter().map(|argument| self.value(argument)).collect();
        let mut named = Vec::new();
        for keyword in &call.arguments.keywords {
            if let Some(name) = &keyword.arg {
                self.note(Act::Attribute(name.to_string()));
            }
            named.push(self.value(&keyword.value));
        }
        self.place.is_evaluated = around;
        let all: Vec<&Meaning> = arguments.iter().chain(&named).collect();
        all.iter().for_each(|argument| self.outside(&callee, argument));
        if let Some(language) = language {
            self.evaluated(language, &callee, name, &all);
        }
        named.iter().for_each(|argument| self.hand_on(argument));
        if let Meaning::Path(function) = &callee
            && let Some(result) = self.function(function, call, &arguments)
        {
            return result;
        }
        arguments.iter().for_each(|argument| self.hand_on(argument));
        callee.result()
    }

    /// Calls a function that is known.
    fn function(&mut self, name: &str, call: &ExprCall, arguments: &[Meaning]) -> Option<Meaning> {
        let literal = |index: usize| Some(call.arguments.args.get(index)?.as_string_literal_expr()?.value.to_str());
        let is_alone = arguments.len() == 1 && call.arguments.keywords.is_empty();
        let of = arguments.first().unwrap_or(&Meaning::Unknown);
        match name {
            "builtins.__import__" | "importlib.__import__" | "importlib.import_module" => {
                let Some(module) = literal(0) else {
                    self.undecidable("imports a module by a name that is not written out");
                    return None;
                };
                self.import(module);
                // `__import__` gives the outermost module.
                return Some(Meaning::path(if name == "importlib.import_module" { module } else { first(module) }));
            }
            "builtins.getattr" => {
                let (name, is_literal) = (arguments.get(1).unwrap_or(&Meaning::Unknown), literal(1).is_some());
                let is_own = matches!(of, Meaning::Path(path) if LISTS.is_python_module(first(path)));
                // A name may be another text by the time that a function is called.
                if !name.is_whole() || (is_own && !is_literal) {
                    self.undecidable(UNKNOWN_NAME);
                    return None;
                }
                arguments.iter().skip(2).for_each(|default| self.hand_on(default));
                let mut found = Meaning::Unknown;
                for name in name.texts() {
                    found = self.attribute(of, name);
                    if !is_literal {
                        self.hand_on(&found);
                        self.all_names(&Meaning::Unknown);
                    }
                }
                return Some(if is_literal { found } else { Meaning::Unknown });
            }
            "builtins.setattr" | "builtins.delattr" => match literal(1) {
                Some("__class__") | None => self.all_names(of),
                Some(name) => {
                    self.attribute(of, name);
                }
            },
            "builtins.vars" if !arguments.is_empty() => {
                self.all_names(of);
                self.hand_on(of);
                return Some(Meaning::Unknown);
            }
            "builtins.eval" | "builtins.exec" => match literal(0).filter(|_| is_alone) {
                Some(program) => self.inner(program, false),
                None => self.undecidable("runs a text that is not written out, or with names of its own"),
            },
            "timeit.timeit" | "timeit.repeat" | "timeit.Timer" => {
                let named = call.arguments.keywords.iter();
                let named = named.filter(|keyword| !matches!(keyword.arg.as_deref(), Some("number" | "repeat")));
                for program in call.arguments.args.iter().take(2).chain(named.map(|keyword| &keyword.value)) {
                    match program {
                        Expr::StringLiteral(program) => self.inner(program.value.to_str(), false),
                        Expr::Lambda(_) => {}
                        _ => self.undecidable("times a text that is not written out"),
                    }
                }
            }
            "operator.attrgetter" | "operator.methodcaller" => {
                for names in arguments.iter().take(if name == "operator.attrgetter" { usize::MAX } else { 1 }) {
                    if !names.is_whole() {
                        self.undecidable(UNKNOWN_NAME);
                    }
                    for name in names.texts().flat_map(|names| names.split('.')) {
                        self.attribute(&Meaning::Unknown, name);
                    }
                }
            }
            "os.chdir" | "contextlib.chdir" if !of.is_whole() && *of != Meaning::Result("pathlib.Path".to_owned()) => {
                self.undecidable("goes to a directory that is not written out");
            }
            "numpy.load" if arguments.len() > 2 || call.arguments.keywords.iter().any(|one| one.arg.is_none()) => {
                self.note(Act::Attribute("allow_pickle".to_owned()));
            }
            _ => {}
        }
        None
    }

    /// Notes effects of texts that a library evaluates. Those that are written out are read where they stand.
    fn evaluated(&mut self, language: Language, function: &Meaning, name: &str, arguments: &[&Meaning]) {
        let is_read =
            |one: &&Meaning| matches!(one, Meaning::Result(of) if READ.iter().any(|function| fits(of, function)));
        let is_source = match language {
            Language::Query => true,
            Language::Formula => false,
            Language::Template => {
                self.all_names(&Meaning::Unknown);
                matches!(name, "Template" | "from_string")
            }
        };
        let is_function = matches!(function, Meaning::Path(_));
        if is_source && !arguments.is_empty() && !arguments.iter().any(|argument| argument.is_whole())
            || language == Language::Formula && is_function && arguments.iter().any(is_read)
        {
            self.undecidable("evaluates a text that is not written out");
        }
    }
}
