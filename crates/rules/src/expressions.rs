//! Meanings and acts of expressions.

use ruff_python_ast::visitor::{Visitor as _, walk_expr};
use ruff_python_ast::{
    CmpOp, ConversionFlag, Expr, FStringPart, InterpolatedElement, InterpolatedStringElement, Number, Operator, UnaryOp,
};
use ruff_text_size::Ranged as _;

use crate::act::Act;
use crate::meaning::{Meaning, Meanings, add, beginning, combine, sum, unknown};
use crate::names::is_table;
use crate::reader::{LOOK, Reader, STEP};

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
                                let known = beginning(text.split('%').next().unwrap_or_default());
                                Meanings::from([known.unwrap_or(Meaning::Unknown)])
                            }
                            _ => unknown(),
                        }
                    }
                }
            }
            Expr::Compare(comparison) => {
                // A table may be asked for a name.
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
        if text.contains("<!ENTITY") {
            self.undecidable(at, "has an entity of XML, which may be a file");
        }
        if let Some((_, name)) = text.rsplit_once('.').filter(|(settings, _)| *settings == "animation") {
            self.note(at, Act::Attribute(name.to_owned()));
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
