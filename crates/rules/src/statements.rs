//! Bindings and acts of statements.

use ruff_python_ast::visitor::source_order::{SourceOrderVisitor, walk_stmt};
use ruff_python_ast::{
    Comprehension, Expr, Identifier, IpyEscapeKind, Parameters, PatternKeyword, Stmt, StmtImport, StmtImportFrom,
    WithItem,
};

use crate::act::Act;
use crate::dotted::first;
use crate::ipython;
use crate::meaning::Meaning;
use crate::reader::{Place, Reader};

impl Reader<'_> {
    fn statement(&mut self, statement: &Stmt) {
        match statement {
            Stmt::Import(import) => self.import_modules(import),
            Stmt::ImportFrom(import) => self.import_from(import),
            Stmt::Assign(assign) => match &assign.targets[..] {
                [target] => self.assign(target, &assign.value),
                targets => {
                    let meaning = self.value(&assign.value);
                    targets.iter().for_each(|target| self.bind_target(target, &meaning));
                }
            },
            Stmt::AnnAssign(assign) => {
                self.visit_annotation(&assign.annotation);
                match &assign.value {
                    Some(value) => self.assign(&assign.target, value),
                    None => self.visit_expr(&assign.target),
                }
            }
            Stmt::AugAssign(assign) => {
                // The value of the target is an argument of the addition.
                walk_stmt(self, statement);
                self.bind_target(&assign.target, &Meaning::Unknown);
            }
            Stmt::For(each) => {
                self.each(&each.target, &each.iter);
                self.visit_body(&each.body);
                self.visit_body(&each.orelse);
            }
            Stmt::FunctionDef(_) | Stmt::ClassDef(_) => {
                let place = Place { is_class: statement.is_class_def_stmt(), ..self.place };
                self.within(place, |reader| walk_stmt(reader, statement));
            }
            Stmt::IpyEscapeCommand(command) => self.ipython(command.kind, &command.value),
            Stmt::Global(_) | Stmt::Nonlocal(_) => {}
            other => walk_stmt(self, other),
        }
    }

    /// `target = value`
    fn assign(&mut self, target: &Expr, value: &Expr) {
        let (targets, values) = (elements(target), elements(value));
        let is_pairs = targets.len() == values.len() && !targets.iter().chain(values).any(Expr::is_starred_expr);
        if !targets.is_empty() && is_pairs {
            targets.iter().zip(values).for_each(|(target, value)| self.assign(target, value));
        } else {
            let meaning = self.value(value);
            self.bind_target(target, &meaning);
        }
    }

    pub(crate) fn bind_target(&mut self, target: &Expr, meaning: &Meaning) {
        match target {
            Expr::Name(name) => return self.bind(&name.id, meaning),
            Expr::Starred(starred) => self.bind_target(&starred.value, &Meaning::Unknown),
            Expr::Tuple(_) | Expr::List(_) => {
                elements(target).iter().for_each(|target| self.bind_target(target, &Meaning::Unknown));
            }
            other => {
                self.steering_target(other, meaning);
                self.visit_expr(other);
            }
        }
        self.hand_on(meaning);
    }

    /// Binds a target to each element of something.
    fn each(&mut self, target: &Expr, of: &Expr) {
        let (targets, ones) = (elements(target), elements(of));
        let is_names = target.is_name_expr() || !targets.is_empty() && targets.iter().all(Expr::is_name_expr);
        if is_names && !ones.is_empty() && !ones.iter().any(Expr::is_starred_expr) {
            ones.iter().for_each(|one| self.assign(target, one));
        } else {
            self.visit_expr(of);
            self.bind_target(target, &Meaning::Unknown);
        }
    }

    /// Reads what IPython does besides Python.
    pub(crate) fn ipython(&mut self, kind: IpyEscapeKind, line: &str) {
        match ipython::program(kind, line) {
            Some(program) => self.inner(program, false),
            None => self.note(Act::Shell(format!("{}{line}", kind.as_str()))),
        }
    }

    fn import_modules(&mut self, import: &StmtImport) {
        for alias in &import.names {
            let top = first(&alias.name);
            self.import(&alias.name);
            match &alias.asname {
                Some(name) => self.bind(name, &Meaning::Path(alias.name.to_string())),
                None => self.bind(top, &Meaning::Path(top.to_owned())),
            }
        }
    }

    fn import_from(&mut self, import: &StmtImportFrom) {
        let module = import.module.as_ref().map(ToString::to_string).unwrap_or_default();
        if import.level > 0 {
            return self.note(Act::Import(format!(".{module}")));
        }
        self.import(&module);
        for alias in &import.names {
            if &*alias.name == "*" {
                self.star(&module);
            } else {
                let meaning = self.attribute(&Meaning::Path(module.clone()), &alias.name);
                self.bind(alias.asname.as_ref().unwrap_or(&alias.name), &meaning);
            }
        }
    }
}

/// The elements of a list or a tuple that is written out.
fn elements(expr: &Expr) -> &[Expr] {
    match expr {
        Expr::List(list) => &list.elts,
        Expr::Tuple(tuple) => &tuple.elts,
        _ => &[],
    }
}

impl<'a> SourceOrderVisitor<'a> for Reader<'_> {
    fn visit_stmt(&mut self, statement: &'a Stmt) {
        self.within(self.place.of(statement), |reader| reader.statement(statement));
    }

    fn visit_expr(&mut self, expr: &'a Expr) {
        let meaning = self.value(expr);
        self.hand_on(&meaning);
    }

    /// Reads an annotation. A text in it is evaluated by anybody who asks for the type.
    fn visit_annotation(&mut self, annotation: &'a Expr) {
        let place = Place { is_evaluated: true, ..self.place };
        self.within(place, |reader| reader.visit_expr(annotation));
    }

    fn visit_with_item(&mut self, item: &'a WithItem) {
        let meaning = self.value(&item.context_expr);
        self.hand_on(&meaning);
        if let Some(target) = &item.optional_vars {
            // Most contexts are themselves what they open.
            let opened = if let Meaning::Result(_) = meaning { meaning } else { Meaning::Unknown };
            self.bind_target(target, &opened);
        }
    }

    fn visit_parameters(&mut self, parameters: &'a Parameters) {
        for parameter in parameters {
            parameter.annotation().into_iter().for_each(|annotation| self.visit_annotation(annotation));
            let default = parameter.default().map_or(Meaning::Unknown, |default| self.value(default));
            self.bind(parameter.name(), &default);
            self.bind(parameter.name(), &Meaning::Unknown);
        }
    }

    fn visit_comprehension(&mut self, comprehension: &'a Comprehension) {
        self.each(&comprehension.target, &comprehension.iter);
        comprehension.ifs.iter().for_each(|condition| self.visit_expr(condition));
    }

    fn visit_pattern_keyword(&mut self, keyword: &'a PatternKeyword) {
        self.attribute(&Meaning::Unknown, &keyword.attr);
        self.visit_pattern(&keyword.pattern);
    }

    /// Binds a name that something unknown is given: a function, a class, a caught error, a part of what is matched.
    fn visit_identifier(&mut self, name: &'a Identifier) {
        self.bind(name, &Meaning::Unknown);
    }
}
