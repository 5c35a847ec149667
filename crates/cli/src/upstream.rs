//! Getting from a configured model to one that can be asked.

use std::sync::Arc;
use std::time::Duration;

use aludel_agent::upstream::chat::{Chat, ChatOptions, Protocol};
use aludel_agent::upstream::demo::Demo;
use aludel_agent::upstream::{Capabilities, Upstream};

use crate::config::{Api, Endpoint, Http, Model, Surroundings};
use crate::exit::usage;

/// The model as the agent knows it.
pub(crate) fn of(model: &Model, surroundings: &Surroundings) -> anyhow::Result<Arc<dyn Upstream>> {
    let http = match &model.endpoint {
        Endpoint::Demo => return Ok(Arc::new(Demo::new(Duration::ZERO))),
        Endpoint::Http(http) => http,
    };
    let Http { api, url, key, upstream_name, vision, function_calling, idle_timeout } = &**http;
    let options = ChatOptions {
        protocol: if **api == Api::Responses { Protocol::Responses } else { Protocol::Chat },
        url: (**url).clone(),
        model: (**upstream_name).clone(),
        key: key.fetch(&model.name, surroundings)?,
        capabilities: Capabilities { function_calling: **function_calling, vision: **vision },
        idle_timeout: idle_timeout.duration(),
    };
    let chat = Chat::new(options).map_err(|error| usage(format!("{}: {error}", url.origin)))?;
    Ok(Arc::new(chat))
}
