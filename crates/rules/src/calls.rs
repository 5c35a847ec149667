//! Calls: of functions that are known by their names, of methods that are known by what they belong to, and of anything else.

use ruff_python_ast::{Expr, ExprCall};
use ruff_text_size::Ranged as _;

use crate::act::Act;
use crate::dotted::{first, last};
use crate::expressions::elements;
use crate::meaning::{Meaning, Meanings, add, texts, unknown};
use crate::names::BY_NAME;
use crate::reader::Reader;
use crate::texts;

/// Arguments of a call.
pub(crate) struct Arguments<'a> {
    positional: Vec<Meanings>,
    named: Vec<(Option<&'a str>, Meanings)>,
}

impl Arguments<'_> {
    /// By its place; nothing is known of what is not there.
    fn at(&self, index: usize) -> Meanings {
        self.positional.get(index).cloned().unwrap_or_default()
    }

    /// Values of all from a place on that have no names.
    fn from(&self, index: usize) -> impl Iterator<Item = &Meaning> {
        self.positional.iter().skip(index).flatten()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Meanings> {
        self.positional.iter().chain(self.named.iter().map(|(_, meanings)| meanings))
    }

    /// Returns the one meaning of each, if all have one and none has a name.
    fn constants(&self) -> Option<Vec<Meaning>> {
        let only = |meanings: &Meanings| match meanings.first() {
            Some(only) if meanings.len() == 1 && *only != Meaning::Unknown => Some(only.clone()),
            _ => None,
        };
        self.named.is_empty().then(|| self.positional.iter().map(only).collect())?
    }
}

impl Reader<'_> {
    pub(crate) fn call(&mut self, call: &ExprCall, at: usize) -> Meanings {
        let (callee, arguments) = match &*call.func {
            Expr::Attribute(attribute) => {
                let of = self.value(&attribute.value);
                let arguments = self.arguments(call);
                if let Some(meanings) = self.method(&of, &attribute.attr, call, &arguments, at) {
                    return meanings;
                }
                (self.attribute(&of, &attribute.attr, at), arguments)
            }
            other => (self.value(other), self.arguments(call)),
        };
        for argument in arguments.all() {
            self.files_and_addresses(&callee, argument, at);
        }
        let mut results = Meanings::new();
        let mut is_followed = !callee.is_empty();
        for function in &callee {
            self.evaluated(function, call, &arguments, at);
            let known = function.canonical().and_then(|name| self.function(name, &arguments, at));
            is_followed &= known.is_some();
            add(&mut results, known.unwrap_or_else(|| Meanings::from([function.result()])));
        }
        if !is_followed {
            self.escape(arguments.from(0), at);
        }
        if results.is_empty() { unknown() } else { results }
    }

    fn arguments<'a>(&mut self, call: &'a ExprCall) -> Arguments<'a> {
        let mut arguments = Arguments { positional: Vec::new(), named: Vec::new() };
        let mut is_spread = false;
        for argument in &call.arguments.args {
            is_spread |= argument.is_starred_expr();
            let mut meanings = self.value(argument);
            if is_spread {
                // An argument after a starred one has no known place.
                self.escape(&meanings, argument.start().to_usize());
                meanings = unknown();
            }
            arguments.positional.push(meanings);
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
            arguments.named.push((keyword.arg.as_deref(), meanings));
        }
        arguments
    }

    /// Calls a function that is known. Its arguments go nowhere else.
    fn function(&mut self, name: &str, arguments: &Arguments<'_>, at: usize) -> Option<Meanings> {
        match name {
            "builtins.__import__" | "importlib.__import__" | "importlib.import_module" => {
                self.escape(arguments.from(1), at);
                let modules = self.known_texts(&arguments.at(0), at, "imports a module by a name");
                modules.iter().for_each(|module| self.import(module, at));
                // `__import__` gives the outermost module, or the innermost if names are wanted from it.
                let outermost = modules.iter().map(|module| first(module)).filter(|_| last(name) == "__import__");
                Some(
                    modules
                        .iter()
                        .map(String::as_str)
                        .chain(outermost)
                        .map(|name| Meaning::Path(name.to_owned()))
                        .collect(),
                )
            }
            "builtins.getattr" | "builtins.hasattr" | "inspect.getattr_static" => {
                let mut meanings = arguments.at(2);
                add(&mut meanings, self.attributes(&arguments.at(0), &arguments.at(1), at));
                Some(meanings)
            }
            "builtins.setattr" | "builtins.delattr" => {
                self.escape(arguments.from(0), at);
                self.set_attribute(&arguments.at(0), &arguments.at(1), &arguments.at(2), at);
                Some(unknown())
            }
            "builtins.eval" | "builtins.exec" => {
                if !arguments.from(1).all(|names| *names == Meaning::Globals) || !arguments.named.is_empty() {
                    self.undecidable(at, "runs a text with names of its own");
                    self.escape(arguments.from(1), at);
                }
                self.programs(&arguments.at(0), at);
                Some(unknown())
            }
            "builtins.vars" if !arguments.positional.is_empty() => {
                Some(arguments.at(0).iter().map(Meaning::table).collect())
            }
            "builtins.vars" | "builtins.globals" | "builtins.locals" => Some(Meanings::from([Meaning::Globals])),
            // The function, with some arguments given, so that those that it is given later have other places.
            "functools.partial" | "functools.wraps" | "functools.lru_cache" | "functools.cache" => {
                self.escape(arguments.from(0), at);
                Some(arguments.at(0))
            }
            _ => {
                self.before_call(name, arguments, at);
                Some(Meanings::from([texts::function(name, &arguments.constants()?)?]))
            }
        }
    }

    /// Notes acts of functions that are no more known than others.
    fn before_call(&mut self, name: &str, arguments: &Arguments<'_>, at: usize) {
        match name {
            "timeit.timeit" | "timeit.repeat" | "timeit.Timer" => {
                let is_program = |name: &Option<&str>| !matches!(name, Some("number" | "repeat" | "globals"));
                let named = arguments.named.iter().filter(|(name, _)| is_program(name)).map(|(_, program)| program);
                for program in arguments.positional.iter().take(2).chain(named) {
                    if !program.iter().all(|meaning| *meaning == Meaning::Function) {
                        self.programs(program, at);
                    }
                }
            }
            "builtins.str.format" => self.fields(&arguments.at(0), at),
            "operator.attrgetter" | "operator.methodcaller" => {
                let is_method = name == "operator.methodcaller";
                for names in arguments.positional.iter().take(if is_method { 1 } else { usize::MAX }) {
                    for names in self.known_texts(names, at, BY_NAME) {
                        names.split('.').fold(unknown(), |of, name| self.attribute(&of, name, at));
                    }
                }
            }
            "os.chdir" | "contextlib.chdir" => {
                let directory = arguments.at(0);
                if !texts(&directory).1 && !directory.iter().any(|one| one.is_result_of("pathlib.Path")) {
                    self.undecidable(at, "goes to a directory that is put together while it runs");
                }
            }
            "numpy.load"
                if arguments.positional.len() > 2 || arguments.named.iter().any(|(name, _)| name.is_none()) =>
            {
                self.note(at, Act::Attribute("allow_pickle".to_owned()));
            }
            _ => {}
        }
    }

    /// Sets an attribute of something, by a name that may not be known.
    pub(crate) fn set_attribute(&mut self, of: &Meanings, name: &Meanings, value: &Meanings, at: usize) {
        const WHAT: &str = "sets an attribute by a name that is put together while it runs";
        let (names, is_all) = texts(name);
        if !is_all && of.iter().any(|of| matches!(of, Meaning::Path(_))) {
            self.undecidable(at, WHAT);
        } else if !is_all {
            self.note(at, Act::UndecidableOfModule(WHAT.to_owned()));
        }
        for name in names {
            self.bind_attribute(&name, value);
            self.note(at, Act::Attribute(name));
        }
    }

    /// Calls a method that is known by its object.
    fn method(
        &mut self,
        of: &Meanings,
        name: &str,
        call: &ExprCall,
        arguments: &Arguments<'_>,
        at: usize,
    ) -> Option<Meanings> {
        let is_table = of.iter().any(Meaning::is_table);
        match name {
            "get" | "__getitem__" | "pop" | "setdefault" if is_table => {
                self.escape(arguments.from(1), at);
                let mut meanings = self.entry(of, &arguments.at(0), at);
                add(&mut meanings, arguments.at(1));
                return Some(meanings);
            }
            "__getattribute__" | "__getattr__" => {
                self.note(at, Act::Attribute(name.to_owned()));
                self.escape(arguments.from(0), at);
                return Some(self.attributes(of, &arguments.at(0), at));
            }
            "format" | "format_map" => self.fields(of, at),
            "join" => {
                let parts = call.arguments.args.first().map(elements).unwrap_or_default();
                if !parts.is_empty() && !parts.iter().any(Expr::is_starred_expr) {
                    return Some(self.join(of, parts));
                }
            }
            _ => {}
        }
        if is_table {
            self.escape(arguments.from(0), at);
            self.escape(of.iter().filter(|of| of.is_table()), at);
            return Some(unknown());
        }
        if of.is_empty() || !of.iter().all(|of| matches!(of, Meaning::Text(_) | Meaning::Bytes(_))) {
            return None;
        }
        self.note(at, Act::Attribute(name.to_owned()));
        self.escape(arguments.from(0), at);
        let arguments = if name.starts_with("format") { Some(Vec::new()) } else { arguments.constants() };
        let Some(arguments) = arguments else { return Some(unknown()) };
        Some(of.iter().map(|of| texts::method(of, name, &arguments).unwrap_or(Meaning::Unknown)).collect())
    }

    /// Joins the elements of a list that is written out.
    fn join(&mut self, between: &Meanings, parts: &[Expr]) -> Meanings {
        let mut text = Meanings::new();
        for (index, part) in parts.iter().enumerate() {
            let part = self.value(part);
            text = match index {
                0 => part,
                _ => {
                    let before = self.joined(&text, between);
                    self.joined(&before, &part)
                }
            };
        }
        text
    }
}
