//! Reading a program: what it does, as far as that can be seen.
//!
//! Names are followed without regard to order and scope: what a name may mean anywhere, it may mean everywhere, and so may an attribute.
//! That errs on the side of seeing too much. A module that is handed on as a value is remembered, and every attribute of something
//! unknown may be one of its own.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

use ruff_python_ast::visitor::{
    Visitor, walk_except_handler, walk_expr, walk_pattern, walk_pattern_keyword, walk_stmt,
};
use ruff_python_ast::{
    CmpOp, Comprehension, ConversionFlag, ExceptHandler, Expr, FStringPart, InterpolatedElement,
    InterpolatedStringElement, IpyEscapeKind, Mod, Number, Operator, Parameters, Pattern, PatternKeyword, Stmt,
    UnaryOp,
};
use ruff_python_parser::{Mode, ParseOptions, parse_unchecked};
use ruff_text_size::Ranged as _;

use crate::act::{Act, Seen};
use crate::canonical::canonical;
use crate::ipython::{Magic, automatic, has_prompts, is_plain, magic};
use crate::known::{Function, Known};
use crate::meaning::{Meaning, Meanings, add, attribute_of, combine, path, sum, texts, unknown};
use crate::nesting::is_too_deep;

/// How often a program is gone through before what its names mean has to be known.
const PASSES: usize = 8;
/// After so many of them names take no new meanings: they are unknown instead.
const FREE_PASSES: usize = 2;
/// Programs within programs: `exec` of a text.
const MAX_DEPTH: usize = 5;
/// Different things that are noted of one program.
const MAX_SEEN: usize = 5000;
/// What reading a program may take, in nanoseconds of a slow machine: about a tenth of a second.
const FUEL: usize = 100_000_000;
/// What a step takes besides the bytes that it looks at and makes.
const STEP: usize = 100;
/// What it takes to look something up, or to remember it.
const LOOK: usize = 700;
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
/// What takes names, programs or modules, so that nothing is known of it once it is handed on.
const TAKERS: [&str; 22] = [
    "builtins",
    "builtins.getattr",
    "builtins.setattr",
    "builtins.vars",
    "builtins.globals",
    "builtins.locals",
    "builtins.eval",
    "builtins.exec",
    "builtins.compile",
    "builtins.__import__",
    "importlib",
    "importlib.__import__",
    "importlib.import_module",
    "inspect.getattr_static",
    "numpy.load",
    "operator",
    "operator.attrgetter",
    "operator.methodcaller",
    "sys",
    "timeit.timeit",
    "timeit.repeat",
    "timeit.Timer",
];
/// Attributes by which everything can be reached, whosever they are.
const REACHING: [&str; 9] = [
    "__getattribute__",
    "__getattr__",
    "__globals__",
    "__subclasses__",
    "f_builtins",
    "f_globals",
    "f_locals",
    // What some libraries call Python's own functions.
    "bltns",
    "builtin_mod",
];
pub(crate) const BY_NAME: &str = "takes an attribute by a name";
const ALL_NAMES: &str = "takes all names of a module";

/// Reads a program that runs after others.
pub(crate) fn read(code: &str, known: &mut Known) -> Vec<Seen> {
    let mut reader = Reader {
        known,
        seen: Vec::new(),
        noted: HashSet::new(),
        depth: 0,
        is_quiet: false,
        starts: std::iter::once(0).chain(code.match_indices('\n').map(|(at, _)| at + 1)).collect(),
        changed: false,
        settled: false,
        is_class: false,
        defines: false,
        done: HashSet::new(),
        is_earlier: false,
        before: HashSet::new(),
        fuel: FUEL,
    };
    if is_too_deep(code) {
        reader.known.set_lost(true);
        reader.undecidable(0, "nests too deeply to be read");
        return reader.seen;
    }
    let parse = |code: &str| parse_unchecked(code, ParseOptions::from(Mode::Ipython));
    let parsed = parse(code);
    let functions = reader.known.take_functions();
    let earlier: Vec<_> = functions.iter().map(|function| parse(&function.code)).collect();
    let mut defined = Vec::new();
    reader.known.begin();
    for pass in 0..PASSES {
        reader.seen.clear();
        reader.noted.clear();
        reader.changed = false;
        reader.settled = pass >= FREE_PASSES;
        defined.clear();
        if let Some(error) = parsed.errors().first() {
            // The interpreter may understand what this parser does not.
            let what = format!("is not understood: {}", error.error);
            reader.undecidable(error.location.start().to_usize(), &what);
        }
        if let Some(line) = automatic(code) {
            reader.escape_command(IpyEscapeKind::Magic, line, 0);
        }
        if let Mod::Module(module) = parsed.syntax() {
            if has_prompts(code, module) {
                reader.undecidable(0, "has prompts, which IPython takes out of its texts");
            }
            for statement in &module.body {
                (reader.defines, reader.done) = (false, HashSet::new());
                reader.visit_stmt(statement);
                if reader.defines {
                    let code = &code[statement.range().start().to_usize()..statement.range().end().to_usize()];
                    defined.push(Function { code: code.to_owned(), done: std::mem::take(&mut reader.done) });
                }
            }
        }
        // What the functions of earlier programs do depends on what names mean now.
        for (function, parsed) in functions.iter().zip(&earlier) {
            if let Mod::Module(module) = parsed.syntax() {
                (reader.depth, reader.is_earlier, reader.before) = (1, true, function.done.clone());
                reader.visit_body(&module.body);
                (reader.depth, reader.is_earlier, reader.before) = (0, false, HashSet::new());
            }
        }
        if reader.fuel == 0 || !reader.changed {
            break;
        }
    }
    if reader.fuel == 0 || reader.changed {
        reader.known.set_lost(true);
        reader.undecidable(0, "is too much to be followed");
    }
    reader.known.keep_functions(functions.into_iter().chain(defined));
    if reader.known.is_lost() {
        reader.undecidable(0, "comes after programs that could not be read or remembered");
    }
    reader.seen
}

/// What is done, in few bytes.
fn hash(act: &Act) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(act)
}

pub(crate) struct Reader<'k> {
    pub(crate) known: &'k mut Known,
    seen: Vec<Seen>,
    noted: HashSet<Act>,
    depth: usize,
    /// Whether the program that is read may be none: then it does nothing.
    is_quiet: bool,
    /// Where the lines of the outermost program begin.
    starts: Vec<usize>,
    /// Whether something new was learned in this pass.
    changed: bool,
    /// Whether names take no new meanings any more.
    settled: bool,
    /// Whether what is bound are attributes of a class.
    is_class: bool,
    /// Whether what is read defines something that may run later.
    defines: bool,
    /// What is done by the statement that is read.
    done: HashSet<u64>,
    /// Whether what is read is a function of an earlier program.
    is_earlier: bool,
    /// What is not noted again: it was when its program was judged.
    before: HashSet<u64>,
    fuel: usize,
}

impl Reader<'_> {
    /// A program within the program.
    pub(crate) fn inner(&mut self, code: &str, at: usize) {
        if self.depth >= MAX_DEPTH {
            return self.undecidable(at, "runs a program in a program in a program");
        }
        if is_too_deep(code) {
            return self.undecidable(at, "nests too deeply to be read");
        }
        self.spend(LOOK + code.len() * 50);
        let parsed = parse_unchecked(code, ParseOptions::from(Mode::Ipython));
        self.depth += 1;
        if let Some(error) = parsed.errors().first().filter(|_| !self.is_quiet) {
            let what = format!("is not understood: {}", error.error);
            self.undecidable(at, &what);
        }
        if let Mod::Module(module) = parsed.syntax() {
            self.visit_body(&module.body);
        }
        self.depth -= 1;
    }

    /// A text that something may take for an expression.
    pub(crate) fn formula(&mut self, text: &str, at: usize) {
        let before = std::mem::replace(&mut self.is_quiet, true);
        self.inner(text, at);
        self.is_quiet = before;
    }

    pub(crate) fn note(&mut self, at: usize, act: Act) {
        self.spend(STEP);
        let act_hash = hash(&act);
        self.done.insert(act_hash);
        // What may be done to a module depends on what is handed on now.
        let depends = matches!(act, Act::Reach(_) | Act::IfModule(_));
        let is_old = self.noted.contains(&act) || (!depends && self.before.contains(&act_hash));
        if is_old || self.seen.len() > MAX_SEEN {
            return;
        }
        self.spend(LOOK);
        // Places in a program within the program are not places in this one.
        let line = if self.depth == 0 { self.starts.partition_point(|start| *start <= at) } else { 0 };
        if self.seen.len() == MAX_SEEN {
            let act = Act::Undecidable("does too much to be read".to_owned());
            return self.seen.push(Seen { line: 0, act, is_earlier: false });
        }
        self.noted.insert(act.clone());
        self.seen.push(Seen { line, act, is_earlier: self.is_earlier });
    }

    /// Notes that a module is imported.
    pub(crate) fn note_import(&mut self, module: &str, at: usize) {
        if self.known.wrote(module.split('.').next().unwrap_or_default()) {
            self.undecidable(at, "imports what may be a file of its own");
        }
        self.note(at, Act::Import(module.to_owned()));
    }

    pub(crate) fn undecidable(&mut self, at: usize, what: &str) {
        self.note(at, Act::Undecidable(what.to_owned()));
    }

    /// Takes from what may still be done. Whether nothing is left.
    pub(crate) fn spend(&mut self, cost: usize) -> bool {
        self.fuel = self.fuel.saturating_sub(cost);
        self.fuel == 0
    }

    /// The texts that something may be; it is undecidable if it may be something else.
    pub(crate) fn known_texts(&mut self, meanings: &Meanings, at: usize, what: &str) -> Vec<String> {
        let (texts, is_all) = texts(meanings);
        if !is_all {
            self.undecidable(at, &format!("{what} that is put together while it runs"));
        }
        texts
    }

    /// Gives a name a meaning, beside those that it has.
    pub(crate) fn bind(&mut self, name: &str, meanings: &Meanings) {
        self.spend(LOOK + meanings.iter().map(Meaning::size).sum::<usize>());
        self.changed |= self.known.bind(name, meanings, self.settled);
        let kept = self.known.of_name(name);
        let forgotten = |meaning: &&Meaning| is_table(meaning) && !kept.is_some_and(|kept| kept.contains(meaning));
        let tables: Meanings = meanings.iter().filter(forgotten).cloned().collect();
        self.escape(&tables, 0);
        if self.is_class {
            self.bind_attribute(name, meanings);
        }
    }

    pub(crate) fn bind_attribute(&mut self, name: &str, meanings: &Meanings) {
        self.spend(LOOK);
        self.changed |= self.known.bind_attribute(name, meanings, self.settled);
    }

    /// `target = value`
    fn assign(&mut self, target: &Expr, value: &Expr) {
        let (targets, values) = (elements(target), elements(value));
        let is_pairs = targets.len() == values.len() && !values.iter().any(|value| value.is_starred_expr());
        if !targets.is_empty() && is_pairs {
            targets.iter().zip(values).for_each(|(target, value)| self.assign(target, value));
        } else {
            let meanings = self.value(value);
            self.bind_target(target, &meanings, value.range().start().to_usize());
        }
    }

    fn bind_target(&mut self, target: &Expr, meanings: &Meanings, at: usize) {
        match target {
            Expr::Name(name) => self.bind(&name.id, meanings),
            Expr::Starred(starred) => {
                self.escape(meanings, at);
                self.bind_target(&starred.value, &unknown(), at);
            }
            Expr::Tuple(_) | Expr::List(_) => {
                self.escape(meanings, at);
                elements(target).into_iter().for_each(|target| self.bind_target(target, &unknown(), at));
            }
            Expr::Attribute(attribute) => {
                self.escape(meanings, at);
                self.visit_expr(target);
                self.bind_attribute(&attribute.attr, meanings);
            }
            Expr::Subscript(subscript) => {
                self.escape(meanings, at);
                let (of, key) = (self.value(&subscript.value), self.value(&subscript.slice));
                self.escape(&key, at);
                for table in of.iter().filter(|of| is_table(of)) {
                    match table {
                        Meaning::Names => {
                            for name in self.known_texts(&key, at, "sets a name") {
                                self.bind(&name, meanings);
                            }
                        }
                        Meaning::Table(_) => {
                            for name in self.known_texts(&key, at, "sets an attribute by a name") {
                                self.note(at, Act::Attribute(name.clone()));
                                self.bind_attribute(&name, meanings);
                            }
                        }
                        _ => self.undecidable(at, "changes what modules are"),
                    }
                }
            }
            other => {
                self.escape(meanings, at);
                self.visit_expr(other);
            }
        }
    }

    /// Something is used as a value: it may be reached from anywhere now.
    pub(crate) fn escape(&mut self, meanings: &Meanings, at: usize) {
        for meaning in meanings {
            match meaning {
                Meaning::Table(of) if of == "?" => self.note(at, Act::IfModule(ALL_NAMES.to_owned())),
                of if is_table(of) => self.undecidable(at, ALL_NAMES),
                Meaning::Path(name) if TAKERS.contains(&canonical(name)) => {
                    self.undecidable(at, &format!("hands `{}` on", canonical(name)));
                }
                Meaning::Path(name) => {
                    self.spend(LOOK);
                    self.changed |= self.known.hand_on(name);
                }
                _ => {}
            }
        }
    }

    fn name(&mut self, name: &str, at: usize) -> Meanings {
        if name.starts_with("__") {
            self.note(at, Act::Attribute(name.to_owned()));
        }
        let mut meanings = self.known.of_name(name).cloned().unwrap_or_default();
        self.spend(LOOK * (1 + self.known.stars().count()));
        meanings.extend(self.known.stars().map(|module| attribute_of(module, name)));
        let own = match name {
            "__builtins__" => Some("builtins".to_owned()),
            "get_ipython" => Some(name.to_owned()),
            _ => BUILTINS.contains(&name).then(|| format!("builtins.{name}")),
        };
        if own.is_some() || meanings.is_empty() {
            // It may have been stored in a module.
            meanings.extend(self.known.of_attribute(name).cloned().unwrap_or_default());
        }
        meanings.extend(own.map(Meaning::Path));
        // IPython itself gives meanings to `_`, `_3` and `_i2`.
        if meanings.is_empty() || (name.starts_with('_') && name.bytes().all(|byte| b"_i0123456789".contains(&byte))) {
            meanings.insert(Meaning::Unknown);
        }
        self.spend(meanings.iter().map(Meaning::size).sum());
        self.refer(&meanings, at);
        meanings
    }

    /// Notes what may be meant, if it is more than a module.
    fn refer(&mut self, meanings: &Meanings, at: usize) {
        for meaning in meanings {
            let Meaning::Path(name) = meaning else { continue };
            let plain = name.replace("()", "");
            // What a call returns may hold whatever was handed on.
            if let Some((_, reached)) = name.split_once("().") {
                self.note(at, Act::Reach(reached.to_owned()));
            }
            match plain.strip_prefix("?.") {
                Some(reached) => self.note(at, Act::Reach(reached.to_owned())),
                None if plain.contains('.') || name == "get_ipython" => self.note(at, Act::Refer(name.clone())),
                None => {}
            }
        }
    }

    /// An attribute of something, by any way.
    pub(crate) fn attribute(&mut self, of: &Meanings, name: &str, at: usize) -> Meanings {
        self.note(at, Act::Attribute(name.to_owned()));
        self.spend(LOOK * of.len());
        if REACHING.contains(&name) {
            self.undecidable(at, &format!("reaches everything by `{name}`"));
        }
        let mut meanings = Meanings::new();
        for meaning in of {
            if is_table(meaning) {
                // Its methods are known; this is one that is handed on.
                self.escape(&Meanings::from([meaning.clone()]), at);
            }
            meanings.insert(match meaning {
                Meaning::Path(_) if name == "__builtins__" => Meaning::Path("builtins".to_owned()),
                Meaning::Unknown if name == "__builtins__" => Meaning::Path("builtins".to_owned()),
                of if name == "__dict__" => table_of(of),
                Meaning::Path(of) => attribute_of(of, name),
                Meaning::Unknown | Meaning::Function => attribute_of("?", name),
                _ => Meaning::Unknown,
            });
        }
        meanings.extend(self.known.of_attribute(name).cloned().unwrap_or_default());
        self.spend(meanings.iter().map(Meaning::size).sum());
        self.refer(&meanings, at);
        meanings
    }

    /// An entry of something.
    pub(crate) fn entry(&mut self, of: &Meanings, key: &Meanings, at: usize) -> Meanings {
        self.escape(key, at);
        let mut meanings = Meanings::new();
        for meaning in of {
            let holder = match meaning {
                Meaning::Table(of) if of == "?" => {
                    let (names, is_all) = texts(key);
                    if !is_all {
                        self.note(at, Act::IfModule(BY_NAME.to_owned()));
                    }
                    for name in names {
                        let found = self.attribute(&unknown(), &name, at);
                        add(&mut meanings, found);
                    }
                    continue;
                }
                Meaning::Table(of) => of.clone(),
                Meaning::Path(path) if canonical(path) == "builtins" => path.clone(),
                Meaning::Path(path) if canonical(path) == "sys.modules" => {
                    for module in self.known_texts(key, at, "takes a module by a name") {
                        self.note_import(&module, at);
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
                let found = self.attribute(&path(&holder), &name, at);
                add(&mut meanings, found);
            }
        }
        meanings
    }

    /// Evaluates an expression, and notes what is done in it.
    pub(crate) fn value(&mut self, expr: &Expr) -> Meanings {
        let at = expr.range().start().to_usize();
        if self.spend(STEP) {
            return unknown();
        }
        match expr {
            Expr::Name(name) => self.name(&name.id, at),
            Expr::StringLiteral(text) => self.text(text.value.to_str(), at),
            Expr::BytesLiteral(bytes) => {
                let bytes: Vec<u8> = bytes.value.bytes().collect();
                self.spend(bytes.len());
                Meanings::from([Meaning::Bytes(bytes)])
            }
            Expr::NumberLiteral(number) => match &number.value {
                Number::Int(number) => number.as_i64().map_or_else(unknown, |number| [Meaning::Number(number)].into()),
                _ => unknown(),
            },
            Expr::FString(fstring) => {
                let mut text = Meanings::from([Meaning::Text(String::new())]);
                for part in &fstring.value {
                    match part {
                        FStringPart::Literal(literal) => text = self.joined(&text, &plain(&literal.value)),
                        FStringPart::FString(inner) => {
                            for element in &inner.elements {
                                let next = match element {
                                    InterpolatedStringElement::Literal(literal) => plain(&literal.value),
                                    InterpolatedStringElement::Interpolation(element) => self.interpolated(element),
                                };
                                text = self.joined(&text, &next);
                            }
                        }
                    }
                }
                text
            }
            Expr::Attribute(attribute) => {
                let of = self.value(&attribute.value);
                self.attribute(&of, &attribute.attr, at)
            }
            Expr::Subscript(subscript) => {
                let of = self.value(&subscript.value);
                let key = self.value(&subscript.slice);
                match &*subscript.slice {
                    Expr::Slice(_) => turned(&of, &subscript.slice),
                    _ => self.entry(&of, &key, at),
                }
            }
            Expr::Call(call) => self.call(call, at),
            Expr::BinOp(operation) => {
                let (left, right) = (self.value(&operation.left), self.value(&operation.right));
                self.escape(&left, at);
                self.escape(&right, at);
                match operation.op {
                    Operator::Add => self.joined(&left, &right),
                    _ => {
                        if operation.op == Operator::Div {
                            self.files_and_addresses(&left, &right, at);
                        }
                        // A text with fields: what stands before the first one is known.
                        match (operation.op, left.first()) {
                            (Operator::Mod, Some(Meaning::Text(text))) if left.len() == 1 => {
                                let known = crate::meaning::beginning(text.split('%').next().unwrap_or_default());
                                Meanings::from([known.unwrap_or(Meaning::Unknown)])
                            }
                            _ => unknown(),
                        }
                    }
                }
            }
            Expr::Compare(comparison) => {
                // Whether a name is there may be asked of a table.
                self.visit_expr(&comparison.left);
                for (operator, right) in comparison.ops.iter().zip(&comparison.comparators) {
                    let found = self.value(right);
                    if !matches!(operator, CmpOp::In | CmpOp::NotIn) || !found.iter().all(is_table) {
                        self.escape(&found, at);
                    }
                }
                unknown()
            }
            Expr::Named(named) => {
                let meanings = self.value(&named.value);
                self.bind_target(&named.target, &meanings, at);
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
                self.defines = true;
                let around = std::mem::replace(&mut self.is_class, false);
                if let Some(parameters) = &lambda.parameters {
                    self.parameters(parameters);
                }
                self.visit_expr(&lambda.body);
                self.is_class = around;
                Meanings::from([Meaning::Function])
            }
            Expr::IpyEscapeCommand(command) => {
                self.escape_command(command.kind, &command.value, at);
                unknown()
            }
            // Starred ones are others than what they are made of.
            other => {
                self.defines |= other.is_generator_expr();
                walk_expr(self, other);
                unknown()
            }
        }
    }

    fn text(&mut self, text: &str, at: usize) -> Meanings {
        self.spend(text.len());
        if text.starts_with("module://") {
            self.undecidable(at, "names a module of its own to a library");
        }
        if let Some(file) = text.strip_suffix(".py") {
            self.known.write(file.rsplit('/').next().unwrap_or_default());
        }
        let mut meanings = plain(text);
        // IPython empties lines of nothing but spaces, also in texts.
        let mut inside = text.split('\n').skip(1);
        if inside.any(|line| !line.is_empty() && line.bytes().all(|byte| byte == b' ' || byte == b'\t')) {
            meanings.insert(Meaning::Unknown);
        }
        meanings
    }

    fn interpolated(&mut self, element: &InterpolatedElement) -> Meanings {
        let value = self.value(&element.expression);
        self.escape(&value, element.range().start().to_usize());
        if let Some(spec) = &element.format_spec {
            spec.elements.iter().for_each(|element| self.visit_interpolated_string_element(element));
        }
        let is_as_it_is =
            element.format_spec.is_none() && element.debug_text.is_none() && element.conversion == ConversionFlag::None;
        if is_as_it_is { value } else { unknown() }
    }

    /// One text after the other.
    pub(crate) fn joined(&mut self, left: &Meanings, right: &Meanings) -> Meanings {
        let size = |meanings: &Meanings| meanings.iter().map(Meaning::size).sum::<usize>();
        // Each one with each other, and compared with those that were made before.
        let pairs = left.len() * right.len();
        if self.spend(pairs * LOOK + 2 * (left.len() * size(right) + right.len() * size(left))) {
            return unknown();
        }
        combine(left, right, sum)
    }

    pub(crate) fn parameters(&mut self, parameters: &Parameters) {
        for parameter in parameters.iter() {
            if let Some(annotation) = parameter.annotation() {
                self.visit_annotation(annotation);
            }
            let mut meanings = unknown();
            if let Some(default) = parameter.default() {
                let at = default.range().start().to_usize();
                let default = self.value(default);
                self.escape(&default, at);
                add(&mut meanings, default);
            }
            self.bind(parameter.name(), &meanings);
        }
    }

    fn escape_command(&mut self, kind: IpyEscapeKind, value: &str, at: usize) {
        match kind {
            IpyEscapeKind::Help | IpyEscapeKind::Help2 if is_plain(value) => {}
            IpyEscapeKind::Magic | IpyEscapeKind::Magic2 => match magic(value) {
                Magic::Harmless => {}
                Magic::Program(program) => self.inner(program, at),
                Magic::Open => self.note(at, Act::Shell(format!("{}{value}", kind.as_str()))),
            },
            kind => self.note(at, Act::Shell(format!("{}{value}", kind.as_str()))),
        }
    }

    fn import(&mut self, statement: &Stmt) {
        match statement {
            Stmt::Import(import) => {
                for alias in &import.names {
                    let at = alias.range.start().to_usize();
                    self.spend(2 * LOOK);
                    self.note_import(&alias.name, at);
                    self.known.import(&alias.name);
                    match &alias.asname {
                        Some(name) => self.bind(name, &path(alias.name.as_str())),
                        None => {
                            let top = alias.name.split('.').next().unwrap_or_default();
                            self.known.import(top);
                            self.bind(top, &path(top));
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
                self.note_import(&module, at);
                self.known.import(&module);
                for alias in &import.names {
                    if &*alias.name == "*" {
                        self.changed |= self.known.import_all(&module);
                        continue;
                    }
                    let meanings = self.attribute(&path(&module), &alias.name, at);
                    self.bind(alias.asname.as_ref().unwrap_or(&alias.name), &meanings);
                }
            }
            _ => {}
        }
    }

    /// Something goes through the elements of something else.
    fn each(&mut self, target: &Expr, of: &Expr) {
        let ones = elements(of);
        if ones.is_empty() || ones.iter().any(|one| one.is_starred_expr()) {
            self.visit_expr(of);
            let at = of.range().start().to_usize();
            self.bind_target(target, &unknown(), at);
        } else {
            ones.into_iter().for_each(|one| self.assign(target, one));
        }
    }
}

impl<'a> Visitor<'a> for Reader<'_> {
    fn visit_expr(&mut self, expr: &'a Expr) {
        let meanings = self.value(expr);
        self.escape(&meanings, expr.range().start().to_usize());
    }

    /// What a text says about a type is evaluated by whoever wants to know it.
    fn visit_annotation(&mut self, annotation: &'a Expr) {
        if let Expr::StringLiteral(text) = annotation {
            self.formula(text.value.to_str(), annotation.range().start().to_usize());
        }
        self.visit_expr(annotation);
    }

    fn visit_stmt(&mut self, statement: &'a Stmt) {
        if self.fuel == 0 {
            return;
        }
        match statement {
            Stmt::Import(_) | Stmt::ImportFrom(_) => self.import(statement),
            Stmt::Assign(assign) => assign.targets.iter().for_each(|target| self.assign(target, &assign.value)),
            Stmt::AnnAssign(assign) => {
                self.visit_annotation(&assign.annotation);
                match &assign.value {
                    Some(value) => self.assign(&assign.target, value),
                    None if assign.target.is_name_expr() => {}
                    None => self.visit_expr(&assign.target),
                }
            }
            Stmt::AugAssign(assign) => {
                self.visit_expr(&assign.value);
                // What it is now is given to what it is added to.
                self.visit_expr(&assign.target);
                self.bind_target(&assign.target, &unknown(), assign.range.start().to_usize());
            }
            Stmt::For(each) => {
                self.each(&each.target, &each.iter);
                self.visit_body(&each.body);
                self.visit_body(&each.orelse);
            }
            Stmt::With(with) => {
                for item in &with.items {
                    let at = item.context_expr.range().start().to_usize();
                    let mut meanings = self.value(&item.context_expr);
                    self.escape(&meanings, at);
                    if let Some(target) = &item.optional_vars {
                        meanings.insert(Meaning::Unknown);
                        self.bind_target(target, &meanings, at);
                    }
                }
                self.visit_body(&with.body);
            }
            Stmt::FunctionDef(function) => {
                self.defines = true;
                function.decorator_list.iter().for_each(|decorator| self.visit_expr(&decorator.expression));
                // Who decorates a function makes something else of it.
                let is_plain = function.decorator_list.is_empty();
                let made = if is_plain { Meanings::from([Meaning::Function]) } else { unknown() };
                self.bind(&function.name, &made);
                let around = std::mem::replace(&mut self.is_class, false);
                if let Some(types) = &function.type_params {
                    self.visit_type_params(types);
                }
                self.parameters(&function.parameters);
                if let Some(annotation) = &function.returns {
                    self.visit_annotation(annotation);
                }
                self.visit_body(&function.body);
                self.is_class = around;
            }
            Stmt::ClassDef(class) => {
                self.bind(&class.name, &unknown());
                class.decorator_list.iter().for_each(|decorator| self.visit_expr(&decorator.expression));
                if let Some(types) = &class.type_params {
                    self.visit_type_params(types);
                }
                if let Some(arguments) = &class.arguments {
                    self.visit_arguments(arguments);
                }
                let around = std::mem::replace(&mut self.is_class, true);
                self.visit_body(&class.body);
                self.is_class = around;
            }
            Stmt::TypeAlias(alias) => {
                self.bind_target(&alias.name, &unknown(), alias.range.start().to_usize());
                walk_stmt(self, statement);
            }
            Stmt::IpyEscapeCommand(command) => {
                self.escape_command(command.kind, &command.value, command.range.start().to_usize());
            }
            other => walk_stmt(self, other),
        }
    }

    fn visit_comprehension(&mut self, comprehension: &'a Comprehension) {
        self.each(&comprehension.target, &comprehension.iter);
        comprehension.ifs.iter().for_each(|condition| self.visit_expr(condition));
    }

    fn visit_except_handler(&mut self, handler: &'a ExceptHandler) {
        let ExceptHandler::ExceptHandler(caught) = handler;
        if let Some(name) = &caught.name {
            self.bind(name, &unknown());
        }
        walk_except_handler(self, handler);
    }

    fn visit_pattern(&mut self, pattern: &'a Pattern) {
        let name = match pattern {
            Pattern::MatchAs(named) => named.name.as_ref(),
            Pattern::MatchStar(rest) => rest.name.as_ref(),
            Pattern::MatchMapping(mapping) => mapping.rest.as_ref(),
            _ => None,
        };
        if let Some(name) = name {
            self.bind(name, &unknown());
        }
        walk_pattern(self, pattern);
    }

    fn visit_pattern_keyword(&mut self, keyword: &'a PatternKeyword) {
        let found = self.attribute(&unknown(), &keyword.attr, keyword.range.start().to_usize());
        self.escape(&found, keyword.range.start().to_usize());
        walk_pattern_keyword(self, keyword);
    }
}

/// All names of something.
pub(crate) fn table_of(of: &Meaning) -> Meaning {
    match of {
        Meaning::Path(path) if !path.contains("()") && !path.starts_with('?') => Meaning::Table(path.clone()),
        _ => Meaning::Table("?".to_owned()),
    }
}

/// Whether something is a table of names, by which everything in it can be reached.
pub(crate) fn is_table(meaning: &Meaning) -> bool {
    matches!(meaning, Meaning::Table(_) | Meaning::Names)
        || matches!(meaning, Meaning::Path(name) if canonical(name) == "sys.modules")
}

fn plain(text: &str) -> Meanings {
    Meanings::from([Meaning::Text(text.to_owned())])
}

/// The elements of a list or a tuple that is written out.
pub(crate) fn elements(expr: &Expr) -> Vec<&Expr> {
    match expr {
        Expr::List(list) => list.elts.iter().collect(),
        Expr::Tuple(tuple) => tuple.elts.iter().collect(),
        _ => Vec::new(),
    }
}

/// A text from its end to its beginning: `"metsys"[::-1]`.
fn turned(of: &Meanings, slice: &Expr) -> Meanings {
    let is_turned = |slice: &Expr| {
        let Expr::Slice(slice) = slice else { return false };
        let Some(Expr::UnaryOp(step)) = slice.step.as_deref() else { return false };
        let is_one = matches!(&*step.operand, Expr::NumberLiteral(number) if matches!(&number.value, Number::Int(one) if one.as_i64() == Some(1)));
        step.op == UnaryOp::USub && is_one && slice.lower.is_none() && slice.upper.is_none()
    };
    let turn = |meaning: &Meaning| match meaning {
        Meaning::Text(text) => Meaning::Text(text.chars().rev().collect()),
        _ => Meaning::Unknown,
    };
    if is_turned(slice) { of.iter().map(turn).collect() } else { unknown() }
}
