//! Settings by which packages are told to load a module or to start a program of another name.

use ruff_python_ast::{Expr, ExprCall, ExprSubscript};

use crate::dotted::last;
use crate::lists::LISTS;
use crate::meaning::Meaning;
use crate::reader::Reader;

impl Reader<'_> {
    /// Looks at the arguments of a call by which a backend is chosen, or variables of the process are set.
    pub(crate) fn steering_call(&mut self, origin: &str, call: &ExprCall, arguments: &[Meaning], named: &[Meaning]) {
        for (keyword, value) in call.arguments.keywords.iter().zip(named) {
            if keyword.arg.as_deref() == Some("backend") {
                self.backend(&keyword.value, value);
            }
        }
        let values = call.arguments.args.iter().zip(arguments);
        match origin {
            "matplotlib.use" | "matplotlib.pyplot.switch_backend" => {
                values.take(1).for_each(|(expr, value)| self.backend(expr, value));
            }
            _ if matches!(last(origin), "set_option" | "option_context") => {
                for ((_, key), (expr, value)) in values.clone().zip(values.skip(1)) {
                    if key.texts().any(|key| key.ends_with("backend")) {
                        self.backend(expr, value);
                    }
                }
            }
            "os.environ.update" => self.undecidable("sets variables of the process that are not written out"),
            "os.environ.setdefault" | "os.putenv" => {
                if let [name, value, ..] = arguments {
                    self.variable(name, value);
                }
            }
            _ => {}
        }
    }

    /// Looks at what is set by an assignment to a part of something.
    pub(crate) fn steering_target(&mut self, target: &Expr, value: &Meaning) {
        match target {
            Expr::Attribute(attribute) if &*attribute.attr == "backend" => self.backend(target, value),
            Expr::Subscript(ExprSubscript { value: of, slice, .. }) => {
                let of = self.value(of);
                if of.origin() == Some("os.environ") {
                    let name = self.value(slice);
                    self.variable(&name, value);
                }
            }
            _ => {}
        }
    }

    /// A backend is a module, which may be one of the program's own.
    fn backend(&mut self, expr: &Expr, value: &Meaning) {
        let is_known = |name: &String| {
            let name = name.to_ascii_lowercase();
            LISTS.backends.contains(&*name) || LISTS.is_known_module(&name)
        };
        let is_constant =
            expr.is_none_literal_expr() || expr.is_number_literal_expr() || expr.is_boolean_literal_expr();
        if !(is_constant || value.is_whole() && value.texts().all(is_known)) {
            self.undecidable("has a backend loaded whose name is not known");
        }
    }

    /// A variable of the process.
    fn variable(&mut self, name: &Meaning, value: &Meaning) {
        let is_backend = |name: &String| name == "MPLBACKEND";
        let steers = |name: &String| LISTS.steering_variables.contains(name) || name.starts_with("LD_");
        let has_known_backend =
            value.is_whole() && value.texts().all(|value| LISTS.backends.contains(&*value.to_ascii_lowercase()));
        let is_harmless = |name: &String| !steers(name) || is_backend(name) && has_known_backend;
        if !name.is_whole() || !name.texts().all(is_harmless) {
            self.undecidable("sets a variable by which programs or modules of other names are started");
        }
    }
}
