//! Bindings and acts of statements.

use ruff_python_ast::visitor::{Visitor, walk_except_handler, walk_pattern, walk_pattern_keyword, walk_stmt};
use ruff_python_ast::{
    Comprehension, ExceptHandler, Expr, ExprSubscript, IpyEscapeKind, Parameters, Pattern, PatternKeyword, Stmt,
    StmtClassDef, StmtFunctionDef, StmtImport, StmtImportFrom, WithItem,
};
use ruff_text_size::Ranged as _;

use crate::act::Act;
use crate::dotted::first;
use crate::expressions::elements;
use crate::ipython::{Magic, is_plain, magic};
use crate::meaning::{Meaning, Meanings, add, path, texts, unknown};
use crate::reader::{LOOK, Reader};

impl Reader<'_> {
    /// `target = value`
    fn assign(&mut self, target: &Expr, value: &Expr) {
        let (targets, values) = (elements(target), elements(value));
        let is_pairs = targets.len() == values.len() && !values.iter().any(Expr::is_starred_expr);
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
                elements(target).iter().for_each(|target| self.bind_target(target, &unknown(), at));
            }
            Expr::Attribute(attribute) => {
                self.escape(meanings, at);
                self.visit_expr(target);
                self.bind_attribute(&attribute.attr, meanings);
            }
            Expr::Subscript(subscript) => self.bind_entry(subscript, meanings, at),
            other => {
                self.escape(meanings, at);
                self.visit_expr(other);
            }
        }
    }

    fn bind_entry(&mut self, entry: &ExprSubscript, meanings: &Meanings, at: usize) {
        self.escape(meanings, at);
        if let Expr::Attribute(holder) = &*entry.value
            && &*holder.attr == "__annotations__"
        {
            self.bind_attribute(&holder.attr, meanings);
        }
        let (of, key) = (self.value(&entry.value), self.value(&entry.slice));
        self.escape(&key, at);
        for table in of.iter().filter(|of| of.is_table()) {
            match table {
                Meaning::Globals => {
                    for name in self.known_texts(&key, at, "sets a name") {
                        self.bind(&name, meanings);
                    }
                }
                Meaning::Table(_) => {
                    for name in self.known_texts(&key, at, "sets an attribute by a name") {
                        self.bind_attribute(&name, meanings);
                        self.note(at, Act::Attribute(name));
                    }
                }
                _ => self.undecidable(at, "changes what modules are"),
            }
        }
    }

    /// Reads what IPython does besides Python.
    pub(crate) fn ipython(&mut self, kind: IpyEscapeKind, value: &str, at: usize) {
        let effect = match kind {
            IpyEscapeKind::Help | IpyEscapeKind::Help2 if is_plain(value) => Magic::Harmless,
            IpyEscapeKind::Magic | IpyEscapeKind::Magic2 => magic(value),
            _ => Magic::Open,
        };
        match effect {
            Magic::Harmless => {}
            Magic::Program(program) => self.inner(program, at),
            Magic::Open => self.note(at, Act::Shell(format!("{}{value}", kind.as_str()))),
        }
    }

    fn import_modules(&mut self, import: &StmtImport) {
        for alias in &import.names {
            self.spend(4 * LOOK);
            self.import(&alias.name, alias.range.start().to_usize());
            let top = first(&alias.name);
            self.known.import(top);
            match &alias.asname {
                Some(name) => self.bind(name, &path(alias.name.as_str())),
                None => self.bind(top, &path(top)),
            }
        }
    }

    fn import_from(&mut self, import: &StmtImportFrom) {
        let at = import.range.start().to_usize();
        let module = import.module.as_ref().map(ToString::to_string).unwrap_or_default();
        if import.level > 0 {
            return self.note(at, Act::Import(format!(".{module}")));
        }
        self.import(&module, at);
        for alias in &import.names {
            if &*alias.name == "*" {
                self.changed |= self.known.import_all(&module);
            } else {
                let meanings = self.attribute(&path(&module), &alias.name, at);
                self.bind(alias.asname.as_ref().unwrap_or(&alias.name), &meanings);
            }
        }
    }

    fn function_definition(&mut self, function: &StmtFunctionDef) {
        self.defines = true;
        function.decorator_list.iter().for_each(|decorator| self.visit_decorator(decorator));
        // A decorator makes something else of a function.
        let is_plain = function.decorator_list.is_empty();
        self.bind(&function.name, &if is_plain { Meanings::from([Meaning::Function]) } else { unknown() });
        let around = std::mem::replace(&mut self.is_class, false);
        function.type_params.iter().for_each(|types| self.visit_type_params(types));
        self.visit_parameters(&function.parameters);
        function.returns.iter().for_each(|annotation| self.visit_annotation(annotation));
        self.visit_body(&function.body);
        self.is_class = around;
    }

    fn class_definition(&mut self, class: &StmtClassDef) {
        self.bind(&class.name, &unknown());
        class.decorator_list.iter().for_each(|decorator| self.visit_decorator(decorator));
        class.type_params.iter().for_each(|types| self.visit_type_params(types));
        class.arguments.iter().for_each(|arguments| self.visit_arguments(arguments));
        let around = std::mem::replace(&mut self.is_class, true);
        self.visit_body(&class.body);
        self.is_class = around;
    }

    /// Binds a target to each element of something.
    fn each(&mut self, target: &Expr, of: &Expr) {
        let ones = elements(of);
        if ones.is_empty() || ones.iter().any(Expr::is_starred_expr) {
            self.visit_expr(of);
            let at = of.range().start().to_usize();
            self.bind_target(target, &unknown(), at);
        } else {
            ones.iter().for_each(|one| self.assign(target, one));
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
            Stmt::Import(import) => self.import_modules(import),
            Stmt::ImportFrom(import) => self.import_from(import),
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
            Stmt::FunctionDef(function) => self.function_definition(function),
            Stmt::ClassDef(class) => self.class_definition(class),
            Stmt::TypeAlias(alias) => {
                self.bind_target(&alias.name, &unknown(), alias.range.start().to_usize());
                walk_stmt(self, statement);
            }
            Stmt::IpyEscapeCommand(command) => {
                self.ipython(command.kind, &command.value, command.range.start().to_usize());
            }
            other => walk_stmt(self, other),
        }
    }

    fn visit_with_item(&mut self, item: &'a WithItem) {
        let at = item.context_expr.range().start().to_usize();
        let mut meanings = self.value(&item.context_expr);
        self.escape(&meanings, at);
        if let Some(target) = &item.optional_vars {
            meanings.insert(Meaning::Unknown);
            self.bind_target(target, &meanings, at);
        }
    }

    fn visit_parameters(&mut self, parameters: &'a Parameters) {
        for parameter in parameters {
            parameter.annotation().into_iter().for_each(|annotation| self.visit_annotation(annotation));
            let mut meanings = unknown();
            if let Some(default) = parameter.default() {
                let value = self.value(default);
                self.escape(&value, default.start().to_usize());
                add(&mut meanings, value);
            }
            self.bind(parameter.name(), &meanings);
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
