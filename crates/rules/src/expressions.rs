//! Meanings and acts of expressions.

use ruff_python_ast::visitor::source_order::{SourceOrderVisitor as _, walk_expr};
use ruff_python_ast::{CmpOp, Expr, ExprFString, FStringPart, InterpolatedStringElement, Operator};

use crate::act::Act;
use crate::dotted::last;
use crate::meaning::Meaning;
use crate::reader::Reader;

/// Bytes of a text that may be the name of an attribute.
const MAX_NAME: usize = 100;

impl Reader<'_> {
    /// Evaluates an expression, and notes what is done in it.
    pub(crate) fn value(&mut self, expr: &Expr) -> Meaning {
        self.within(self.place.of(expr), |reader| reader.expression(expr))
    }

    fn expression(&mut self, expr: &Expr) -> Meaning {
        match expr {
            Expr::Name(name) => {
                let meaning = self.name(&name.id);
                if self.place.is_evaluated {
                    meaning.texts().for_each(|text| self.formula(text));
                }
                meaning
            }
            Expr::StringLiteral(text) => {
                self.text(text.value.to_str());
                Meaning::text(text.value.to_str())
            }
            Expr::BytesLiteral(bytes) => {
                let text = String::from_utf8_lossy(&bytes.value.bytes().collect::<Vec<u8>>()).into_owned();
                self.text(&text);
                Meaning::text(&text).changed()
            }
            Expr::FString(text) => {
                walk_expr(self, expr);
                self.beginning(text).changed()
            }
            Expr::Attribute(attribute) => {
                let of = self.value(&attribute.value);
                if attribute.ctx.is_store() && &*attribute.attr == "__class__" {
                    self.undecidable("changes what attributes are");
                }
                self.attribute(&of, &attribute.attr)
            }
            Expr::Call(call) => self.call(call),
            Expr::BinOp(operation) => {
                let (left, right) = (self.value(&operation.left), self.value(&operation.right));
                self.hand_on(&left);
                self.hand_on(&right);
                if operation.op == Operator::Div {
                    let joins = left.origin().map_or(Meaning::Unknown, |path| Meaning::Path(path.to_owned()));
                    self.outside(&joins, &right);
                }
                left.changed()
            }
            // A table may be asked for a name.
            Expr::Compare(test) if matches!(*test.ops, [CmpOp::In | CmpOp::NotIn]) => {
                self.visit_expr(&test.left);
                test.comparators.iter().for_each(|table| drop(self.value(table)));
                Meaning::Unknown
            }
            Expr::Named(named) => {
                let meaning = self.value(&named.value);
                self.bind_target(&named.target, &meaning);
                meaning
            }
            Expr::IpyEscapeCommand(command) => {
                self.ipython(command.kind, &command.value);
                Meaning::Unknown
            }
            other => {
                walk_expr(self, other);
                Meaning::Unknown
            }
        }
    }

    /// The text that a text with fields begins with.
    fn beginning(&mut self, text: &ExprFString) -> Meaning {
        match text.value.iter().next() {
            Some(FStringPart::Literal(literal)) => Meaning::text(&literal.value),
            Some(FStringPart::FString(text)) => match text.elements.first() {
                Some(InterpolatedStringElement::Literal(literal)) => Meaning::text(&literal.value),
                Some(InterpolatedStringElement::Interpolation(field)) if field.expression.is_name_expr() => {
                    self.value(&field.expression)
                }
                _ => Meaning::Unknown,
            },
            None => Meaning::Unknown,
        }
    }

    /// Notes effects that a text may have by what is done with it later.
    fn text(&mut self, text: &str) {
        if !self.spend(text.len()) {
            return;
        }
        if text.len() <= MAX_NAME {
            // It may be the name of an attribute, or of a setting.
            self.note(Act::Attribute(last(text).to_owned()));
        }
        let mut fields = text.split('{').skip(1).filter_map(|rest| rest.split('}').next());
        if fields.any(|field| field.contains("__")) {
            self.undecidable("has a field that reaches into its values");
        }
        if text.contains("<!ENTITY") {
            self.undecidable("has an entity of XML, which may be a file");
        }
        if text.ends_with(".py") {
            // The program may write it, and import it. No other name has a dot.
            self.known.bind(text.rsplit('/').next().unwrap_or_default(), &Meaning::Unknown);
        }
        if self.place.is_evaluated {
            self.formula(text);
        }
    }

    /// Reads a text that something may take for an expression: patsy's formulas and pandas' queries have signs of their own.
    fn formula(&mut self, text: &str) {
        if !self.spend(text.len()) {
            return;
        }
        let plain = text.split('`').step_by(2).collect::<Vec<_>>().join("x").replace('@', "");
        for side in plain.split('~') {
            if self.has_read_enough() {
                return;
            }
            self.inner(side.trim(), true);
        }
    }
}
