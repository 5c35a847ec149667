//! Bindings and acts of statements.

use ruff_python_ast::visitor::{Visitor, walk_except_handler, walk_pattern, walk_pattern_keyword, walk_stmt};
use ruff_python_ast::{Comprehension, ExceptHandler, Expr, IpyEscapeKind, Parameters, Pattern, PatternKeyword, Stmt};
use ruff_text_size::Ranged as _;

use crate::act::Act;
use crate::expressions::elements;
use crate::ipython::{Magic, is_plain, magic};
use crate::meaning::{Meaning, Meanings, add, path, texts, unknown};
use crate::names::is_table;
use crate::reader::{LOOK, Reader};

impl Reader<'_> {
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

    pub(crate) fn bind_target(&mut self, target: &Expr, meanings: &Meanings, at: usize) {
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
                if let Expr::Attribute(holder) = &*subscript.value
                    && &*holder.attr == "__annotations__"
                {
                    self.bind_attribute(&holder.attr, meanings);
                }
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

    pub(crate) fn escape_command(&mut self, kind: IpyEscapeKind, value: &str, at: usize) {
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
                    self.spend(4 * LOOK);
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

    /// Reads an annotation. A text in it is evaluated by anybody who asks for the type.
    fn visit_annotation(&mut self, annotation: &'a Expr) {
        let (meanings, at) = (self.value(annotation), annotation.range().start().to_usize());
        self.escape(&meanings, at);
        texts(&meanings).0.iter().for_each(|text| self.formula(text, at));
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
                // The value of the target is an argument of the addition.
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
                // A decorator makes something else of a function.
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
