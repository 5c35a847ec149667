//! Getting from configured models to some that can be asked.

use std::sync::Arc;
use std::time::Duration;

use aludel_agent::upstream::chat::{Chat, ChatOptions, Protocol};
use aludel_agent::upstream::demo::Demo;
use aludel_agent::upstream::{Capabilities, Fallback, Upstream};

use crate::config::{Api, Endpoint, Model, Surroundings};
use crate::exit::usage;

/// A model as the agent knows it, by itself.
enum Alone {
    Demo,
    Chat(Chat),
}

impl Alone {
    fn upstream(self) -> Arc<dyn Upstream> {
        match self {
            Self::Demo => Arc::new(Demo::new(Duration::ZERO)),
            Self::Chat(chat) => Arc::new(chat),
        }
    }
}

/// The first of the models, with those that step in for it.
pub(crate) fn first(models: &[Model], surroundings: &Surroundings) -> anyhow::Result<Arc<dyn Upstream>> {
    let model = models.first().ok_or_else(|| usage("no model is configured"))?;
    with_fallback(model, alone(model, surroundings)?.upstream(), models, surroundings)
}

/// All models, as the server knows them.
pub(crate) fn all(models: &[Model], surroundings: &Surroundings) -> anyhow::Result<Vec<aludel_server::Model>> {
    let served = models.iter().map(|model| {
        let owner = match &model.endpoint {
            Endpoint::Demo => "aludel: a script, not a language model".to_owned(),
            Endpoint::Http(http) => (*http.upstream_name).clone(),
        };
        let alone = alone(model, surroundings)?;
        let endpoint = match &alone {
            Alone::Chat(chat) if chat.forwards() => Some(chat.clone()),
            Alone::Chat(_) | Alone::Demo => None,
        };
        let upstream = with_fallback(model, alone.upstream(), models, surroundings)?;
        let fallback = model.fallback.0.clone();
        Ok(aludel_server::Model { name: (*model.name).clone(), owner, upstream, endpoint, fallback })
    });
    served.collect()
}

fn with_fallback(
    model: &Model,
    upstream: Arc<dyn Upstream>,
    models: &[Model],
    surroundings: &Surroundings,
) -> anyhow::Result<Arc<dyn Upstream>> {
    let mut others = Vec::new();
    for name in &model.fallback.0 {
        // The configuration was checked: there is one.
        for other in models.iter().filter(|other| *other.name == *name) {
            others.push(alone(other, surroundings)?.upstream());
        }
    }
    if others.is_empty() {
        return Ok(upstream);
    }
    let fallback = Fallback::new(upstream, others);
    let origin = &model.fallback.origin;
    Ok(Arc::new(fallback.map_err(|error| usage(format!("{origin}: `fallback` of `{}`: {error}", *model.name)))?))
}

fn alone(model: &Model, surroundings: &Surroundings) -> anyhow::Result<Alone> {
    let http = match &model.endpoint {
        Endpoint::Demo => return Ok(Alone::Demo),
        Endpoint::Http(http) => http,
    };
    let options = ChatOptions {
        protocol: if *http.api == Api::Responses { Protocol::Responses } else { Protocol::Chat },
        url: (*http.url).clone(),
        model: (*http.upstream_name).clone(),
        key: http.key.fetch(&model.name, surroundings)?,
        capabilities: Capabilities { function_calling: *http.function_calling, vision: *http.vision },
        idle_timeout: http.idle_timeout.duration(),
    };
    let chat = Chat::new(options).map_err(|error| usage(format!("{}: {error}", http.url.origin)))?;
    Ok(Alone::Chat(chat))
}
