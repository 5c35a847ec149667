//! Functions of the embedding program that a model may call.

use std::fmt::{self, Display};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::excerpt;
use crate::upstream::FunctionTool;

/// The longest result for a model, bytes: a longer one is cut to its head and tail.
const MAX_RESULT: usize = 16 << 10;

/// A function of this program that the model may call, beside the interpreter. Cheap to clone.
///
/// ```
/// use aludel_agent::Tool;
/// use serde::Deserialize;
/// use serde_json::json;
///
/// #[derive(Deserialize)]
/// struct Product {
///     name: String,
/// }
///
/// let parameters = json!({ "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"] });
/// let price = Tool::new("price", "The price of a product, in euros.", parameters, async |product: Product| {
///     match product.name.as_str() {
///         "Tent" => Ok(399),
///         other => Err(format!("there is no product {other}")),
///     }
/// });
/// ```
///
/// The function runs in this process, with its rights, as part of the turn: it may be dropped at any await when the turn ends.
#[derive(Clone)]
pub struct Tool {
    function: FunctionTool,
    run: Arc<ToolFunction>,
}

/// The function, from a call's arguments to a text for the model.
type ToolFunction = dyn Fn(&str) -> BoxFuture<'static, String> + Send + Sync;

impl Tool {
    /// A function of this name. `parameters` is a JSON Schema of its argument, an object. The model gets the result as JSON, or unchanged
    /// if it is a text; it also gets the text of an error, so that it can try again.
    pub fn new<A, F, R, T, E>(
        name: impl Into<String>,
        description: impl Into<String>,
        parameters: Value,
        function: F,
    ) -> Self
    where
        A: DeserializeOwned,
        F: Fn(A) -> R + Send + Sync + 'static,
        R: Future<Output = Result<T, E>> + Send + 'static,
        T: Serialize + 'static,
        E: Display + 'static,
    {
        let run = move |arguments: &str| -> BoxFuture<'static, String> {
            // Some models send an empty text for no arguments.
            let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
            match serde_json::from_str(arguments) {
                Ok(argument) => function(argument).map(describe_result).boxed(),
                Err(error) => ready(format!("The arguments do not fit: {error}. Send what the schema says.")).boxed(),
            }
        };
        let function = FunctionTool {
            name: name.into(),
            description: description.into(),
            parameters: parameters.into(),
            strict: None,
        };
        Self { function, run: Arc::new(run) }
    }

    /// Its name, purpose and parameters, as the model sees them.
    pub fn function(&self) -> &FunctionTool {
        &self.function
    }

    /// Calls it. What comes of it is a text for the model.
    pub(crate) async fn call(&self, arguments: &str) -> String {
        excerpt::head_and_tail(&excerpt::plain(&(self.run)(arguments).await), MAX_RESULT)
    }
}

/// A result as text for the model.
fn describe_result<T: Serialize, E: Display>(result: Result<T, E>) -> String {
    match result.map(|value| serde_json::to_value(value)) {
        Ok(Ok(Value::String(text))) => text,
        Ok(Ok(value)) => value.to_string(),
        Ok(Err(error)) => format!("The function's result cannot be written as JSON: {error}"),
        Err(error) => format!("The function failed: {error}"),
    }
}

impl fmt::Debug for Tool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Tool").field("function", &self.function).finish_non_exhaustive()
    }
}
