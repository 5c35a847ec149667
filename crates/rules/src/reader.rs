//! Reading a program: what it does, as far as that can be seen.
//!
//! Names are followed without regard to order and scope: what a name may mean anywhere, it may mean everywhere. That errs on the side of
//! seeing too much. A module that is handed on as a value is remembered, and every attribute of something unknown may be one of its own.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use ruff_python_ast::visitor::{Visitor, walk_expr, walk_stmt};
use ruff_python_ast::{
    Arguments, Expr, ExprCall, FStringPart, InterpolatedStringElement, IpyEscapeKind, Mod, Number, Operator,
    Parameters, Stmt, StringLiteral,
};
use ruff_python_parser::{Mode, ParseOptions, parse_unchecked};
use ruff_text_size::Ranged as _;

use crate::meaning::{Meaning, Meanings, add, combine, function, method, path, sum, texts, unknown};

/// How often a program is gone through before what its names mean is taken as known.
const PASSES: usize = 3;
/// Programs within programs: `exec` of a text.
const MAX_DEPTH: usize = 5;
/// Things that are noted of one program.
const MAX_SEEN: usize = 5000;
/// Names that are known, and modules that were handed on.
const MAX_NAMES: usize = 5000;
/// Functions of Python's own that are followed.
const BUILTINS: [&str; 20] = [
    "eval",
    "exec",
    "compile",
    "open",
    "getattr",
    "setattr",
    "delattr",
    "hasattr",
    "vars",
    "globals",
    "locals",
    "dir",
    "__import__",
    "breakpoint",
    "input",
    "chr",
    "str",
    "bytes",
    "bytearray",
    "help",
];
/// Magics of IPython that touch nothing outside.
const HARMLESS_MAGICS: [&str; 8] = ["matplotlib", "precision", "who", "whos", "pprint", "config", "load_ext", "pylab"];
/// Magics whose argument is a program.
const TIMING_MAGICS: [&str; 4] = ["time", "timeit", "prun", "capture"];
/// What opens files by their names.
const OPENERS: [&str; 12] = [
    "builtins.open",
    "io.",
    "os.",
    "pathlib.",
    "shutil.",
    "glob.",
    "codecs.open",
    "pandas.",
    "numpy.",
    "posix.",
    "tarfile.",
    "zipfile.",
];
/// What fetches addresses that it is given.
const FETCHERS: [&str; 14] = [
    "pandas.",
    "numpy.",
    "imageio",
    "skimage.io",
    "lxml.",
    "sklearn.",
    "statsmodels.",
    "duckdb",
    "pyarrow",
    "plotly.",
    "seaborn.",
    "PIL.",
    "matplotlib.",
    "cv2.",
];
const BY_NAME: &str = "takes an attribute by a name";
/// Where programs may work.
const OWN_FILES: [&str; 4] = ["/mnt/data", "/tmp", "/dev/null", "/dev/shm"];

/// Something that a program does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Act {
    /// Imports a module.
    Import(String),
    /// Calls something or hands it on, by its dotted name.
    Refer(String),
    /// Uses an attribute of this name.
    Attribute(String),
    /// Names a file outside of its own.
    Hostfile(String),
    /// Gives an address of the network to something that fetches it.
    Address(String),
    /// Uses IPython's way to a shell.
    Shell(String),
    /// Does something that cannot be known.
    Undecidable(String),
}

impl fmt::Display for Act {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Import(module) => write!(formatter, "imports `{}`", short(module)),
            Self::Refer(name) => write!(formatter, "uses `{}`", short(name)),
            Self::Attribute(name) => write!(formatter, "uses the attribute `{}`", short(name)),
            Self::Hostfile(file) => write!(formatter, "names the file `{}`", short(file)),
            Self::Address(address) => write!(formatter, "fetches `{}`", short(address)),
            Self::Shell(command) => write!(formatter, "runs `{}`", short(command)),
            Self::Undecidable(what) => formatter.write_str(what),
        }
    }
}

fn short(text: &str) -> String {
    text.chars().take(80).map(|one| if one.is_control() { ' ' } else { one }).collect()
}

/// Something that a program does, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// From 1; 0 for the program as a whole.
    pub(crate) line: usize,
    pub(crate) act: Act,
}

/// What the names of an interpreter mean after the programs that it ran.
#[derive(Debug, Clone, Default)]
pub struct Known {
    names: HashMap<String, Meanings>,
    /// Modules of which everything was imported.
    stars: BTreeSet<String>,
    /// What was handed on as a value.
    escaped: BTreeSet<String>,
}

/// Reads a program that runs after others.
pub(crate) fn read(code: &str, known: &mut Known) -> Vec<Seen> {
    let mut reader = Reader { known, seen: Vec::new(), notes: false, depth: 0, starts: Vec::new(), changed: false };
    for _ in 0..PASSES {
        reader.changed = false;
        reader.program(code);
        if !reader.changed {
            break;
        }
    }
    if reader.changed {
        reader.program(code);
    }
    reader.notes = true;
    reader.program(code);
    reader.seen
}

struct Reader<'k> {
    known: &'k mut Known,
    seen: Vec<Seen>,
    /// Whether this is the pass that notes what is done.
    notes: bool,
    depth: usize,
    /// Where the lines of the outermost program begin.
    starts: Vec<usize>,
    changed: bool,
}

impl Reader<'_> {
    fn program(&mut self, code: &str) {
        if self.depth == 0 {
            self.starts = std::iter::once(0).chain(code.match_indices('\n').map(|(at, _)| at + 1)).collect();
        }
        let parsed = parse_unchecked(code, ParseOptions::from(Mode::Ipython));
        if let Some(error) = parsed.errors().first() {
            // The interpreter may understand what this parser does not.
            self.note(
                error.location.start().to_usize(),
                Act::Undecidable(format!("is not understood: {}", error.error)),
            );
        }
        if let Mod::Module(module) = parsed.syntax() {
            self.visit_body(&module.body);
        }
    }

    /// A program within the program.
    fn inner(&mut self, code: &str, at: usize) {
        if self.depth >= MAX_DEPTH {
            return self.note(at, Act::Undecidable("runs a program in a program in a program".to_owned()));
        }
        self.depth += 1;
        self.program(code);
        self.depth -= 1;
    }

    fn note(&mut self, at: usize, act: Act) {
        if !self.notes || self.seen.len() > MAX_SEEN {
            return;
        }
        // Places in a program within the program are not places in this one.
        let line = if self.depth == 0 { self.starts.partition_point(|start| *start <= at) } else { 0 };
        let act =
            if self.seen.len() == MAX_SEEN { Act::Undecidable("does too much to be read".to_owned()) } else { act };
        self.seen.push(Seen { line, act });
    }

    fn undecidable(&mut self, at: usize, what: &str) {
        self.note(at, Act::Undecidable(what.to_owned()));
    }

    /// The texts that something may be; it is undecidable if it may be something else.
    fn known_texts(&mut self, meanings: &Meanings, at: usize, what: &str) -> Vec<String> {
        let (texts, is_all) = texts(meanings);
        if !is_all {
            self.undecidable(at, &format!("{what} that is put together while it runs"));
        }
        texts
    }

    /// Gives a name a meaning, beside those that it has.
    fn bind(&mut self, name: &str, meanings: Meanings) {
        if self.known.names.len() >= MAX_NAMES && !self.known.names.contains_key(name) {
            return;
        }
        self.changed |= add(self.known.names.entry(name.to_owned()).or_default(), meanings);
    }

    fn bind_target(&mut self, target: &Expr, value: Option<&Expr>, meanings: &Meanings) {
        match target {
            Expr::Name(name) => self.bind(&name.id, meanings.clone()),
            Expr::Starred(starred) => self.bind_target(&starred.value, None, &unknown()),
            Expr::Tuple(_) | Expr::List(_) => {
                let targets = elements(target);
                let values = value.map(elements).filter(|values| values.len() == targets.len()).unwrap_or_default();
                for (index, target) in targets.iter().enumerate() {
                    let value = values.get(index).copied();
                    let meanings = value.map_or_else(unknown, |value| self.value(value));
                    self.bind_target(target, value, &meanings);
                }
            }
            // A place in an object: whoever reads it there gets it from those that were handed on.
            other => {
                self.escape(meanings);
                self.visit_expr(other);
            }
        }
    }

    /// Something is used as a value: it may be reached from anywhere now.
    fn escape(&mut self, meanings: &Meanings) {
        for meaning in meanings {
            if let Meaning::Path(name) | Meaning::Table(name) = meaning
                && self.known.escaped.len() < MAX_NAMES
            {
                self.changed |= self.known.escaped.insert(name.clone());
            }
        }
    }

    fn name(&mut self, name: &str, at: usize) -> Meanings {
        if name.starts_with("__") {
            self.note(at, Act::Attribute(name.to_owned()));
        }
        let mut meanings = self.known.names.get(name).cloned().unwrap_or_default();
        if BUILTINS.contains(&name) {
            meanings.insert(Meaning::Path(format!("builtins.{name}")));
        } else if name == "__builtins__" {
            meanings.insert(Meaning::Path("builtins".to_owned()));
        } else if name == "get_ipython" {
            meanings.insert(Meaning::Path("get_ipython".to_owned()));
        } else if meanings.is_empty() {
            let stars = self.known.stars.iter().map(|module| Meaning::Path(format!("{module}.{name}")));
            meanings.extend(stars);
        }
        if meanings.is_empty() {
            meanings = unknown();
        }
        self.refer(&meanings, at);
        meanings
    }

    /// Notes what may be meant, if it is more than a module.
    fn refer(&mut self, meanings: &Meanings, at: usize) {
        for meaning in meanings {
            if let Meaning::Path(name) = meaning
                && (name.contains('.') || name == "get_ipython")
            {
                self.note(at, Act::Refer(name.replace("()", "")));
            }
        }
    }

    /// An attribute of something, by any way.
    fn attribute(&mut self, of: &Meanings, name: &str, at: usize) -> Meanings {
        self.note(at, Act::Attribute(name.to_owned()));
        let mut meanings = Meanings::new();
        for meaning in of {
            match meaning {
                Meaning::Path(of) if name == "__dict__" => {
                    meanings.insert(Meaning::Table(of.clone()));
                }
                Meaning::Path(of) => {
                    meanings.insert(Meaning::Path(format!("{of}.{name}")));
                }
                Meaning::Unknown => {
                    // It may be of any module that was handed on; if no rule names it there, nothing comes of it.
                    let escaped: Vec<String> = self.known.escaped.iter().map(|of| format!("{of}.{name}")).collect();
                    for name in escaped {
                        self.note(at, Act::Refer(name.replace("()", "")));
                    }
                    meanings.insert(Meaning::Unknown);
                }
                _ => {
                    meanings.insert(Meaning::Unknown);
                }
            }
        }
        self.refer(&meanings, at);
        meanings
    }

    /// An entry of something.
    fn entry(&mut self, of: &Meanings, key: &Meanings, at: usize) -> Meanings {
        let mut meanings = Meanings::new();
        for meaning in of {
            let table = match meaning {
                Meaning::Table(table) => table.clone(),
                Meaning::Path(path) if path == "builtins" => path.clone(),
                Meaning::Path(path) if path == "sys.modules" => {
                    for module in self.known_texts(key, at, "takes a module by a name") {
                        self.note(at, Act::Import(module.clone()));
                        meanings.insert(Meaning::Path(module));
                    }
                    continue;
                }
                Meaning::Names => {
                    for name in self.known_texts(key, at, "takes a name") {
                        let found = self.name(&name, at);
                        add(&mut meanings, found);
                    }
                    continue;
                }
                _ => {
                    meanings.insert(Meaning::Unknown);
                    continue;
                }
            };
            for name in self.known_texts(key, at, BY_NAME) {
                let found = self.attribute(&path(&table), &name, at);
                add(&mut meanings, found);
            }
        }
        meanings
    }

    /// Evaluates an expression, and notes what is done in it.
    fn value(&mut self, expr: &Expr) -> Meanings {
        let at = start_of(expr);
        match expr {
            Expr::Name(name) => self.name(&name.id, at),
            Expr::StringLiteral(text) => Meanings::from([Meaning::Text(text.value.to_str().to_owned())]),
            Expr::BytesLiteral(bytes) => Meanings::from([Meaning::Bytes(bytes.value.bytes().collect())]),
            Expr::NumberLiteral(number) => match &number.value {
                Number::Int(number) => number.as_i64().map_or_else(unknown, |number| [Meaning::Number(number)].into()),
                _ => unknown(),
            },
            Expr::FString(_) => self.fstring(expr),
            Expr::Attribute(attribute) => {
                let of = self.value(&attribute.value);
                self.attribute(&of, &attribute.attr, at)
            }
            Expr::Subscript(subscript) => {
                let of = self.value(&subscript.value);
                if let Some(turned) = turned(&of, &subscript.slice) {
                    return turned;
                }
                let key = self.value(&subscript.slice);
                self.entry(&of, &key, at)
            }
            Expr::Call(call) => self.call(call, at),
            Expr::BinOp(operation) => {
                let (left, right) = (self.value(&operation.left), self.value(&operation.right));
                match operation.op {
                    Operator::Add => combine(&left, &right, sum),
                    _ => unknown(),
                }
            }
            Expr::Named(named) => {
                let meanings = self.value(&named.value);
                self.bind_target(&named.target, Some(&named.value), &meanings);
                meanings
            }
            Expr::If(choice) => {
                self.visit_expr(&choice.test);
                let mut meanings = self.value(&choice.body);
                let other = self.value(&choice.orelse);
                add(&mut meanings, other);
                meanings
            }
            Expr::BoolOp(operation) => {
                let mut meanings = Meanings::new();
                for value in &operation.values {
                    let value = self.value(value);
                    add(&mut meanings, value);
                }
                meanings
            }
            Expr::Lambda(lambda) => {
                if let Some(parameters) = &lambda.parameters {
                    self.parameters(parameters);
                }
                self.visit_expr(&lambda.body);
                unknown()
            }
            Expr::ListComp(_) | Expr::SetComp(_) | Expr::DictComp(_) | Expr::Generator(_) => {
                walk_expr(self, expr);
                unknown()
            }
            Expr::Starred(starred) => self.value(&starred.value),
            Expr::Await(waited) => self.value(&waited.value),
            Expr::IpyEscapeCommand(command) => {
                self.escape_command(command.kind, &command.value, at);
                unknown()
            }
            other => {
                walk_expr(self, other);
                unknown()
            }
        }
    }

    fn fstring(&mut self, expr: &Expr) -> Meanings {
        let Expr::FString(fstring) = expr else { return unknown() };
        let mut text = Meanings::from([Meaning::Text(String::new())]);
        for part in &fstring.value {
            match part {
                FStringPart::Literal(literal) => text = combine(&text, &literal_of(literal), sum),
                FStringPart::FString(inner) => {
                    for element in &inner.elements {
                        let next = match element {
                            InterpolatedStringElement::Literal(literal) => {
                                [Meaning::Text(literal.value.to_string())].into()
                            }
                            InterpolatedStringElement::Interpolation(element) => {
                                if let Some(spec) = &element.format_spec {
                                    for element in &spec.elements {
                                        self.visit_interpolated_string_element(element);
                                    }
                                }
                                self.value(&element.expression)
                            }
                        };
                        text = combine(&text, &next, sum);
                    }
                }
            }
        }
        text
    }

    fn call(&mut self, call: &ExprCall, at: usize) -> Meanings {
        let callee = match &*call.func {
            Expr::Attribute(attribute) => {
                let of = self.value(&attribute.value);
                if let Some(meanings) = self.method(&of, &attribute.attr, &call.arguments, at) {
                    return meanings;
                }
                self.attribute(&of, &attribute.attr, at)
            }
            other => self.value(other),
        };
        let arguments: Vec<Meanings> = call.arguments.args.iter().map(|argument| self.value(argument)).collect();
        for keyword in &call.arguments.keywords {
            let value = self.value(&keyword.value);
            self.escape(&value);
            if let Some(name) = &keyword.arg {
                self.note(at, Act::Attribute(name.to_string()));
            }
            self.files_and_addresses(&callee, &value, at);
        }
        for argument in &arguments {
            self.files_and_addresses(&callee, argument, at);
        }
        let mut result = Meanings::new();
        let mut is_transparent = false;
        for meaning in &callee {
            let found = match meaning {
                Meaning::Path(name) => {
                    let (found, transparent) = self.function(&name.replace("()", ""), &arguments, at);
                    is_transparent |= transparent;
                    found
                }
                Meaning::Getter(names) => {
                    let mut of = arguments.first().cloned().unwrap_or_else(unknown);
                    for name in names.split('.') {
                        of = self.attribute(&of, name, at);
                    }
                    is_transparent = true;
                    of
                }
                _ => unknown(),
            };
            add(&mut result, found);
        }
        if !is_transparent {
            for argument in &arguments {
                self.escape(argument);
            }
            if arguments.iter().flatten().any(|meaning| matches!(meaning, Meaning::Path(_) | Meaning::Table(_))) {
                // It may give back what it was given.
                result.insert(Meaning::Unknown);
            }
        }
        if result.is_empty() { unknown() } else { result }
    }

    /// A call of a function that is known. Returns what comes of it, and whether its arguments go nowhere else.
    fn function(&mut self, name: &str, arguments: &[Meanings], at: usize) -> (Meanings, bool) {
        let argument = |index: usize| arguments.get(index).cloned().unwrap_or_default();
        match name {
            "builtins.__import__" | "importlib.__import__" | "importlib.import_module" => {
                let mut meanings = Meanings::new();
                for module in self.known_texts(&argument(0), at, "imports a module by a name") {
                    self.note(at, Act::Import(module.clone()));
                    let top = module.split('.').next().unwrap_or_default().to_owned();
                    meanings.insert(Meaning::Path(if name.ends_with("import_module") { module } else { top }));
                }
                (meanings, true)
            }
            "builtins.getattr" | "builtins.hasattr" | "inspect.getattr_static" => {
                let mut meanings = argument(2);
                for name in self.known_texts(&argument(1), at, BY_NAME) {
                    let found = self.attribute(&argument(0), &name, at);
                    add(&mut meanings, found);
                }
                (meanings, true)
            }
            "builtins.setattr" | "builtins.delattr" => {
                for name in self.known_texts(&argument(1), at, "sets an attribute by a name") {
                    self.note(at, Act::Attribute(name));
                }
                (unknown(), false)
            }
            "builtins.eval" | "builtins.exec" => {
                for program in self.known_texts(&argument(0), at, "runs a text") {
                    self.inner(&program, at);
                }
                (unknown(), true)
            }
            "builtins.vars" if arguments.is_empty() => (Meanings::from([Meaning::Names]), true),
            "builtins.vars" => {
                let tables = argument(0).into_iter().map(|meaning| match meaning {
                    Meaning::Path(of) => Meaning::Table(of),
                    _ => Meaning::Unknown,
                });
                (tables.collect(), true)
            }
            "builtins.globals" | "builtins.locals" => (Meanings::from([Meaning::Names]), true),
            "operator.attrgetter" | "operator.methodcaller" => {
                let names = self.known_texts(&argument(0), at, BY_NAME);
                (names.into_iter().map(Meaning::Getter).collect(), true)
            }
            // The function, with some arguments given.
            "functools.partial" | "functools.wraps" | "functools.lru_cache" | "functools.cache" => {
                arguments.iter().skip(1).for_each(|argument| self.escape(argument));
                (argument(0), true)
            }
            "importlib.reload" => (argument(0), true),
            _ => {
                let folded = (arguments.len() <= 4)
                    .then(|| {
                        let ones: Option<Vec<Meaning>> = arguments.iter().map(only).collect();
                        function(name, &ones?)
                    })
                    .flatten();
                match folded {
                    Some(folded) => (Meanings::from([folded]), true),
                    None => (path(format!("{name}()")), false),
                }
            }
        }
    }

    /// A call of a method that is known by its object. `None` if it is none.
    fn method(&mut self, of: &Meanings, name: &str, arguments: &Arguments, at: usize) -> Option<Meanings> {
        let first = arguments.args.first();
        match name {
            "get" | "__getitem__" | "pop" | "setdefault" if of.iter().any(is_table) => {
                let key = first.map_or_else(unknown, |key| self.value(key));
                return Some(self.entry(of, &key, at));
            }
            "__getattribute__" | "__getattr__" => {
                self.note(at, Act::Attribute(name.to_owned()));
                let name = first.map_or_else(unknown, |name| self.value(name));
                let mut meanings = Meanings::new();
                for name in self.known_texts(&name, at, BY_NAME) {
                    let found = self.attribute(of, &name, at);
                    add(&mut meanings, found);
                }
                return Some(meanings);
            }
            "format" | "format_map" => {
                // Fields of a format reach into what they are given.
                for text in texts(of).0 {
                    for field in text.split('{').skip(1).filter_map(|rest| rest.split('}').next()) {
                        for attribute in field.split(['.', '[', ']']).skip(1) {
                            self.note(at, Act::Attribute(attribute.to_owned()));
                        }
                    }
                }
            }
            "join" => {
                let parts = first.map(elements).unwrap_or_default();
                if !parts.is_empty() {
                    let mut text: Option<Meanings> = None;
                    for part in parts {
                        let part = self.value(part);
                        text = Some(match text {
                            None => part,
                            Some(before) => combine(&combine(&before, of, sum), &part, sum),
                        });
                    }
                    return text;
                }
            }
            _ => {}
        }
        if of.iter().any(is_table) {
            self.undecidable(at, "goes through all names of a module");
        }
        let texts_only = of.iter().all(|meaning| matches!(meaning, Meaning::Text(_) | Meaning::Bytes(_)));
        if texts_only && !of.is_empty() && arguments.keywords.is_empty() {
            let known: Vec<Meanings> = arguments.args.iter().map(|argument| self.value(argument)).collect();
            let ones: Option<Vec<Meaning>> = known.iter().map(only).collect();
            self.note(at, Act::Attribute(name.to_owned()));
            let folded = ones.map(|ones| {
                let made = of.iter().map(|meaning| method(meaning, name, &ones).unwrap_or(Meaning::Unknown));
                made.collect::<Meanings>()
            });
            return Some(folded.unwrap_or_else(unknown));
        }
        None
    }

    fn files_and_addresses(&mut self, callee: &Meanings, argument: &Meanings, at: usize) {
        let is_of = |list: &[&str]| {
            callee.iter().any(|meaning| match meaning {
                Meaning::Path(name) => list.iter().any(|beginning| name.starts_with(beginning)),
                _ => false,
            })
        };
        for meaning in argument {
            let Meaning::Text(text) = meaning else { continue };
            let outside = text.starts_with('/') && !OWN_FILES.iter().any(|own| text.starts_with(own));
            if (outside || text.starts_with('~') || text.contains("..")) && is_of(&OPENERS) {
                self.note(at, Act::Hostfile(text.clone()));
            }
            let scheme = text.split_once("://").map(|(scheme, _)| scheme);
            let is_address = scheme.is_some_and(|scheme| {
                !scheme.is_empty()
                    && scheme != "file"
                    && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+')
            });
            if is_address && is_of(&FETCHERS) {
                self.note(at, Act::Address(text.clone()));
            }
            if text.starts_with("file:") && is_of(&FETCHERS) {
                self.note(at, Act::Hostfile(text.clone()));
            }
        }
    }

    fn parameters(&mut self, parameters: &Parameters) {
        for parameter in parameters.iter() {
            let mut meanings = unknown();
            if let Some(default) = parameter.default() {
                let default = self.value(default);
                self.escape(&default);
                add(&mut meanings, default);
            }
            self.bind(parameter.name(), meanings);
        }
    }

    fn escape_command(&mut self, kind: IpyEscapeKind, value: &str, at: usize) {
        let mut words = value.trim().splitn(2, char::is_whitespace);
        let (magic, rest) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        match kind {
            IpyEscapeKind::Help | IpyEscapeKind::Help2 => {}
            IpyEscapeKind::Magic | IpyEscapeKind::Magic2 if HARMLESS_MAGICS.contains(&magic) => {}
            IpyEscapeKind::Magic | IpyEscapeKind::Magic2 if TIMING_MAGICS.contains(&magic) => {
                // What it times is a program; its options stand before it.
                let mut rest = rest.trim_start();
                while rest.starts_with('-') {
                    rest = rest.split_once(char::is_whitespace).map_or("", |(_, rest)| rest.trim_start());
                    if rest.starts_with(|one: char| one.is_ascii_digit()) {
                        rest = rest.split_once(char::is_whitespace).map_or("", |(_, rest)| rest.trim_start());
                    }
                }
                self.inner(rest, at);
            }
            kind => self.note(at, Act::Shell(format!("{}{value}", kind.as_str()))),
        }
    }

    fn import(&mut self, statement: &Stmt) {
        match statement {
            Stmt::Import(import) => {
                for alias in &import.names {
                    let at = alias.range.start().to_usize();
                    self.note(at, Act::Import(alias.name.to_string()));
                    match &alias.asname {
                        Some(name) => self.bind(name, path(alias.name.as_str())),
                        None => {
                            let top = alias.name.split('.').next().unwrap_or_default();
                            self.bind(top, path(top));
                        }
                    }
                }
            }
            Stmt::ImportFrom(import) => {
                let at = import.range.start().to_usize();
                let module = import.module.as_ref().map(ToString::to_string).unwrap_or_default();
                if import.level > 0 {
                    self.note(at, Act::Import(format!(".{module}")));
                    return;
                }
                self.note(at, Act::Import(module.clone()));
                for alias in &import.names {
                    if &*alias.name == "*" {
                        self.changed |= self.known.stars.insert(module.clone());
                        self.changed |= self.known.escaped.insert(module.clone());
                        continue;
                    }
                    let meanings = path(format!("{module}.{}", alias.name));
                    self.refer(&meanings, at);
                    self.bind(alias.asname.as_ref().unwrap_or(&alias.name), meanings);
                }
            }
            _ => {}
        }
    }
}

impl<'a> Visitor<'a> for Reader<'_> {
    fn visit_expr(&mut self, expr: &'a Expr) {
        let meanings = self.value(expr);
        if meanings.iter().any(is_table) {
            self.undecidable(start_of(expr), "hands all names of a module on");
        }
        self.escape(&meanings);
    }

    fn visit_stmt(&mut self, statement: &'a Stmt) {
        match statement {
            Stmt::Import(_) | Stmt::ImportFrom(_) => self.import(statement),
            Stmt::Assign(assign) => {
                let meanings = self.value(&assign.value);
                self.escape(&meanings);
                for target in &assign.targets {
                    self.bind_target(target, Some(&assign.value), &meanings);
                }
            }
            Stmt::AnnAssign(assign) => {
                self.visit_expr(&assign.annotation);
                if let Some(value) = &assign.value {
                    let meanings = self.value(value);
                    self.escape(&meanings);
                    self.bind_target(&assign.target, Some(value), &meanings);
                }
            }
            Stmt::AugAssign(assign) => {
                self.visit_expr(&assign.value);
                self.bind_target(&assign.target, None, &unknown());
            }
            Stmt::For(each) => {
                let ones = elements(&each.iter);
                self.visit_expr(&each.iter);
                for one in &ones {
                    let meanings = self.value(one);
                    self.bind_target(&each.target, Some(one), &meanings);
                }
                if ones.is_empty() {
                    self.bind_target(&each.target, None, &unknown());
                }
                self.visit_body(&each.body);
                self.visit_body(&each.orelse);
            }
            Stmt::With(with) => {
                for item in &with.items {
                    let meanings = self.value(&item.context_expr);
                    self.escape(&meanings);
                    if let Some(target) = &item.optional_vars {
                        self.bind_target(target, None, &meanings);
                    }
                }
                self.visit_body(&with.body);
            }
            Stmt::FunctionDef(function) => {
                function.decorator_list.iter().for_each(|decorator| self.visit_expr(&decorator.expression));
                self.parameters(&function.parameters);
                self.bind(&function.name, unknown());
                self.visit_body(&function.body);
            }
            Stmt::ClassDef(_) => walk_stmt(self, statement),
            Stmt::IpyEscapeCommand(command) => {
                self.escape_command(command.kind, &command.value, command.range.start().to_usize());
            }
            other => walk_stmt(self, other),
        }
    }

    fn visit_comprehension(&mut self, comprehension: &'a ruff_python_ast::Comprehension) {
        let ones = elements(&comprehension.iter);
        self.visit_expr(&comprehension.iter);
        for one in &ones {
            let meanings = self.value(one);
            self.bind_target(&comprehension.target, Some(one), &meanings);
        }
        if ones.is_empty() {
            self.bind_target(&comprehension.target, None, &unknown());
        }
        comprehension.ifs.iter().for_each(|condition| self.visit_expr(condition));
    }
}

fn is_table(meaning: &Meaning) -> bool {
    matches!(meaning, Meaning::Table(_) | Meaning::Names)
        || matches!(meaning, Meaning::Path(name) if name == "sys.modules")
}

fn only(meanings: &Meanings) -> Option<Meaning> {
    let mut all = meanings.iter();
    let first = all.next()?.clone();
    (all.next().is_none() && first != Meaning::Unknown).then_some(first)
}

fn start_of(expr: &Expr) -> usize {
    expr.range().start().to_usize()
}

fn literal_of(literal: &StringLiteral) -> Meanings {
    Meanings::from([Meaning::Text(literal.value.to_string())])
}

/// The elements of a list or a tuple that is written out.
fn elements(expr: &Expr) -> Vec<&Expr> {
    match expr {
        Expr::List(list) => list.elts.iter().collect(),
        Expr::Tuple(tuple) => tuple.elts.iter().collect(),
        _ => Vec::new(),
    }
}

/// A text from its end to its beginning: `"metsys"[::-1]`.
fn turned(of: &Meanings, slice: &Expr) -> Option<Meanings> {
    let Expr::Slice(slice) = slice else { return None };
    let step = match slice.step.as_deref() {
        Some(Expr::UnaryOp(step)) => &step.operand,
        _ => return Some(unknown()),
    };
    let is_one = matches!(&**step, Expr::NumberLiteral(number) if matches!(&number.value, Number::Int(one) if one.as_i64() == Some(1)));
    if !is_one || slice.lower.is_some() || slice.upper.is_some() {
        return Some(unknown());
    }
    Some(
        of.iter()
            .map(|meaning| match meaning {
                Meaning::Text(text) => Meaning::Text(text.chars().rev().collect()),
                _ => Meaning::Unknown,
            })
            .collect(),
    )
}
