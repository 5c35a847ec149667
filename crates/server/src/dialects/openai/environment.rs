//! Environment variables of a container.

use aludel_engine::{Environment, Error};
use serde_json::Value;

use crate::error::ApiError;

/// Parses the environment variables of a container, an extension of the protocol.
pub(crate) fn environment(sent: Option<&Value>, param: &str) -> Result<Environment, ApiError> {
    let variables = match sent {
        None | Some(Value::Null) => return Ok(Environment::default()),
        Some(Value::Object(variables)) => variables.iter(),
        Some(_) => return Err(ApiError::invalid(param, format!("Invalid '{param}': it must be an object of texts."))),
    };
    let texts = variables.map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())));
    let Some(texts) = texts.collect::<Option<_>>() else {
        return Err(ApiError::invalid(param, format!("Invalid '{param}': every value must be a text.")));
    };
    Environment::new(texts).map_err(|error| refused(error, param))
}

/// An error of the engine about variables in this parameter of the request.
pub(crate) fn refused(error: Error, param: &str) -> ApiError {
    match error {
        Error::Invalid { field, reason } => {
            ApiError::invalid(param, format!("Invalid {field} of the container: {reason}."))
        }
        error => error.into(),
    }
}
