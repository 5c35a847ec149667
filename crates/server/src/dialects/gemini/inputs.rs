//! The files of a conversation, in the form for the model and the session.

use aludel_agent::Part;
use aludel_engine::Session;
use aludel_engine::execution::ending_of;
use aludel_engine::sessions::WORKSPACE;
use aludel_store::BlobName;
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE};

use super::MAX_FILES;
use super::attachments::{AttachedFiles, Attachment};
use crate::app::App;
use crate::error::ApiError;

/// The files of a conversation.
#[derive(Debug)]
pub(super) struct Inputs {
    /// True if there is a session that they go into.
    has_session: bool,
    files: Vec<File>,
    /// The number of files, counted from the first, that an earlier request has copied into the session.
    repeated: usize,
}

/// A file that comes in a message.
#[derive(Debug)]
pub(super) struct Inline<'a> {
    pub(super) mime: &'a str,
    /// Base64.
    pub(super) data: &'a str,
    pub(super) name: Option<String>,
}

/// A file that a message brings.
#[derive(Debug)]
struct File {
    name: String,
    mime: String,
    content: FileContent,
}

/// The content of a file.
#[derive(Debug, PartialEq, Eq)]
enum FileContent {
    /// Bytes of the message.
    Inline(Vec<u8>),
    /// A file of the Files API.
    Stored(BlobName),
}

impl Inputs {
    /// An empty list.
    pub(super) fn new(has_session: bool) -> Self {
        Self { has_session, files: Vec::new(), repeated: 0 }
    }

    /// Marks all files so far as copied by an earlier request.
    pub(super) fn are_repeated(&mut self) {
        self.repeated = self.files.len();
    }

    /// Parses a file inside a message; `param` is its place there.
    pub(super) fn inline(&mut self, file: Inline<'_>, param: &str, parts: &mut Vec<Part>) -> Result<(), ApiError> {
        let Inline { mime, data, name } = file;
        let data = BASE64_STANDARD.decode(data).or_else(|_| BASE64_URL_SAFE.decode(data));
        let Ok(bytes) = data else {
            let message = format!("'{param}.data' is not base64.");
            return Err(ApiError::invalid(format!("{param}.data"), message));
        };
        self.show(mime, Some(&bytes), param, parts)?;
        if !self.has_session {
            return Ok(());
        }
        self.take(name, mime, FileContent::Inline(bytes), param, parts)
    }

    /// Parses a reference to a file of the Files API; `param` is the path of its address in the message.
    pub(super) fn named(
        &mut self,
        uri: &str,
        attached: &AttachedFiles,
        param: &str,
        parts: &mut Vec<Part>,
    ) -> Result<(), ApiError> {
        let missing = || ApiError::invalid(param, format!("'{param}' leads to no file."));
        let Attachment { file, shown } = attached.get(uri).ok_or_else(missing)?;
        self.show(&file.mime, shown.as_deref(), param, parts)?;
        if !self.has_session {
            return Ok(());
        }
        let content = FileContent::Stored(file.blob.clone());
        if let Some(known) = self.files.iter().find(|known| known.content == content) {
            parts.push(mention(&known.name));
            return Ok(());
        }
        // Display names often have no extension, by which programs recognize files.
        let name = match ending_of(&file.mime) {
            Some(ending) if !file.filename.contains('.') => format!("{}.{ending}", file.filename),
            _ => file.filename.clone(),
        };
        self.take(Some(name), &file.mime, content, param, parts)
    }

    /// Adds a file, under this name if it is free.
    fn take(
        &mut self,
        name: Option<String>,
        mime: &str,
        content: FileContent,
        param: &str,
        parts: &mut Vec<Part>,
    ) -> Result<(), ApiError> {
        let same = |file: &&File| name.as_ref() == Some(&file.name) && file.content == content;
        if let Some(known) = self.files.iter().find(same) {
            parts.push(mention(&known.name));
            return Ok(());
        }
        if self.files.len() == MAX_FILES {
            return Err(ApiError::invalid(param, format!("There can be at most {MAX_FILES} files in a conversation.")));
        }
        let is_taken = |name: &str| self.files.iter().any(|file| file.name == name);
        let name = name.filter(|name| !is_taken(name)).unwrap_or_else(|| {
            let (ending, mut number) = (ending_of(mime).unwrap_or("bin"), self.files.len());
            loop {
                let name = format!("input_file_{number}.{ending}");
                if !is_taken(&name) {
                    return name;
                }
                number += 1;
            }
        });
        parts.push(mention(&name));
        self.files.push(File { name, mime: mime.to_owned(), content });
        Ok(())
    }

    /// Adds a file to the model's input: an image, or a text for which there is no other place.
    fn show(&self, mime: &str, content: Option<&[u8]>, param: &str, parts: &mut Vec<Part>) -> Result<(), ApiError> {
        match content {
            Some(bytes) if mime.starts_with("image/") => {
                parts.push(Part::image(mime, bytes));
                return Ok(());
            }
            _ if self.has_session => return Ok(()),
            _ => {}
        }
        match content.map(std::str::from_utf8) {
            Some(Ok(text)) if mime.starts_with("text/") => {
                parts.push(Part::Text(text.to_owned()));
                Ok(())
            }
            _ => {
                let message = format!("'{param}' of the type {mime} needs the tool for code execution.");
                Err(ApiError::invalid(param, message))
            }
        }
    }

    /// Copies the files into the session. Those of earlier requests are there unless the session is new.
    pub(super) async fn copy_into(&self, app: &App, session: &Session) -> Result<(), ApiError> {
        if self.files.is_empty() {
            return Ok(());
        }
        let present = session.files().await?;
        for (index, File { name, mime, content }) in self.files.iter().enumerate() {
            let path = format!("{WORKSPACE}/{name}");
            if index < self.repeated && present.iter().any(|file| file.path == path) {
                continue;
            }
            let blob = match content {
                FileContent::Inline(bytes) => app.store.write_blob(session.tenant(), bytes).await?,
                FileContent::Stored(blob) => app.store.copy_blob(session.tenant(), blob).await?,
            };
            session.add_file(name, mime, blob).await?;
        }
        Ok(())
    }
}

/// The note by which the model learns of a file.
fn mention(name: &str) -> Part {
    Part::Text(format!("[The user attached a file: {WORKSPACE}/{name}]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_name_gets_one_that_no_other_has() {
        let (mut inputs, mut parts) = (Inputs::new(true), Vec::new());
        for (name, data) in [(Some("input_file_1.csv"), "YQ=="), (None, "Yg=="), (Some("input_file_1.csv"), "Yw==")] {
            let file = Inline { mime: "text/csv", data, name: name.map(str::to_owned) };
            inputs.inline(file, "contents[0]", &mut parts).unwrap();
        }
        let names: Vec<&str> = inputs.files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["input_file_1.csv", "input_file_2.csv", "input_file_3.csv"]);
    }
}
