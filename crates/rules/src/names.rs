//! Meanings of names, attributes and entries, and of values that are handed on.

use crate::act::Act;
use crate::canonical::canonical;
use crate::harmless;
use crate::meaning::{Meaning, Meanings, add, attribute_of, path, texts, unknown};
use crate::reader::{LOOK, Reader};

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
/// Functions that take names, programs or modules: nothing is known of a value that is handed to them.
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
const REACHING: [&str; 7] =
    ["__getattribute__", "__getattr__", "__globals__", "__subclasses__", "f_builtins", "f_globals", "f_locals"];
pub(crate) const BY_NAME: &str = "takes an attribute by a name";
const ALL_NAMES: &str = "takes all names of a module";

impl Reader<'_> {
    /// Gives a name a meaning, beside those that it has.
    pub(crate) fn bind(&mut self, name: &str, meanings: &Meanings) {
        self.spend(LOOK + meanings.iter().map(Meaning::size).sum::<usize>());
        self.changed |= self.known.bind(name, meanings, self.settled);
        let kept = self.known.of_name(name);
        let forgotten = |meaning: &&Meaning| is_table(meaning) && !kept.is_some_and(|kept| kept.contains(meaning));
        let tables: Meanings = meanings.iter().filter(forgotten).cloned().collect();
        self.escape(&tables, 0);
        if self.is_class {
            self.escape(meanings, 0);
            self.bind_attribute(name, meanings);
        }
    }

    pub(crate) fn bind_attribute(&mut self, name: &str, meanings: &Meanings) {
        self.spend(LOOK);
        if matches!(name, "__class__" | "__match_args__" | "__annotations__") {
            self.undecidable(0, &format!("changes what attributes are by `{name}`"));
        }
        self.changed |= self.known.bind_attribute(name, meanings, self.settled);
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

    pub(crate) fn name(&mut self, name: &str, at: usize) -> Meanings {
        if name.starts_with("__") {
            self.note(at, Act::Attribute(name.to_owned()));
        }
        let mut meanings = self.known.of_name(name).cloned().unwrap_or_default();
        self.spend(LOOK * (1 + 3 * self.known.stars().count()));
        // A name that has a meaning already is hardly one of those: nothing is looked for inside of it.
        let has = |module: &str| harmless::has(&format!("{module}.{name}"));
        let is_found = !meanings.is_empty()
            || self.is_quiet
            || name.starts_with('_')
            || has("builtins")
            || self.known.stars().any(has);
        let mark = |module: &str| if is_found && (!meanings.is_empty() || !has(module)) { "*" } else { "" };
        let of_stars: Vec<Meaning> =
            self.known.stars().map(|module| attribute_of(&format!("{}{module}", mark(module)), name)).collect();
        meanings.extend(of_stars);
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
            // The result of a call may hold any value that was handed on.
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
        if name == "obj" {
            // An error tells by it whose attribute was missing, which may be any module.
            self.changed |= self.known.hand_on_modules();
        }
        let mut meanings = Meanings::new();
        for meaning in of {
            let is_function = |name: &str| name.contains('.') && TAKERS.contains(&name);
            if is_table(meaning) || matches!(meaning, Meaning::Path(of) if is_function(canonical(of))) {
                // Methods of tables that are called are known; this is one that is handed on, or `getattr.__call__`.
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
}

/// All names of something.
pub(crate) fn table_of(of: &Meaning) -> Meaning {
    match of {
        Meaning::Path(path) if !path.contains("()") && !path.starts_with('?') => Meaning::Table(path.clone()),
        _ => Meaning::Table("?".to_owned()),
    }
}

/// Returns true for a table of names, by which everything in it can be reached.
pub(crate) fn is_table(meaning: &Meaning) -> bool {
    matches!(meaning, Meaning::Table(_) | Meaning::Names)
        || matches!(meaning, Meaning::Path(name) if canonical(name) == "sys.modules")
}
