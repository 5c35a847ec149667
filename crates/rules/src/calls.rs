//! Calls: of functions that are known by their names, of methods that are known by what they belong to, and of anything else.

use ruff_python_ast::{Expr, ExprCall};
use ruff_text_size::Ranged as _;

use crate::act::Act;
use crate::canonical::canonical;
use crate::expressions::elements;
use crate::meaning::{Meaning, Meanings, add, function, method, result_of, texts, unknown};
use crate::names::{BY_NAME, is_table, table_of};
use crate::reader::Reader;

/// Calls that return texts of files and of people.
const READ: [&str; 4] = ["builtins.open()", "builtins.input()", "io.open()", "pathlib.Path()"];

/// Arguments of a call.
struct Given<'a> {
    positional: Vec<Meanings>,
    named: Vec<(Option<&'a str>, Meanings)>,
}

impl Given<'_> {
    /// By its place; nothing is known of what is not there.
    fn at(&self, index: usize) -> Meanings {
        self.positional.get(index).cloned().unwrap_or_default()
    }

    fn all(&self) -> impl Iterator<Item = &Meanings> {
        self.positional.iter().chain(self.named.iter().map(|(_, meanings)| meanings))
    }
}

impl Reader<'_> {
    pub(crate) fn call(&mut self, call: &ExprCall, at: usize) -> Meanings {
        let (callee, given) = match &*call.func {
            Expr::Attribute(attribute) => {
                let of = self.value(&attribute.value);
                let given = self.given(call);
                if let Some(meanings) = self.method(&of, &attribute.attr, call, &given, at) {
                    return meanings;
                }
                (self.attribute(&of, &attribute.attr, at), given)
            }
            other => (self.value(other), self.given(call)),
        };
        for argument in given.all() {
            self.files_and_addresses(&callee, argument, at);
        }
        let (mut result, mut is_followed) = (Meanings::new(), !callee.is_empty());
        for meaning in &callee {
            let found = match meaning {
                Meaning::Path(name) => {
                    self.evaluated(name, &callee, call, &given, at);
                    self.function(canonical(&name.replace("()", "")), &given, at)
                }
                Meaning::Getter(names) => {
                    let mut of = given.at(0);
                    for name in names.split('.') {
                        of = self.attribute(&of, name, at);
                    }
                    given.positional.iter().skip(1).for_each(|argument| self.escape(argument, at));
                    Some(of)
                }
                _ => None,
            };
            is_followed &= found.is_some();
            let of_its_own = || match meaning {
                Meaning::Path(name) => Meanings::from([result_of(name)]),
                _ => unknown(),
            };
            add(&mut result, found.unwrap_or_else(of_its_own));
        }
        if !is_followed {
            given.positional.iter().for_each(|argument| self.escape(argument, at));
            if given.positional.iter().flatten().any(|meaning| matches!(meaning, Meaning::Path(_) | Meaning::Table(_)))
            {
                // It may give back what it was given.
                result.insert(Meaning::Unknown);
            }
        }
        if result.is_empty() { unknown() } else { result }
    }

    fn given<'a>(&mut self, call: &'a ExprCall) -> Given<'a> {
        let mut given = Given { positional: Vec::new(), named: Vec::new() };
        let mut is_spread = false;
        for argument in &call.arguments.args {
            is_spread |= argument.is_starred_expr();
            if is_spread {
                // An argument after a starred one has no known place.
                self.visit(argument);
                given.positional.push(unknown());
            } else {
                let meanings = self.value(argument);
                given.positional.push(meanings);
            }
        }
        for keyword in &call.arguments.keywords {
            let at = keyword.range.start().to_usize();
            let meanings = self.value(&keyword.value);
            self.escape(&meanings, at);
            if let Some(name) = &keyword.arg {
                self.note(at, Act::Attribute(name.to_string()));
            } else if let Expr::Dict(written) = &keyword.value {
                for key in written.items.iter().filter_map(|item| item.key.as_ref()) {
                    let key = self.value(key);
                    texts(&key).0.into_iter().for_each(|name| self.note(at, Act::Attribute(name)));
                }
            }
            given.named.push((keyword.arg.as_deref(), meanings));
        }
        given
    }

    fn visit(&mut self, expr: &Expr) {
        let meanings = self.value(expr);
        self.escape(&meanings, expr.range().start().to_usize());
    }

    /// A call of a function that is known. Its arguments go nowhere else.
    fn function(&mut self, name: &str, given: &Given<'_>, at: usize) -> Option<Meanings> {
        Some(match name {
            "builtins.__import__" | "importlib.__import__" | "importlib.import_module" => {
                let mut meanings = Meanings::new();
                for module in self.known_texts(&given.at(0), at, "imports a module by a name") {
                    self.note_import(&module, at);
                    self.known.import(&module);
                    let top = module.split('.').next().unwrap_or_default().to_owned();
                    // `__import__` gives the outermost module, or the innermost if names are wanted from it.
                    if !name.ends_with("import_module") {
                        meanings.insert(Meaning::Path(top));
                    }
                    meanings.insert(Meaning::Path(module));
                }
                given.positional.iter().skip(1).for_each(|argument| self.escape(argument, at));
                meanings
            }
            "builtins.getattr" | "builtins.hasattr" | "inspect.getattr_static" => {
                let mut meanings = given.at(2);
                for name in self.known_texts(&given.at(1), at, BY_NAME) {
                    let found = self.attribute(&given.at(0), &name, at);
                    add(&mut meanings, found);
                }
                meanings
            }
            "builtins.setattr" | "builtins.delattr" => {
                self.escape(&given.at(0), at);
                self.escape(&given.at(2), at);
                let (names, is_all) = texts(&given.at(1));
                if !is_all && given.at(0).iter().all(|of| table_of(of) == Meaning::Table("?".to_owned())) {
                    self.note(at, Act::IfModule("sets an attribute by a name that is put together".to_owned()));
                } else if !is_all {
                    self.undecidable(at, "sets an attribute by a name that is put together");
                }
                for name in names {
                    self.note(at, Act::Attribute(name.clone()));
                    self.bind_attribute(&name, &given.at(2));
                }
                unknown()
            }
            "builtins.eval" | "builtins.exec" => {
                let is_here = |names: &Meanings| names.iter().all(|name| *name == Meaning::Names);
                if !given.positional.iter().skip(1).all(is_here) || !given.named.is_empty() {
                    self.undecidable(at, "runs a text with names of its own");
                    given.positional.iter().skip(1).for_each(|argument| self.escape(argument, at));
                }
                self.programs(&given.at(0), at);
                unknown()
            }
            "timeit.timeit" | "timeit.repeat" | "timeit.Timer" => {
                let named =
                    given.named.iter().filter(|(name, _)| !matches!(name, Some("number" | "repeat" | "globals")));
                let programs: Vec<Meanings> =
                    given.positional.iter().take(2).chain(named.map(|(_, meanings)| meanings)).cloned().collect();
                for program in programs {
                    if !program.iter().all(|meaning| *meaning == Meaning::Function) {
                        self.programs(&program, at);
                    }
                }
                return None;
            }
            "builtins.vars" if given.positional.is_empty() => Meanings::from([Meaning::Names]),
            "builtins.vars" => given.at(0).iter().map(table_of).collect(),
            "builtins.globals" | "builtins.locals" => Meanings::from([Meaning::Names]),
            "builtins.str.format" => {
                self.fields(&given.at(0), at);
                return None;
            }
            "operator.attrgetter" | "operator.methodcaller" => {
                let is_method = name.ends_with("methodcaller");
                let count = if is_method { 1 } else { given.positional.len() };
                let mut getters = Meanings::new();
                for names in given.positional.iter().take(count) {
                    for names in self.known_texts(names, at, BY_NAME) {
                        // It may be used out of sight.
                        let mut of = unknown();
                        for name in names.split('.') {
                            of = self.attribute(&of, name, at);
                        }
                        getters.insert(Meaning::Getter(names));
                    }
                }
                given.positional.iter().skip(count).for_each(|argument| self.escape(argument, at));
                // Of several attributes it makes a tuple.
                if count == 1 {
                    return Some(getters);
                }
                getters.insert(Meaning::Unknown);
                getters
            }
            // The function, with some arguments given.
            "functools.partial" | "functools.wraps" | "functools.lru_cache" | "functools.cache" => {
                given.positional.iter().skip(1).for_each(|argument| self.escape(argument, at));
                if given.positional.len() > 1 || !given.named.is_empty() {
                    // Arguments that it is given later have other places.
                    self.escape(&given.at(0), at);
                }
                given.at(0)
            }
            "os.chdir" | "contextlib.chdir" => {
                let is_path = |one: &Meaning| matches!(one, Meaning::Path(name) if name == "pathlib.Path()");
                if !texts(&given.at(0)).1 && !given.at(0).iter().any(is_path) {
                    self.undecidable(at, "goes to a directory that is put together while it runs");
                }
                return None;
            }
            "importlib.reload" => given.at(0),
            "numpy.load" if given.positional.len() > 2 || given.named.iter().any(|(name, _)| name.is_none()) => {
                self.note(at, Act::Attribute("allow_pickle".to_owned()));
                return None;
            }
            _ => {
                let ones: Option<Vec<Meaning>> = given.positional.iter().map(only).collect();
                let folded = ones.filter(|ones| ones.len() <= 4 && given.named.is_empty());
                Meanings::from([folded.and_then(|ones| function(name, &ones))?])
            }
        })
    }

    /// Texts that are run.
    fn programs(&mut self, texts: &Meanings, at: usize) {
        if texts
            .iter()
            .any(|meaning| matches!(meaning, Meaning::Bytes(bytes) if bytes.windows(6).any(|part| part == b"coding")))
        {
            self.undecidable(at, "runs a text in an encoding of its own");
        }
        for program in self.known_texts(texts, at, "runs a text") {
            self.inner(&program, at);
        }
    }

    /// Texts that libraries evaluate, with the names that the program has.
    fn evaluated(&mut self, name: &str, callee: &Meanings, call: &ExprCall, given: &Given<'_>, at: usize) {
        let of = |package: &str| name.strip_prefix(package).is_some_and(|rest| rest.starts_with('.'));
        let is_last = |last: &str| name.strip_suffix(last).is_some_and(|rest| rest.ends_with('.'));
        // Tables come from everywhere; what queries databases and trees is given no expressions.
        let is_table = of("pandas") || name.starts_with('?') || name.contains("()");
        let is_query = is_table && (is_last("query") || is_last("eval"));
        let is_else = callee.iter().any(|one| {
            let Meaning::Path(name) = one else { return false };
            ["duckdb.", "sqlalchemy.", "scipy.", "sklearn."].into_iter().any(|package| name.starts_with(package))
        });
        let is_template = of("jinja2");
        let is_model = of("statsmodels") || of("patsy");
        if !(is_query || is_template || is_model || of("sympy")) {
            return;
        }
        let is_formula =
            ((of("statsmodels.formula") || of("patsy")) && !name.contains("()")) || is_last("from_formula");
        let is_read = |one: &Meaning| matches!(one, Meaning::Path(name) if READ.contains(&name.as_str()));
        if (is_formula || of("sympy")) && given.all().flatten().any(is_read) {
            self.undecidable(at, "evaluates a text that is read while it runs");
        }
        let is_source = (is_query && !is_else) || is_last("Template") || is_last("from_string");
        if is_source && given.all().next().is_some() && !given.all().any(|argument| texts(argument).1) {
            self.undecidable(at, "evaluates a text that is put together while it runs");
        }
        let mut known: Vec<String> = given.all().flat_map(|argument| texts(argument).0).collect();
        known.extend(call.arguments.args.iter().flat_map(written).map(str::to_owned));
        for text in known {
            if is_template {
                let reaches = ["attr", "map", "__", "~", "['", "[\""];
                if reaches.iter().any(|way| text.contains(way)) {
                    self.undecidable(at, "has a template that reaches into its arguments");
                }
                text.split(['{', '%', '}']).for_each(|part| self.formula(part.trim(), at));
            } else {
                let plain = text.split('`').step_by(2).collect::<Vec<_>>().join("x").replace('@', "");
                plain.split('~').for_each(|side| self.formula(side.trim(), at));
            }
        }
    }

    /// A call of a method that is known by its object. `None` if it is none.
    fn method(&mut self, of: &Meanings, name: &str, call: &ExprCall, given: &Given<'_>, at: usize) -> Option<Meanings> {
        match name {
            "get" | "__getitem__" | "pop" | "setdefault" if of.iter().any(is_table) => {
                given.positional.iter().skip(1).for_each(|argument| self.escape(argument, at));
                let mut meanings = self.entry(of, &given.at(0), at);
                add(&mut meanings, given.at(1));
                return Some(meanings);
            }
            "__getattribute__" | "__getattr__" => {
                self.note(at, Act::Attribute(name.to_owned()));
                given.positional.iter().for_each(|argument| self.escape(argument, at));
                let mut meanings = Meanings::new();
                for name in self.known_texts(&given.at(0), at, BY_NAME) {
                    let found = self.attribute(of, &name, at);
                    add(&mut meanings, found);
                }
                return Some(meanings);
            }
            "format" | "format_map" => self.fields(of, at),
            "join" => {
                let parts = call.arguments.args.first().map(elements).unwrap_or_default();
                if !parts.is_empty() && !parts.iter().any(|part| part.is_starred_expr()) {
                    let mut text: Option<Meanings> = None;
                    for part in parts {
                        let part = self.value(part);
                        text = Some(match text {
                            None => part,
                            Some(before) => {
                                let before = self.joined(&before, of);
                                self.joined(&before, &part)
                            }
                        });
                    }
                    return text;
                }
            }
            _ => {}
        }
        if of.iter().any(is_table) {
            given.positional.iter().for_each(|argument| self.escape(argument, at));
            of.iter().filter(|of| is_table(of)).for_each(|of| self.escape(&Meanings::from([of.clone()]), at));
            return Some(unknown());
        }
        let is_text = of.iter().all(|meaning| matches!(meaning, Meaning::Text(_) | Meaning::Bytes(_)));
        if is_text && !of.is_empty() {
            self.note(at, Act::Attribute(name.to_owned()));
            given.positional.iter().for_each(|argument| self.escape(argument, at));
            let ones: Option<Vec<Meaning>> = given.positional.iter().map(only).collect();
            let is_field = name.starts_with("format");
            let ones = if is_field { Some(Vec::new()) } else { ones.filter(|_| given.named.is_empty()) };
            let folded = ones.map(|ones| {
                let made = of.iter().map(|meaning| method(meaning, name, &ones).unwrap_or(Meaning::Unknown));
                made.collect::<Meanings>()
            });
            return Some(folded.unwrap_or_else(unknown));
        }
        None
    }

    /// Fields of a format reach into what they are given.
    fn fields(&mut self, of: &Meanings, at: usize) {
        for text in texts(of).0 {
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
            let keys = dict.items.iter().filter_map(|item| item.key.as_ref());
            keys.chain(dict.items.iter().map(|item| &item.value)).flat_map(written).collect()
        }
        Expr::Set(set) => set.elts.iter().flat_map(written).collect(),
        other => elements(other).into_iter().flat_map(written).collect(),
    }
}

fn only(meanings: &Meanings) -> Option<Meaning> {
    let mut all = meanings.iter();
    let first = all.next()?.clone();
    (all.next().is_none() && first != Meaning::Unknown).then_some(first)
}
