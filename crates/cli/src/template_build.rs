//! Builds of templates, which a signal ends: what was built so far is removed.

use aludel_sandbox::Template;
use aludel_sandbox::template::{BuildCancellation, BuildProgress};
use anyhow::Context as _;
use tokio::sync::oneshot;

use crate::console;
use crate::exit::interrupted;
use crate::progress::TemplateProgress;
use crate::signals::BuildSignals;

/// The receiver of a build's progress.
type ProgressReceiver<'a> = &'a mut dyn FnMut(BuildProgress);

/// Builds a template, or finds it.
pub(crate) async fn build<F>(progress: TemplateProgress, work: F) -> anyhow::Result<Template>
where
    F: FnOnce(&BuildCancellation, ProgressReceiver<'_>) -> Result<Template, aludel_sandbox::Error> + Send + 'static,
{
    let cancellation = BuildCancellation::default();
    let (began, beginning) = oneshot::channel();
    let mut building = std::pin::pin!(blocking(progress, cancellation.clone(), Some(began), work));
    // A template that is there takes no time, and leaves the signals as they are.
    tokio::select! {
        built = &mut building => return built,
        Ok(()) = beginning => {}
    }
    let mut signals = BuildSignals::listen().context("cannot listen to signals")?;
    tokio::select! {
        built = &mut building => {
            signals.end_process_until_answered();
            return built;
        }
        () = signals.next() => {}
    }
    console::status("ending: what was built is removed; once more to end at once");
    cancellation.cancel();
    tokio::select! {
        // Its failure is the end of the build.
        _ended = building => {}
        () = signals.next() => {}
    }
    Err(interrupted("the build of the template was ended"))
}

/// Builds a template, or finds it, for a caller that answers signals itself.
pub(crate) async fn build_unless<F>(
    progress: TemplateProgress,
    cancellation: &BuildCancellation,
    work: F,
) -> anyhow::Result<Template>
where
    F: FnOnce(&BuildCancellation, ProgressReceiver<'_>) -> Result<Template, aludel_sandbox::Error> + Send + 'static,
{
    blocking(progress, cancellation.clone(), None, work).await
}

async fn blocking<F>(
    mut progress: TemplateProgress,
    cancellation: BuildCancellation,
    mut began: Option<oneshot::Sender<()>>,
    work: F,
) -> anyhow::Result<Template>
where
    F: FnOnce(&BuildCancellation, ProgressReceiver<'_>) -> Result<Template, aludel_sandbox::Error> + Send + 'static,
{
    let built = tokio::task::spawn_blocking(move || {
        work(&cancellation, &mut |step| {
            // Nobody waits for it if the caller answers signals.
            let _unheard = began.take().map(|began| began.send(()));
            progress.show(&step);
        })
    });
    Ok(built.await.context("the template's builder ended")??)
}
