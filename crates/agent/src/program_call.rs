//! Calls that run a program: the name of the tool, and the program in the arguments.

use serde::Serialize;

/// The interpreter's name for models when it runs Python.
pub(crate) const NAME: &str = aludel_sandbox::PYTHON_TOOL;
/// The longest program, bytes.
pub(crate) const MAX_CODE: usize = 1 << 20;

/// The arguments of a call that runs a program.
#[derive(Serialize)]
struct CodeArguments<'a> {
    code: &'a str,
}

/// Returns the arguments of a call that runs a program.
pub fn arguments_of(code: &str) -> String {
    // Serializing a text cannot fail.
    serde_json::to_string(&CodeArguments { code }).unwrap_or_default()
}

/// Returns the program in a call's arguments, or a description of the mistake that helps the model to correct it.
pub fn code_of(arguments: &str) -> Result<String, String> {
    let value: serde_json::Value = serde_json::from_str(arguments)
        .map_err(|error| format!("The arguments are not valid JSON ({error}). Send {{\"code\": \"…\"}}."))?;
    let code = match &value {
        serde_json::Value::Object(fields) => fields.get("code").and_then(serde_json::Value::as_str),
        // Some models send just the program.
        serde_json::Value::String(code) => Some(code.as_str()),
        _ => None,
    };
    match code {
        Some(code) if code.len() > MAX_CODE => {
            Err(format!("The program has {} bytes; at most {MAX_CODE} are allowed.", code.len()))
        }
        Some(code) if !code.trim().is_empty() => Ok(code.to_owned()),
        Some(_) => Err("The program is empty.".to_owned()),
        None => Err("The arguments have no string `code`. Send {\"code\": \"…\"}.".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_the_arguments_is_said() {
        assert_eq!(code_of(r#"{"code": "1"}"#).as_deref(), Ok("1"));
        assert_eq!(code_of(r#""1""#).as_deref(), Ok("1"));
        for (arguments, words) in [
            ("{", "not valid JSON"),
            ("{}", "no string `code`"),
            (r#"{"code": 1}"#, "no string"),
            (r#"{"code": " "}"#, "empty"),
        ] {
            assert!(code_of(arguments).unwrap_err().contains(words), "{arguments}");
        }
    }
}
