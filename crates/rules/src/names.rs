//! Meanings of names, attributes and entries, and of values that escape.

use crate::act::Act;
use crate::harmless;
use crate::known::Holder;
use crate::lists::LISTS;
use crate::meaning::{Meaning, Meanings, add, path, texts, unknown};
use crate::reader::{LOOK, Reader};

pub(crate) const BY_NAME: &str = "takes an attribute by a name";
const ALL_NAMES: &str = "takes all names of a module";

impl Reader<'_> {
    /// Gives a name a meaning, beside those that it has.
    pub(crate) fn bind(&mut self, name: &str, meanings: &Meanings) {
        self.spend(LOOK + meanings.iter().map(Meaning::size).sum::<usize>());
        self.changed |= self.known.bind(Holder::Name(name), meanings, self.settled);
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
        self.changed |= self.known.bind(Holder::Attribute(name), meanings, self.settled);
    }

    /// Remembers values that are used where names cannot follow them: they may be reached from anywhere now.
    pub(crate) fn escape<'a>(&mut self, values: impl IntoIterator<Item = &'a Meaning>, at: usize) {
        for value in values {
            if *value == Meaning::Table(None) {
                self.note(at, Act::UndecidableOfModule(ALL_NAMES.to_owned()));
            } else if value.is_table() {
                self.undecidable(at, ALL_NAMES);
            } else if let Some(taker) = value.canonical().filter(|name| LISTS.name_takers.contains(*name)) {
                self.undecidable(at, &format!("hands `{taker}` on"));
            } else if value.is_named() {
                self.spend(LOOK);
                self.changed |= self.known.escape(value);
            }
        }
    }

    /// Takes the value of a name.
    pub(crate) fn name(&mut self, name: &str, at: usize) -> Meanings {
        if name.starts_with("__") {
            self.note(at, Act::Attribute(name.to_owned()));
        }
        let mut meanings = self.known.meanings(Holder::Name(name)).cloned().unwrap_or_default();
        let of_stars = self.of_stars(name, meanings.is_empty());
        meanings.extend(of_stars);
        let own = match name {
            "__builtins__" => Some("builtins".to_owned()),
            "get_ipython" => Some(name.to_owned()),
            _ => LISTS.builtins.contains(name).then(|| format!("builtins.{name}")),
        };
        if own.is_some() || meanings.is_empty() {
            // It may have been stored in a module.
            meanings.extend(self.known.meanings(Holder::Attribute(name)).cloned().unwrap_or_default());
        }
        meanings.extend(own.map(Meaning::Path));
        // IPython itself gives meanings to `_`, `_3` and `_i2`.
        if meanings.is_empty() || (name.starts_with('_') && name.bytes().all(|byte| b"_i0123456789".contains(&byte))) {
            meanings.insert(Meaning::Unknown);
        }
        self.used(meanings, at)
    }

    /// Meanings that a name has if it is one of a module of which everything was imported.
    fn of_stars(&mut self, name: &str, is_new: bool) -> Vec<Meaning> {
        let stars = &self.known.stars;
        let has = |module: &str| harmless::has(&format!("{module}.{name}"));
        // It has to come from somewhere.
        let is_of_one = is_new
            && !self.is_quiet
            && !name.starts_with('_')
            && !has("builtins")
            && !stars.iter().any(|star| has(star));
        let meaning = |star: &String| {
            let holder = match is_of_one || (is_new && has(star)) {
                true => Meaning::Path(star.clone()),
                false => Meaning::OfStar(star.clone()),
            };
            holder.attribute(name)
        };
        let meanings = stars.iter().map(meaning).collect();
        self.spend(LOOK * (1 + 3 * self.known.stars.len()));
        meanings
    }

    /// Notes that values are used.
    fn used(&mut self, values: Meanings, at: usize) -> Meanings {
        self.spend(values.iter().map(Meaning::size).sum());
        values.iter().flat_map(Meaning::acts).for_each(|act| self.note(at, act));
        values
    }

    /// Takes an attribute of something, by any way.
    pub(crate) fn attribute(&mut self, of: &Meanings, name: &str, at: usize) -> Meanings {
        self.note(at, Act::Attribute(name.to_owned()));
        self.spend(LOOK * of.len());
        if LISTS.reaching_attributes.contains(name) {
            self.undecidable(at, &format!("reaches everything by `{name}`"));
        }
        if name == "obj" {
            // An error tells by it whose attribute was missing, which may be any module.
            self.changed |= self.known.escape_modules();
        }
        // Methods of tables that are called are known; this is one that is handed on, or `getattr.__call__`.
        let is_taker = |name: &str| name.contains('.') && LISTS.name_takers.contains(name);
        self.escape(of.iter().filter(|of| of.is_table() || of.canonical().is_some_and(is_taker)), at);
        let mut meanings: Meanings = of.iter().map(|of| of.attribute(name)).collect();
        meanings.extend(self.known.meanings(Holder::Attribute(name)).cloned().unwrap_or_default());
        self.used(meanings, at)
    }

    /// Takes attributes whose names are the texts that something may be; it is undecidable if it may be something else.
    pub(crate) fn attributes(&mut self, of: &Meanings, names: &Meanings, at: usize) -> Meanings {
        let mut meanings = Meanings::new();
        for name in self.known_texts(names, at, BY_NAME) {
            add(&mut meanings, self.attribute(of, &name, at));
        }
        meanings
    }

    /// Takes an entry of something.
    pub(crate) fn entry(&mut self, of: &Meanings, key: &Meanings, at: usize) -> Meanings {
        self.escape(key, at);
        let mut meanings = Meanings::new();
        for holder in of {
            let found = match holder {
                Meaning::Table(Some(module)) => self.attributes(&path(module), key, at),
                Meaning::Table(None) => {
                    let (names, is_all) = texts(key);
                    if !is_all {
                        self.note(at, Act::UndecidableOfModule(BY_NAME.to_owned()));
                    }
                    names.iter().flat_map(|name| self.attribute(&unknown(), name, at)).collect()
                }
                Meaning::Globals => {
                    let names = self.known_texts(key, at, "takes a name");
                    names.iter().flat_map(|name| self.name(name, at)).collect()
                }
                of if of.canonical() == Some("builtins") => self.attributes(&path("builtins"), key, at),
                of if of.canonical() == Some("sys.modules") => {
                    let modules = self.known_texts(key, at, "takes a module by a name");
                    modules.iter().for_each(|module| self.import(module, at));
                    modules.into_iter().map(Meaning::Path).collect()
                }
                _ => unknown(),
            };
            add(&mut meanings, found);
        }
        meanings
    }
}
