//! Calls: of functions that are known by their names, and of anything else.

use ruff_python_ast::ExprCall;

use crate::act::Act;
use crate::dotted::{first, fits, last};
use crate::lists::LISTS;
use crate::meaning::Meaning;
use crate::reader::{Place, Reader};

impl Reader<'_> {
    pub(crate) fn call(&mut self, call: &ExprCall) -> Meaning {
        let callee = self.value(&call.func);
        let origin = callee.origin().unwrap_or_default();
        let name = call.func.as_attribute_expr().map_or(last(origin), |method| &*method.attr);
        let (package, is_path) = (first(origin), matches!(callee, Meaning::Path(_)));
        // Queries of tables, which come from everywhere.
        let is_table = package == "pandas" || !is_path && !LISTS.databases.contains(package);
        let is_query = is_table && matches!(name, "query" | "eval");
        // Formulas of statsmodels and patsy, and whatever is given to sympy.
        let is_formula = matches!(package, "sympy" | "statsmodels" | "patsy");
        let is_evaluated = self.place.is_evaluated || is_query || is_formula;
        let (arguments, named) = self.within(Place { is_evaluated, ..self.place }, |reader| {
            let arguments: Vec<Meaning> = call.arguments.args.iter().map(|argument| reader.value(argument)).collect();
            let named = call.arguments.keywords.iter().map(|keyword| {
                keyword.arg.iter().for_each(|name| reader.note(Act::Attribute(name.to_string())));
                reader.value(&keyword.value)
            });
            (arguments, named.collect::<Vec<Meaning>>())
        });
        let all: Vec<&Meaning> = arguments.iter().chain(&named).collect();
        all.iter().for_each(|argument| self.outside(&callee, argument));
        if package == "jinja2" {
            self.all_names(&Meaning::Unknown);
        }
        // Texts that are written out are read where they stand.
        let is_template = package == "jinja2" && matches!(name, "Template" | "from_string");
        let is_unknown = !all.is_empty() && !all.iter().any(|argument| argument.is_whole());
        let is_source = |of: &str| LISTS.text_sources.iter().any(|source| fits(of, source));
        let is_read = all.iter().any(|argument| matches!(argument, Meaning::Result(of) if is_source(of)));
        if (is_query || is_template) && is_unknown || is_formula && is_path && is_read {
            self.undecidable("evaluates a text that is not written out");
        }
        self.steering_call(origin, call, &arguments, &named);
        if name == "from_custom_template" {
            self.undecidable("renders a template of a file");
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

    /// Calls a function that is known. If it hands none of its arguments on, returns its result.
    fn function(&mut self, name: &str, call: &ExprCall, arguments: &[Meaning]) -> Option<Meaning> {
        let literal = |index: usize| Some(call.arguments.args.get(index)?.as_string_literal_expr()?.value.to_str());
        let of = arguments.first().unwrap_or(&Meaning::Unknown);
        match name {
            "builtins.__import__" | "importlib.__import__" | "importlib.import_module" => {
                let Some(module) = literal(0) else {
                    self.undecidable("imports a module by a name that is not written out");
                    return None;
                };
                self.import(module);
                // `__import__` gives the outermost module.
                let found = if name == "importlib.import_module" { module } else { first(module) };
                return Some(Meaning::Path(found.to_owned()));
            }
            "builtins.getattr" => {
                if let Some(name) = literal(1) {
                    arguments.iter().skip(2).for_each(|default| self.hand_on(default));
                    return Some(self.attribute(of, name));
                }
                // A name may be another text by the time that a function is called.
                let is_own = matches!(of, Meaning::Path(path) if LISTS.is_python_module(first(path)));
                self.all_names(if is_own { of } else { &Meaning::Unknown });
                let name = arguments.get(1)?;
                self.attributes(of, name);
                return name.is_whole().then_some(Meaning::Unknown);
            }
            "builtins.setattr" | "builtins.delattr" => match literal(1) {
                Some("__class__") | None => self.all_names(of),
                Some(name) => drop(self.attribute(of, name)),
            },
            "builtins.vars" if arguments.is_empty() => self.undecidable("takes all names of the program"),
            "builtins.vars" => self.all_names(of),
            "builtins.eval" | "builtins.exec" | "timeit.timeit" | "timeit.repeat" | "timeit.Timer" => {
                let mut named = call.arguments.keywords.iter().map(|keyword| keyword.arg.as_deref());
                let is_alone = arguments.len() == 1 && named.all(|name| matches!(name, Some("number" | "repeat")));
                match literal(0).filter(|_| is_alone) {
                    Some(program) => self.inner(program, false),
                    None if is_alone && call.arguments.args.iter().any(|argument| argument.is_lambda_expr()) => {}
                    None => self.undecidable("runs what is not written out, or with names of its own"),
                }
            }
            "operator.attrgetter" | "operator.methodcaller" => {
                arguments.iter().for_each(|names| self.attributes(&Meaning::Unknown, names));
            }
            "os.chdir" | "contextlib.chdir" if !of.is_whole() && of.origin() != Some("pathlib.Path") => {
                self.undecidable("goes to a directory that is not written out");
            }
            "numpy.load" if arguments.len() > 2 || call.arguments.keywords.iter().any(|one| one.arg.is_none()) => {
                self.note(Act::Attribute("allow_pickle".to_owned()));
            }
            _ => {}
        }
        None
    }

    /// Takes attributes by names that a text has.
    fn attributes(&mut self, of: &Meaning, names: &Meaning) {
        if !names.is_whole() {
            self.undecidable("takes an attribute by a name that is not known");
        }
        for name in names.texts().flat_map(|names| names.split('.')) {
            let found = self.attribute(of, name);
            self.hand_on(&found);
        }
    }
}
