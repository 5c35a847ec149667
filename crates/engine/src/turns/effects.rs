//! The effects of one program, stored before their events are published.

use aludel_sandbox::{ClientCall, ExecutionEvent, Finished, MimeBundle};

use super::event::{Image, OutputPiece, RichValue, ToolOutcome};
use crate::Error;
use crate::sessions::{Session, SessionFile, StoredChanges};

/// Files of one program that are copied to the tenant's files.
const MAX_PUBLISHED: usize = 100;

/// A piece of a program's execution.
pub(crate) enum ExecutionPiece {
    /// Something that it puts out.
    Output(OutputPiece),
    /// Calls of the client's tools. The program waits for their answers.
    Calls(Vec<ClientCall>),
    /// Its end.
    Finished(Finished),
}

/// Target of the files that a program makes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FileTarget<'a> {
    /// The session of the program.
    pub(crate) session: Option<&'a Session>,
    /// The purpose of copies of its files among the tenant's files; `None` to make no copies.
    pub(crate) publish_as: Option<&'a str>,
}

impl FileTarget<'_> {
    /// Copies files to the tenant's files, if there is a purpose for them.
    pub(crate) async fn publish(self, files: &mut [SessionFile]) -> Result<(), Error> {
        match (self.session, self.publish_as) {
            (Some(session), Some(publish_as)) => session.publish_files(files, publish_as).await,
            _ => Ok(()),
        }
    }

    /// Stores something that a program showed.
    async fn figure(self, session: &Session, bytes: &[u8], mime: &str) -> Result<SessionFile, Error> {
        let mut file = session.add_figure(bytes, mime).await?;
        self.publish(std::slice::from_mut(&mut file)).await?;
        Ok(file)
    }
}

/// Converts an event of a program. Displayed values are stored as files of its session, and added to `figures`.
pub(crate) async fn piece(
    event: ExecutionEvent,
    target: FileTarget<'_>,
    figures: &mut Vec<SessionFile>,
) -> Result<ExecutionPiece, Error> {
    Ok(ExecutionPiece::Output(match event {
        ExecutionEvent::Stdout(text) => OutputPiece::Stdout(text),
        ExecutionEvent::Stderr(text) => OutputPiece::Stderr(text),
        ExecutionEvent::Display(bundle) => OutputPiece::Display(store_value(bundle, target, figures).await?),
        ExecutionEvent::Result(bundle) => OutputPiece::Result(store_value(bundle, target, figures).await?),
        ExecutionEvent::Error(error) => {
            OutputPiece::Error { name: error.name, value: error.value, traceback: error.traceback }
        }
        ExecutionEvent::Calls(calls) => return Ok(ExecutionPiece::Calls(calls)),
        ExecutionEvent::Finished(finished) => return Ok(ExecutionPiece::Finished(finished)),
    }))
}

/// Stores a program's files. The outcome is complete even if they could not be stored.
pub(crate) async fn store(
    finished: Finished,
    target: FileTarget<'_>,
    figures: Vec<SessionFile>,
) -> (ToolOutcome, Result<(), Error>) {
    let mut stored = StoredChanges { files: figures, ..StoredChanges::default() };
    let mut result = Ok(());
    if let Some(session) = target.session {
        match session.store_changes(&finished.files).await {
            Ok(mut changes) => {
                changes.files.retain(|file| is_result(&file.path));
                let count = changes.files.len().min(MAX_PUBLISHED);
                result = target.publish(changes.files.get_mut(..count).unwrap_or_default()).await;
                stored.files.extend(changes.files);
                stored.without_room = changes.without_room;
            }
            Err(error) => {
                stored.without_room = finished.files.iter().map(|file| file.path.clone()).collect();
                result = Err(error);
            }
        }
    }
    (ToolOutcome::new(finished, stored), result)
}

/// Returns false for the path of a file that tools keep for themselves, such as those of a repository. It is stored, and not told as a
/// result.
fn is_result(path: &str) -> bool {
    !path.split('/').any(|part| part.starts_with('.') || matches!(part, "node_modules" | "__pycache__"))
}

/// Stores a displayed value: its image, or else its page for a browser, becomes a file of the session.
async fn store_value(
    bundle: MimeBundle,
    target: FileTarget<'_>,
    figures: &mut Vec<SessionFile>,
) -> Result<RichValue, Error> {
    let image = match (bundle.image(), target.session) {
        (Some((mime, bytes)), Some(session)) => {
            let file = target.figure(session, bytes, mime).await?;
            figures.push(file.clone());
            Some(Image { file, bytes: bytes.into() })
        }
        _ => None,
    };
    if let (Some((mime, page)), Some(session)) = (bundle.page(), target.session) {
        figures.push(target.figure(session, page.as_bytes(), mime).await?);
    }
    Ok(RichValue::new(bundle, image))
}

#[cfg(test)]
mod tests {
    use aludel_sandbox::MimeData;

    use super::*;

    #[test]
    fn files_of_tools_are_no_results() {
        for path in ["/mnt/data/a.csv", "/mnt/data/out/b.tar.gz", "/mnt/data/modules/c"] {
            assert!(is_result(path), "{path}");
        }
        for path in
            ["/mnt/data/.env", "/mnt/data/.git/HEAD", "/mnt/data/web/node_modules/i.js", "/mnt/data/__pycache__/x.pyc"]
        {
            assert!(!is_result(path), "{path}");
        }
    }

    #[test]
    fn a_form_that_is_too_large_leaves_a_note() {
        let forms = |bytes| {
            MimeBundle(vec![
                ("text/plain".into(), MimeData::Text("<Figure>".into())),
                ("image/png".into(), MimeData::Binary(vec![0; bytes])),
            ])
        };
        let whole = RichValue::new(forms(7 << 20), None);
        assert_eq!((whole.text.as_deref(), whole.others.len()), (Some("<Figure>"), 1));
        let cut = RichValue::new(forms(9 << 20), None);
        let told = "<Figure>\n[image/png of 9 MB was left out: too large to show; write it to a file instead]";
        assert_eq!((cut.text.as_deref(), cut.others.len()), (Some(told), 0));
    }
}
