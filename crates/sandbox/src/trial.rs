//! A trial: starts, uses and ends one real sandbox, which shows more about a host than any list of its features.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::template::{self, Template, TemplateState};
use crate::{
    Backend, Error, ExecutionEvent, KernelStart, Limits, Local, LocalConfig, Outcome, Require, SandboxId, SandboxSpec,
};

/// A program, and the text that it prints.
const PROGRAM: (&str, &str) = ("print(6 * 7, flush=True)", "42\n");

/// Starts a sandbox, runs a program in it, and returns the time that this took. Without the default template it starts from a bare one,
/// which is made of the host's own files within seconds and removed again; nothing is downloaded.
pub async fn trial(data: &Path, require: Require) -> Result<Duration, Error> {
    let directory = data.to_path_buf();
    let template = tokio::task::spawn_blocking(move || match template::state(std::slice::from_ref(&directory)) {
        TemplateState::Ready(template) => Ok(template),
        TemplateState::Missing => template::bare(&directory),
        TemplateState::Unbuildable(reason) => Err(Error::Template(reason)),
    });
    let template = template.await.map_err(|error| Error::Setup(error.to_string()))??;
    let started = Instant::now();
    let tried = trial_of(data, template.clone(), require).await;
    let elapsed = started.elapsed();
    tokio::task::spawn_blocking(move || template::remove_bare(&template))
        .await
        .map_err(|error| Error::Setup(error.to_string()))??;
    tried.map(|()| elapsed)
}

/// Starts a sandbox from this template, with all that it preloads, and runs a program in it.
pub async fn trial_of(data: &Path, template: Template, require: Require) -> Result<(), Error> {
    let config = LocalConfig {
        data: data.to_path_buf(),
        template,
        limits: Limits::default(),
        pool: 0,
        require,
        start: KernelStart::Fork,
    };
    let backend = Local::start(config).await?;
    let ran = run_program(&backend, Limits::default()).await;
    backend.shutdown().await;
    ran
}

/// Starts a sandbox with these limits, and runs a program in it.
pub(crate) async fn run_program(backend: &dyn Backend, limits: Limits) -> Result<(), Error> {
    let sandbox = backend.create(SandboxId::unique(), SandboxSpec::new(limits)).await?;
    let mut execution = sandbox.execute(PROGRAM.0).await?;
    let mut printed = String::new();
    while let Some(event) = execution.next().await {
        match event {
            ExecutionEvent::Stdout(text) => printed.push_str(&text),
            ExecutionEvent::Finished(finished) if finished.outcome != Outcome::Completed => {
                return Err(Error::Setup(format!("the program ended as {}", finished.outcome.name())));
            }
            _ => {}
        }
    }
    if printed != PROGRAM.1 {
        return Err(Error::Setup(format!("the program printed {printed:?} instead of {:?}", PROGRAM.1)));
    }
    sandbox.close().await
}
