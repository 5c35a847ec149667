//! Meanings of names and attributes, and values that names cannot follow.

use crate::act::Act;
use crate::dotted::first;
use crate::harmless;
use crate::known::COMPUTED;
use crate::lists::LISTS;
use crate::meaning::Meaning;
use crate::reader::Reader;
use crate::rule::any_group_has;

/// Effort for a name, and for each module that it may be of.
const NAME_EFFORT: usize = 64;

impl Reader<'_> {
    /// Takes the value of a name.
    pub(crate) fn name(&mut self, name: &str) -> Meaning {
        let size = self.known.meaning(name).map_or(0, Meaning::size);
        if !self.spend(size + NAME_EFFORT * (1 + self.known.stars.len())) {
            return Meaning::Unknown;
        }
        if name.starts_with("__") {
            self.note(Act::Attribute(name.to_owned()));
        }
        for star in self.known.stars.clone() {
            self.note(Act::Reach(format!("{star}.{name}")));
        }
        let meaning = match name {
            "__builtins__" => Meaning::Path("builtins".to_owned()),
            "get_ipython" => Meaning::Path(name.to_owned()),
            _ if LISTS.builtins.contains(name) => Meaning::Path(format!("builtins.{name}")),
            _ => self.known.meaning(name).cloned().unwrap_or_else(|| self.unbound(name)),
        };
        if let Meaning::Path(path) = &meaning
            && (path.contains('.') || path == "get_ipython")
        {
            self.note(Act::Use(path.clone()));
        }
        meaning
    }

    /// Takes the value of a name that no program gave a meaning.
    fn unbound(&mut self, name: &str) -> Meaning {
        if self.place.is_formula || !self.is_second || name.starts_with('_') {
            return Meaning::Unknown;
        }
        let (stars, is_of) = (&self.known.stars, |module: &str| harmless::has(&format!("{module}.{name}")));
        // It has to come from somewhere.
        let star = stars.iter().find(|star| is_of(star)).or(stars.first().filter(|_| !is_of("builtins")));
        let meaning = star.map_or(Meaning::Unknown, |star| Meaning::Path(format!("{star}.{name}")));
        if meaning == Meaning::Unknown {
            self.known.bind(name, &meaning);
        }
        meaning
    }

    /// Takes all names of a module.
    pub(crate) fn star(&mut self, module: &str) {
        self.known.import_all(module);
        // Functions that were defined before may use one of its names.
        let names = self.rules.patterns().filter_map(|pattern| pattern.strip_prefix(module)?.strip_prefix('.'));
        let used: Vec<&str> = names.filter(|name| self.known.meaning(name).is_some()).collect();
        used.into_iter().for_each(|name| self.note(Act::Reach(format!("{module}.{name}"))));
    }

    /// Gives a name a meaning.
    pub(crate) fn bind(&mut self, name: &str, meaning: &Meaning) {
        if !self.spend(meaning.size() + self.known.meaning(name).map_or(0, Meaning::size)) {
            return;
        }
        if name == "__match_args__" {
            self.undecidable("changes what attributes are by `__match_args__`");
        }
        let is_kept = !self.place.is_formula && !LISTS.builtins.contains(name);
        if self.place.is_class || !is_kept {
            self.hand_on(meaning);
        }
        if is_kept {
            self.known.bind(name, meaning).into_iter().flatten().for_each(|meaning| self.hand_on(&meaning));
        }
    }

    /// Remembers a value that is used where names cannot follow it.
    pub(crate) fn hand_on(&mut self, value: &Meaning) {
        if value.is_table() {
            return self.undecidable("takes all names of the program");
        }
        let Meaning::Path(path) = value else { return };
        if LISTS.name_takers.contains(path) {
            return self.undecidable(&format!("hands `{path}` on"));
        }
        // A listed name that is no module is a function or a class, which leads nowhere else.
        let is_known = path.contains('.') && (harmless::has(path) || any_group_has(path));
        if !is_known || harmless::is_module(path) {
            self.known.keep(|known| &mut known.values, path);
        }
    }

    /// Takes an attribute of something.
    pub(crate) fn attribute(&mut self, of: &Meaning, name: &str) -> Meaning {
        self.note(Act::Attribute(name.to_owned()));
        self.known.keep(|known| &mut known.attributes, name);
        if LISTS.reaching_attributes.contains(name) {
            self.undecidable(&format!("reaches everything by `{name}`"));
        }
        if name == "obj" {
            // An error tells by it whose attribute was missing, which may be any module.
            self.hand_on(&Meaning::Path("os".to_owned()));
        }
        match of {
            Meaning::Path(path) if LISTS.name_takers.contains(path) && path.contains('.') => self.hand_on(of),
            of if name == "__dict__" => self.all_names(of),
            of if of.is_table() => self.hand_on(of),
            _ => {}
        }
        let found = of.attribute(name);
        match &found {
            Meaning::Path(path) => self.note(Act::Use(path.clone())),
            Meaning::Result(path) => self.note(Act::Reach(path.clone())),
            _ if matches!(of, Meaning::Path(_)) => self.undecidable("uses a name that is too long to be followed"),
            _ => {}
        }
        found
    }

    /// Takes all names of something, or one that is not known.
    pub(crate) fn all_names(&mut self, of: &Meaning) {
        if matches!(of, Meaning::Path(_)) || of.is_table() {
            self.undecidable("takes names of a module that are not written out");
        }
        self.known.keep(|known| &mut known.attributes, COMPUTED);
    }

    /// Notes that a module is imported.
    pub(crate) fn import(&mut self, module: &str) {
        if self.known.meaning(&format!("{}.py", first(module))).is_some() {
            self.undecidable("imports what may be a file of its own");
        }
        self.note(Act::Import(module.to_owned()));
    }
}
