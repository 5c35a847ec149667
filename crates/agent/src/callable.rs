//! Tools of the caller that programs call: their names as functions, and their description for the model.

use std::fmt::Write as _;

use aludel_sandbox::ClientCall;
use serde_json::Value;

use crate::upstream::FunctionTool;

/// Words that cannot be names of functions.
const KEYWORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del",
    "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "nonlocal",
    "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
];
/// Levels of a schema that a signature shows.
const MAX_DEPTH: usize = 4;

/// Tools that programs call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Callable {
    /// Names of the functions, one for each tool.
    functions: Vec<String>,
    tools: Vec<FunctionTool>,
}

impl Callable {
    pub(crate) fn new(tools: Vec<FunctionTool>) -> Self {
        let mut functions: Vec<String> = Vec::with_capacity(tools.len());
        for tool in &tools {
            let mut name = function_name(&tool.name);
            while functions.contains(&name) {
                name.push('_');
            }
            functions.push(name);
        }
        Self { functions, tools }
    }

    /// The names of the functions.
    pub(crate) fn functions(&self) -> &[String] {
        &self.functions
    }

    /// The function of a tool.
    pub(crate) fn function_of(&self, tool: &str) -> Option<&str> {
        let index = self.tools.iter().position(|known| known.name == tool)?;
        self.functions.get(index).map(String::as_str)
    }

    /// Calls of functions as calls of the tools.
    pub(crate) fn tools_of(&self, mut calls: Vec<ClientCall>) -> Vec<ClientCall> {
        for call in &mut calls {
            let index = self.functions.iter().position(|name| *name == call.name);
            if let Some(tool) = index.and_then(|index| self.tools.get(index)) {
                call.name.clone_from(&tool.name);
            }
        }
        calls
    }

    /// The description of the functions; empty if there are none.
    pub(crate) fn description(&self) -> String {
        if self.tools.is_empty() {
            return String::new();
        }
        let mut text = "\n\nPrograms can call these asynchronous functions, which are there without an import. Each takes one dict and \
                        returns text, which you parse; a failure is raised as ToolError. Await them at the top level, several at once \
                        with asyncio.gather, and print only what you need: the user and you see what is printed, not what they return."
            .to_owned();
        for (name, FunctionTool { description, parameters, .. }) in self.functions.iter().zip(&self.tools) {
            let parameters = parameters.value();
            let _ = write!(text, "\n\n`await {name}({}) -> str`", type_of(&parameters, MAX_DEPTH));
            if !description.is_empty() {
                let _ = write!(text, "\n{description}");
            }
            for (name, parameter) in properties(&parameters) {
                if let Some(words) = parameter.get("description").and_then(Value::as_str) {
                    let _ = write!(text, "\n- {name}: {words}");
                }
            }
        }
        text
    }
}

/// The name of a tool as the name of a function.
fn function_name(tool: &str) -> String {
    let plain = |character: char| if character.is_ascii_alphanumeric() { character } else { '_' };
    let mut name: String = tool.chars().map(plain).collect();
    if name.is_empty() || name.starts_with(|first: char| first.is_ascii_digit()) {
        name.insert(0, '_');
    }
    if KEYWORDS.contains(&name.as_str()) {
        name.push('_');
    }
    name
}

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema.get("properties").and_then(Value::as_object).into_iter().flatten()
}

/// A schema as a Python type, with `?` after the names of optional fields.
fn type_of(schema: &Value, depth: usize) -> String {
    let any_of = |schemas: &[Value]| schemas.iter().map(|one| type_of(one, depth - 1)).collect::<Vec<_>>().join(" | ");
    if depth == 0 {
        return "Any".to_owned();
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return values.iter().map(Value::to_string).collect::<Vec<_>>().join(" | ");
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(schemas) = schema.get(key).and_then(Value::as_array) {
            return any_of(schemas);
        }
    }
    match schema.get("type") {
        Some(Value::Array(kinds)) => {
            let kind = |kind: &Value| {
                let mut one = schema.clone();
                if let Some(fields) = one.as_object_mut() {
                    fields.insert("type".to_owned(), kind.clone());
                }
                one
            };
            any_of(&kinds.iter().map(kind).collect::<Vec<_>>())
        }
        Some(Value::String(kind)) => match kind.as_str() {
            "string" => "str".to_owned(),
            "integer" => "int".to_owned(),
            "number" => "float".to_owned(),
            "boolean" => "bool".to_owned(),
            "null" => "None".to_owned(),
            "array" => match schema.get("items") {
                Some(items) => format!("list[{}]", type_of(items, depth - 1)),
                None => "list".to_owned(),
            },
            _ => object(schema, depth),
        },
        _ => object(schema, depth),
    }
}

fn object(schema: &Value, depth: usize) -> String {
    let required: Vec<&str> =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let field = |(name, schema): (&String, &Value)| {
        let optional = if required.contains(&name.as_str()) { "" } else { "?" };
        format!("\"{name}\"{optional}: {}", type_of(schema, depth - 1))
    };
    let fields: Vec<String> = properties(schema).map(field).collect();
    match (fields.is_empty(), schema.get("additionalProperties").is_some_and(|more| *more != Value::Bool(false))) {
        (true, true) => "dict".to_owned(),
        _ => format!("{{{}}}", fields.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(name: &str, parameters: Value) -> FunctionTool {
        FunctionTool {
            name: name.into(),
            description: format!("Does {name}."),
            parameters: parameters.into(),
            strict: None,
        }
    }

    #[test]
    fn every_tool_is_a_function_of_its_own() {
        let names = ["get-a", "get_a", "1st", "class", "ü"];
        let callable = Callable::new(names.iter().map(|name| tool(name, json!({}))).collect());
        assert_eq!(callable.functions(), ["get_a", "get_a_", "_1st", "class_", "_"]);
        let calls = callable.functions().iter().map(|name| ClientCall { name: name.clone(), arguments: "{}".into() });
        let called: Vec<String> = callable.tools_of(calls.collect()).into_iter().map(|call| call.name).collect();
        assert_eq!(called, names);
        assert_eq!((callable.function_of("1st"), callable.function_of("x")), (Some("_1st"), None));
    }

    #[test]
    fn a_function_is_told_with_its_signature() {
        let parameters = json!({
            "type": "object",
            "properties": {
                "city": { "type": "string", "description": "A city." },
                "days": { "type": "array", "items": { "type": "integer" } },
                "unit": { "enum": ["C", "F"] },
                "at": { "anyOf": [{ "type": "number" }, { "type": "null" }] },
                "more": { "type": ["string", "boolean"] },
                "place": { "type": "object", "properties": { "x": { "type": "number" } }, "required": ["x"] },
            },
            "required": ["city"],
        });
        let description = Callable::new(vec![tool("weather", parameters)]).description();
        let signature = r#"`await weather({"at"?: float | None, "city": str, "days"?: list[int], "more"?: str | bool, "place"?: {"x": float}, "unit"?: "C" | "F"}) -> str`"#;
        assert!(description.contains(signature), "{description}");
        assert!(description.ends_with("\nDoes weather.\n- city: A city."), "{description}");
        assert_eq!(Callable::default().description(), "");
        let deep = (0..200).fold(json!({}), |inner, _| json!({ "type": "array", "items": inner }));
        assert_eq!(type_of(&deep, MAX_DEPTH), "list[list[list[list[Any]]]]");
    }
}
