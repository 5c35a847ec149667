//! The models that can be asked.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use aludel_agent::upstream::Upstream;
use aludel_agent::upstream::http::HttpUpstream;
use aludel_sandbox::template::TemplateName;

use crate::error::{Error, Missing};

/// A model that can be asked.
#[derive(Clone)]
pub struct Model {
    /// Its name, as clients ask for it.
    pub name: String,
    /// Its owner, for people.
    pub owner: String,
    /// The model itself.
    pub upstream: Arc<dyn Upstream>,
    /// The endpoint that takes requests of its protocol unchanged, if it has one.
    pub endpoint: Option<Arc<HttpUpstream>>,
    /// Fallbacks, by name and in order.
    pub fallback: Vec<String>,
    /// The parts of programs that clients see in its answers, if it always has the code interpreter.
    pub code_interpreter: Option<ProgramParts>,
    /// The template of its programs' sandboxes; `None` for the usual one.
    pub template: Option<TemplateName>,
}

/// The parts of programs that appear in an answer, for clients that do not know the code interpreter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramParts {
    /// Programs, their output, pictures and files.
    All,
    /// Output, pictures and files.
    Output,
    /// Pictures and files.
    Files,
}

impl Model {
    /// A model without an endpoint, fallbacks and template, which has the code interpreter on request.
    pub fn new(name: impl Into<String>, owner: impl Into<String>, upstream: Arc<dyn Upstream>) -> Self {
        let (name, owner) = (name.into(), owner.into());
        Self { name, owner, upstream, endpoint: None, fallback: Vec::new(), code_interpreter: None, template: None }
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Model").field("name", &self.name).finish_non_exhaustive()
    }
}

/// All models, by name.
#[derive(Debug, Clone)]
pub struct Models(BTreeMap<String, Model>);

impl Models {
    pub(crate) fn new(models: impl IntoIterator<Item = Model>) -> Self {
        Self(models.into_iter().map(|model| (model.name.clone(), model)).collect())
    }

    /// The model of this name, if there is one.
    pub fn get(&self, name: &str) -> Option<&Model> {
        self.0.get(name)
    }

    /// The model that a client asks for.
    pub fn find(&self, name: &str) -> Result<&Model, Error> {
        let known = || self.0.keys().cloned().collect();
        self.get(name).ok_or_else(|| Error::NotFound(Missing::Model { name: name.to_owned(), known: known() }))
    }

    /// All of them, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Model> {
        self.0.values()
    }
}
