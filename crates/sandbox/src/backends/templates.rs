//! Several templates: one backend for each, behind a common one.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::{BoxFuture, join_all};

use crate::backend::{Backend, BackendStatus, Capabilities, Health, OfferedTemplate, Sandbox, SandboxSpec};
use crate::template::TemplateName;
use crate::{Error, SandboxId, Template};

/// A backend whose sandboxes start from the usual template or a further one that a request names.
#[derive(Debug)]
pub struct Templates {
    usual: Arc<dyn Backend>,
    /// The name of the usual template, if it has one.
    usual_name: Option<TemplateName>,
    further: BTreeMap<TemplateName, Arc<dyn Backend>>,
    capabilities: Capabilities,
}

impl OfferedTemplate {
    /// A template under its name.
    pub fn new(name: TemplateName, template: &Template) -> Self {
        Self { name, packages: template.packages().iter().map(|package| package.name.clone()).collect() }
    }
}

impl Templates {
    /// The backend of the usual template, with its name if it has one, and those of further ones.
    pub fn new(
        usual: Arc<dyn Backend>,
        named: Option<OfferedTemplate>,
        further: impl IntoIterator<Item = (OfferedTemplate, Arc<dyn Backend>)>,
    ) -> Self {
        let mut capabilities = usual.capabilities().clone();
        let (offers, further): (Vec<_>, Vec<_>) = further.into_iter().unzip();
        let further = offers.iter().map(|offer| offer.name.clone()).zip(further).collect();
        let usual_name = named.as_ref().map(|offer| offer.name.clone());
        capabilities.templates = named.into_iter().chain(offers).collect();
        Self { usual, usual_name, further, capabilities }
    }

    /// All backends, the usual one first.
    fn all(&self) -> impl Iterator<Item = &Arc<dyn Backend>> {
        std::iter::once(&self.usual).chain(self.further.values())
    }
}

impl Backend for Templates {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn create(&self, id: SandboxId, spec: SandboxSpec) -> BoxFuture<'_, Result<Arc<dyn Sandbox>, Error>> {
        let backend = match &spec.template {
            None => &self.usual,
            name if *name == self.usual_name => &self.usual,
            Some(name) => match self.further.get(name) {
                Some(backend) => backend,
                None => return Box::pin(async { Err(Error::NotSupported("a template of this name")) }),
            },
        };
        backend.create(id, SandboxSpec { template: None, ..spec })
    }

    fn destroy<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { join_all(self.all().map(|backend| backend.destroy(id))).await.into_iter().collect() })
    }

    fn list<'a>(&'a self, owner: Option<&'a str>) -> BoxFuture<'a, Result<Vec<SandboxId>, Error>> {
        Box::pin(async move {
            let lists = join_all(self.all().map(|backend| backend.list(owner))).await;
            let mut ids = lists.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
            ids.sort();
            Ok(ids)
        })
    }

    fn health(&self) -> Health {
        let mut health = self.usual.health();
        for (name, backend) in &self.further {
            let further = backend.health();
            health.pooled += further.pooled;
            if let (BackendStatus::Ready, BackendStatus::Degraded { reason }) = (&health.status, further.status) {
                health.status = BackendStatus::Degraded { reason: format!("the template `{name}`: {reason}") };
            }
        }
        health
    }

    fn shutdown(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            join_all(self.all().map(|backend| backend.shutdown())).await;
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use crate::{ExecutionEvent, Limits};

    fn scripted(word: &'static str) -> Arc<Memory> {
        Arc::new(Memory::new(move |_, cell| {
            cell.print(word);
        }))
    }

    async fn said(backend: &Templates, template: Option<&str>) -> Result<String, Error> {
        let template = template.map(|name| name.parse().unwrap());
        let spec = SandboxSpec { template, ..SandboxSpec::new(Limits::default()) };
        let sandbox = backend.create(SandboxId::unique(), spec).await?;
        assert_eq!(backend.list(None).await?, [sandbox.id().clone()]);
        let mut execution = sandbox.execute("x").await?;
        let mut said = String::new();
        while let Some(event) = execution.next().await {
            if let ExecutionEvent::Stdout(text) = event {
                said.push_str(&text);
            }
        }
        backend.destroy(sandbox.id()).await?;
        assert!(backend.list(None).await?.is_empty());
        Ok(said)
    }

    #[tokio::test]
    async fn a_sandbox_starts_from_the_template_that_is_named() {
        let offer = OfferedTemplate { name: "ml".parse().unwrap(), packages: vec!["torch".into()] };
        let further = scripted("ml");
        let named = OfferedTemplate { name: "base".parse().unwrap(), packages: Vec::new() };
        let further_one = [(offer, Arc::clone(&further) as Arc<dyn Backend>)];
        let backend = Templates::new(scripted("usual"), Some(named), further_one);
        assert_eq!(said(&backend, None).await.unwrap(), "usual");
        assert_eq!(said(&backend, Some("base")).await.unwrap(), "usual");
        assert_eq!(said(&backend, Some("ml")).await.unwrap(), "ml");
        assert!(matches!(said(&backend, Some("geo")).await, Err(Error::NotSupported(_))));
        let alone = scripted("alone");
        let spec = SandboxSpec { template: Some("ml".parse().unwrap()), ..SandboxSpec::new(Limits::default()) };
        assert!(matches!(alone.create(SandboxId::unique(), spec).await, Err(Error::NotSupported(_))));

        assert_eq!(backend.health().status, BackendStatus::Ready);
        further.fail(Some("no room"));
        assert!(said(&backend, Some("ml")).await.is_err());
    }
}
