//! Meanings and acts of expressions.

use ruff_python_ast::visitor::{Visitor as _, walk_expr};
use ruff_python_ast::{
    CmpOp, ConversionFlag, Expr, ExprBinOp, ExprFString, ExprLambda, FStringPart, InterpolatedElement,
    InterpolatedStringElement, Number, Operator, UnaryOp,
};
use ruff_text_size::Ranged as _;

use crate::act::Act;
use crate::meaning::{Meaning, Meanings, add, beginning, unknown};
use crate::reader::{LOOK, Reader, STEP};
use crate::texts::sums;

impl Reader<'_> {
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
                self.text(&String::from_utf8_lossy(&bytes), at);
                Meanings::from([Meaning::Bytes(bytes)])
            }
            Expr::NumberLiteral(number) => match &number.value {
                Number::Int(number) => number.as_i64().map_or_else(unknown, |number| [Meaning::Number(number)].into()),
                _ => unknown(),
            },
            Expr::FString(text) => self.f_string(text),
            Expr::Attribute(attribute) => {
                let of = self.value(&attribute.value);
                self.attribute(&of, &attribute.attr, at)
            }
            Expr::Subscript(subscript) => {
                let of = self.value(&subscript.value);
                let key = self.value(&subscript.slice);
                match &*subscript.slice {
                    slice @ Expr::Slice(_) if is_reversed(slice) => of.iter().map(reversed).collect(),
                    Expr::Slice(_) => unknown(),
                    _ => self.entry(&of, &key, at),
                }
            }
            Expr::Call(call) => self.call(call, at),
            Expr::BinOp(operation) => self.operation(operation, at),
            Expr::Compare(comparison) => {
                self.visit_expr(&comparison.left);
                for (operator, right) in comparison.ops.iter().zip(&comparison.comparators) {
                    let found = self.value(right);
                    // A table may be asked for a name.
                    if !matches!(operator, CmpOp::In | CmpOp::NotIn) || !found.iter().all(Meaning::is_table) {
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
                self.any_of([&*choice.body, &*choice.orelse])
            }
            Expr::BoolOp(operation) => self.any_of(&operation.values),
            Expr::Lambda(lambda) => self.lambda(lambda),
            Expr::IpyEscapeCommand(command) => {
                self.ipython(command.kind, &command.value, at);
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

    /// Evaluates expressions of which one is the value.
    fn any_of<'a>(&mut self, choices: impl IntoIterator<Item = &'a Expr>) -> Meanings {
        let mut meanings = Meanings::new();
        for choice in choices {
            add(&mut meanings, self.value(choice));
        }
        meanings
    }

    fn lambda(&mut self, lambda: &ExprLambda) -> Meanings {
        self.defines = true;
        let around = std::mem::replace(&mut self.is_class, false);
        if let Some(parameters) = &lambda.parameters {
            self.visit_parameters(parameters);
        }
        self.visit_expr(&lambda.body);
        self.is_class = around;
        Meanings::from([Meaning::Function])
    }

    fn operation(&mut self, operation: &ExprBinOp, at: usize) -> Meanings {
        let (left, right) = (self.value(&operation.left), self.value(&operation.right));
        self.escape(left.iter().chain(&right), at);
        match operation.op {
            Operator::Add => return self.joined(&left, &right),
            Operator::Div => self.files_and_addresses(&left, &right, at),
            // A text with fields: what stands before the first one is known.
            Operator::Mod => {
                if let (Some(Meaning::Text(text)), 1) = (left.first(), left.len()) {
                    let known = beginning(text.split('%').next().unwrap_or_default());
                    return Meanings::from([known.unwrap_or(Meaning::Unknown)]);
                }
            }
            _ => {}
        }
        unknown()
    }

    fn f_string(&mut self, text: &ExprFString) -> Meanings {
        let mut whole = plain("");
        for part in &text.value {
            match part {
                FStringPart::Literal(literal) => whole = self.joined(&whole, &plain(&literal.value)),
                FStringPart::FString(inner) => {
                    for element in &inner.elements {
                        let next = match element {
                            InterpolatedStringElement::Literal(literal) => plain(&literal.value),
                            InterpolatedStringElement::Interpolation(element) => self.interpolated(element),
                        };
                        whole = self.joined(&whole, &next);
                    }
                }
            }
        }
        whole
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

    fn text(&mut self, text: &str, at: usize) -> Meanings {
        self.spend(text.len());
        if text.starts_with("module://") {
            self.undecidable(at, "names a module of its own to a library");
        }
        if text.contains("<!ENTITY") {
            self.undecidable(at, "has an entity of XML, which may be a file");
        }
        if let Some(setting) = text.strip_prefix("animation.") {
            self.note(at, Act::Attribute(setting.to_owned()));
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

    /// Puts one text after the other.
    pub(crate) fn joined(&mut self, left: &Meanings, right: &Meanings) -> Meanings {
        let size = |meanings: &Meanings| meanings.iter().map(Meaning::size).sum::<usize>();
        // Each one with each other, and compared with those that were made before.
        let pairs = left.len() * right.len();
        if self.spend(pairs * LOOK + 2 * (left.len() * size(right) + right.len() * size(left))) {
            return unknown();
        }
        sums(left, right)
    }
}

fn plain(text: &str) -> Meanings {
    Meanings::from([Meaning::Text(text.to_owned())])
}

/// The elements of a list or a tuple that is written out.
pub(crate) fn elements(expr: &Expr) -> &[Expr] {
    match expr {
        Expr::List(list) => &list.elts,
        Expr::Tuple(tuple) => &tuple.elts,
        _ => &[],
    }
}

/// Returns true for `[::-1]`.
fn is_reversed(slice: &Expr) -> bool {
    let Expr::Slice(slice) = slice else { return false };
    let Some(Expr::UnaryOp(step)) = slice.step.as_deref() else { return false };
    let is_one = step.operand.as_number_literal_expr().is_some_and(|number| number.value == Number::Int(1u8.into()));
    step.op == UnaryOp::USub && is_one && slice.lower.is_none() && slice.upper.is_none()
}

fn reversed(meaning: &Meaning) -> Meaning {
    match meaning {
        Meaning::Text(text) => Meaning::Text(text.chars().rev().collect()),
        _ => Meaning::Unknown,
    }
}
