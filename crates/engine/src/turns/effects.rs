//! The effects of one program, stored before they are told.

use aludel_sandbox::{Event as ExecutionEvent, Finished, MimeBundle};

use super::event::{Image, Output, Rich, ToolOutcome};
use crate::Error;
use crate::sessions::{Session, SessionFile, StoredChanges};

/// A piece of what a program tells.
pub(crate) enum Piece {
    /// Something that it puts out.
    Output(Output),
    /// Its end.
    Finished(Finished),
}

/// Makes a piece of what a program tells. What it showed is kept as a file of its session, and added to `figures`.
pub(crate) async fn piece(
    event: ExecutionEvent,
    session: Option<&Session>,
    figures: &mut Vec<SessionFile>,
) -> Result<Piece, Error> {
    Ok(Piece::Output(match event {
        ExecutionEvent::Stdout(text) => Output::Stdout(text),
        ExecutionEvent::Stderr(text) => Output::Stderr(text),
        ExecutionEvent::Display(bundle) => Output::Display(shown(bundle, session, figures).await?),
        ExecutionEvent::Result(bundle) => Output::Result(shown(bundle, session, figures).await?),
        ExecutionEvent::Error(error) => {
            Output::Error { name: error.name, value: error.value, traceback: error.traceback }
        }
        ExecutionEvent::Finished(finished) => return Ok(Piece::Finished(finished)),
    }))
}

/// Stores what a program made. The outcome is complete, but for its files, also where they could not be stored.
pub(crate) async fn store(
    finished: Finished,
    session: Option<&Session>,
    figures: Vec<SessionFile>,
) -> (ToolOutcome, Result<(), Error>) {
    let mut stored = StoredChanges { files: figures, ..StoredChanges::default() };
    let mut result = Ok(());
    if let Some(session) = session {
        match session.store_changes(&finished.files).await {
            Ok(changes) => {
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

/// A value that a program showed. Its image, or else its page for a browser, is kept as a file of the session.
async fn shown(bundle: MimeBundle, session: Option<&Session>, figures: &mut Vec<SessionFile>) -> Result<Rich, Error> {
    let image = match (bundle.image(), session) {
        (Some((mime, bytes)), Some(session)) => {
            let file = session.add_figure(bytes, mime).await?;
            figures.push(file.clone());
            Some(Image { file, bytes: bytes.into() })
        }
        _ => None,
    };
    if let (Some((mime, page)), Some(session)) = (bundle.page(), session) {
        figures.push(session.add_figure(page.as_bytes(), mime).await?);
    }
    Ok(Rich::new(bundle, image))
}
