//! Getting from configured models to some that can be asked.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use aludel_agent::upstream::demo::Demo;
use aludel_agent::upstream::http::{HttpOptions, HttpUpstream};
use aludel_agent::upstream::{Fallback, ModelCapabilities, Upstream};

use crate::config::{ApiSetting, HostEnvironment, ModelSection};
use crate::exit::{usage, words};

/// Owner of the demo model.
const SCRIPT: &str = "aludel: a script, not a language model";

/// The first of the models, with those that step in for it.
pub(crate) fn first(models: &[ModelSection], host: &HostEnvironment) -> anyhow::Result<aludel_engine::Model> {
    let model = models.first().ok_or_else(|| usage("no model is configured"))?;
    with_upstream(model, models, host)
}

/// All models in the engine's form, or all errors in them.
pub(crate) fn all(models: &[ModelSection], host: &HostEnvironment) -> anyhow::Result<Vec<aludel_engine::Model>> {
    let made = models.iter().map(|model| with_upstream(model, models, host));
    let (mut served, mut wrong) = (Vec::new(), Vec::new());
    for model in made {
        match model {
            Ok(model) => served.push(model),
            Err(error) => wrong.push(words(&error)),
        }
    }
    // A model that is also a fallback would be checked twice.
    let mut seen = HashSet::new();
    wrong.retain(|words| seen.insert(words.clone()));
    if wrong.is_empty() { Ok(served) } else { Err(usage(wrong.join("; "))) }
}

fn with_upstream(
    model: &ModelSection,
    models: &[ModelSection],
    host: &HostEnvironment,
) -> anyhow::Result<aludel_engine::Model> {
    let owner = if model.is_demo() { SCRIPT.to_owned() } else { model.upstream_name.to_string() };
    let endpoint = endpoint(model, host)?;
    let upstream = with_fallback(model, upstream(endpoint.clone()), models, host)?;
    Ok(aludel_engine::Model {
        endpoint,
        fallback: model.fallback.0.clone(),
        code_interpreter: model.code_interpreter.program_parts(),
        template: model.template.own().cloned(),
        ..aludel_engine::Model::new(model.name.as_str(), owner, upstream)
    })
}

/// The demo model, which writes at this pace.
pub(crate) fn demo(pace: Duration) -> aludel_engine::Model {
    aludel_engine::Model::new("demo", SCRIPT, Arc::new(Demo::new(pace)))
}

fn with_fallback(
    model: &ModelSection,
    upstream: Arc<dyn Upstream>,
    models: &[ModelSection],
    host: &HostEnvironment,
) -> anyhow::Result<Arc<dyn Upstream>> {
    let mut others = Vec::new();
    for name in &model.fallback.0 {
        // The configuration was checked, so it exists.
        for other in models.iter().filter(|other| **other.name == *name) {
            others.push((other.name.as_str().into(), self::upstream(endpoint(other, host)?)));
        }
    }
    if others.is_empty() {
        return Ok(upstream);
    }
    let fallback = Fallback::new(upstream, others);
    let origin = &model.fallback.origin;
    Ok(Arc::new(fallback.map_err(|error| usage(format!("{origin}: `fallback` of `{}`: {error}", *model.name)))?))
}

/// The model itself; without an endpoint it is the script.
fn upstream(endpoint: Option<Arc<HttpUpstream>>) -> Arc<dyn Upstream> {
    match endpoint {
        Some(endpoint) => endpoint,
        None => Arc::new(Demo::new(Duration::ZERO)),
    }
}

/// Makes the upstream of a model that is not the script.
fn endpoint(model: &ModelSection, host: &HostEnvironment) -> anyhow::Result<Option<Arc<HttpUpstream>>> {
    let ApiSetting::Http(protocol) = *model.api else { return Ok(None) };
    let options = HttpOptions {
        protocol,
        url: model.url.to_string(),
        model: model.upstream_name.to_string(),
        key: model.key.fetch(&model.name, host)?,
        capabilities: ModelCapabilities { function_calling: model.function_calling.0, vision: model.vision.0 },
        idle_timeout: model.idle_timeout.duration(),
        headers: model.headers.fetch(&model.name, host)?,
        max_output_tokens: model.max_output_tokens.0,
        requests: model.requests.0.and_then(|requests| usize::try_from(requests).ok()),
    };
    let chat = HttpUpstream::new(options).map_err(|error| usage(format!("{}: {error}", model.url.origin)))?;
    Ok(Some(Arc::new(chat)))
}
