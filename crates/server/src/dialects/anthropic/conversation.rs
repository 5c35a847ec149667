//! The conversation of a request, in the form for the model and the container.

use std::collections::{HashMap, HashSet};

use aludel_agent::upstream::FunctionTool;
use aludel_agent::{Call, CallOutput, CodeInterpreter, Item, Part, ProgramTool, RemoteImage, arguments_of, framed};
use aludel_engine::KernelSpec;
use aludel_engine::execution::ClientAnswer;
use aludel_engine::processor_time::end_long_step;
use aludel_engine::sessions::{WORKSPACE, free_name};
use aludel_store::Tenant;
use aludel_wire::Null;
use aludel_wire::anthropic::{
    Block, BlockDocument, Caller, CodeExecutionResult, Content, DocumentSource, EditorResult, ErrorCode, ImageSource,
    MessageDocument, ProgramResult, Role, ServerTool,
};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value};
use tokio::io::AsyncReadExt;

use super::files::Stored;
use crate::app::App;
use crate::error::ApiError;
use crate::http::MemoryCharge;

/// Bytes of a file that the model is shown.
const MAX_SHOWN: u64 = 8 << 20;
/// Files in one conversation, each counted once.
const MAX_FILES: usize = 100;
/// The result, for the model, of a program that cannot continue.
const LOST: &str = "The program was lost while it waited for the answers of the user's tools: they came too late, or the server was started \
                    again. What it did until then is done; it goes on no more.";

/// A conversation.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    /// The text of system messages.
    pub(super) instructions: String,
    pub(super) items: Vec<Item>,
    /// Files for the container, each once.
    pub(super) uploads: Vec<Upload>,
    /// Unanswered calls of the client's tools, with the numbers of their messages.
    open: HashMap<String, usize>,
    /// Calls of our tool that have no result yet.
    running: HashSet<String>,
    /// Calls that programs made in the last message of the model's.
    called: Vec<ProgramCall>,
    /// The program whose calls the last message answers.
    pub(super) pending: Option<PendingProgram>,
    /// The files that it names, by their ids.
    files: HashMap<String, Stored>,
}

/// A file that a message puts into the container.
#[derive(Debug)]
pub(super) struct Upload {
    pub(super) file: Stored,
    /// Its name in the container, which no other file of the conversation has.
    pub(super) name: String,
    /// True if the model has answered since then: the file exists unless the container is new.
    pub(super) is_old: bool,
}

/// A call that a program made.
#[derive(Debug, Clone)]
pub(super) struct ProgramCall {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) input: Map<String, Value>,
    /// The program: a call of our tool.
    program: String,
}

/// A program that waits for answers.
#[derive(Debug)]
pub(super) struct PendingProgram {
    /// The call of our tool.
    pub(super) program: String,
    pub(super) calls: Vec<ProgramCall>,
    /// The answers, in the order of the calls.
    pub(super) answers: Vec<ClientAnswer>,
    /// All calls of our tool that have no result yet.
    pub(super) unfinished: Vec<String>,
}

/// A block with its place in the request.
struct PlacedBlock {
    block: Block,
    /// The number of its message.
    message: usize,
    param: String,
}

/// A reader of messages.
struct Reader<'a> {
    app: &'a App,
    tenant: &'a Tenant,
    tools: &'a ToolNames,
    /// Counts the files that the model is shown.
    memory: &'a MemoryCharge,
}

impl Conversation {
    /// Parses the messages of a request, whose calls of our tools have these names; `memory` counts the files for the model.
    pub(super) async fn read(
        app: &App,
        tenant: &Tenant,
        messages: &[MessageDocument],
        tools: &ToolNames,
        memory: &MemoryCharge,
    ) -> Result<Self, ApiError> {
        let reader = Reader { app, tenant, tools, memory };
        let mut conversation = Self::default();
        // Messages of one role in a row are one.
        let mut turn: Option<(Role, Vec<PlacedBlock>)> = None;
        for (index, message) in messages.iter().enumerate() {
            end_long_step().await;
            let param = format!("messages.{index}");
            let message = message.read().map_err(|error| ApiError::invalid(&param, format!("{error}.")))?;
            let blocks = match message.content {
                Content::Text(text) => vec![Block::Text { text, citations: Null }],
                Content::Blocks(blocks) => read_all(&blocks, &format!("{param}.content"))?,
            };
            let param = format!("{param}.content");
            if message.role == Role::System {
                let separator = if conversation.instructions.is_empty() { "" } else { "\n\n" };
                let text = text_of_blocks(&blocks, &param)?;
                conversation.instructions.extend([separator, &text]);
                continue;
            }
            let place = |(place, block)| PlacedBlock { block, message: index, param: format!("{param}.{place}") };
            let blocks = blocks.into_iter().enumerate().map(place);
            match &mut turn {
                Some((role, said)) if *role == message.role => said.extend(blocks),
                _ => {
                    let before = turn.replace((message.role, blocks.collect()));
                    conversation.add(&reader, before).await?;
                }
            }
        }
        conversation.add(&reader, turn).await?;
        conversation.check_answers()?;
        if conversation.pending.is_none() {
            conversation.end_programs();
        }
        Ok(conversation)
    }

    /// Adds the messages of one role in a row.
    async fn add(&mut self, reader: &Reader<'_>, turn: Option<(Role, Vec<PlacedBlock>)>) -> Result<(), ApiError> {
        match turn {
            Some((Role::Assistant, blocks)) => self.assistant(reader, blocks),
            Some((_, blocks)) => self.user(reader, blocks).await,
            None => Ok(()),
        }
    }

    async fn user(&mut self, reader: &Reader<'_>, blocks: Vec<PlacedBlock>) -> Result<(), ApiError> {
        let calls = std::mem::take(&mut self.called);
        if calls.is_empty() {
            self.end_programs();
        }
        let mut answers: HashMap<String, ClientAnswer> = HashMap::new();
        let mut parts = Vec::with_capacity(blocks.len());
        for PlacedBlock { block, param, .. } in blocks {
            match block {
                Block::ToolResult { tool_use_id, content, is_error } => {
                    if self.open.remove(&tool_use_id).is_none() {
                        let message = format!(
                            "unexpected `tool_use_id` found in `tool_result` blocks: {tool_use_id}. Each `tool_result` \
                             block must have a corresponding `tool_use` block in the previous message."
                        );
                        return Err(ApiError::invalid(param, message));
                    }
                    if calls.iter().any(|call| call.id == tool_use_id) {
                        answers.insert(tool_use_id, answer(content, is_error, &param)?);
                        continue;
                    }
                    let parts = self.result(reader, content, is_error, &param).await?;
                    self.items.push(Item::Output(CallOutput { call_id: tool_use_id, parts }));
                }
                block if calls.is_empty() => parts.extend(self.part(reader, block, &param).await?),
                _ => {
                    let message = "A message that answers calls made by code can only contain `tool_result` blocks.";
                    return Err(ApiError::invalid(param, message));
                }
            }
        }
        self.check_answers()?;
        self.pending = calls.first().map(|first| {
            let mut unfinished: Vec<String> = self.running.iter().cloned().collect();
            unfinished.sort();
            PendingProgram {
                program: first.program.clone(),
                answers: calls.iter().filter_map(|call| answers.remove(&call.id)).collect(),
                calls: calls.clone(),
                unfinished,
            }
        });
        if !parts.is_empty() {
            self.items.push(Item::User(parts));
        }
        Ok(())
    }

    /// Checks that calls of the client's tools are answered.
    fn check_answers(&self) -> Result<(), ApiError> {
        match self.open.iter().min_by_key(|(_, place)| **place) {
            None => Ok(()),
            Some((id, place)) => {
                let message =
                    format!("`tool_use` ids were found without `tool_result` blocks immediately after: {id}.");
                Err(ApiError::invalid(format!("messages.{place}"), message))
            }
        }
    }

    async fn result(
        &mut self,
        reader: &Reader<'_>,
        content: Option<Content>,
        is_error: Option<bool>,
        param: &str,
    ) -> Result<Vec<Part>, ApiError> {
        let mut parts = Vec::new();
        if is_error == Some(true) {
            parts.push(Part::Text("The tool failed:".to_owned()));
        }
        match content {
            None => {}
            Some(Content::Text(text)) => parts.push(Part::Text(text)),
            Some(Content::Blocks(blocks)) => {
                let param = format!("{param}.content");
                for (place, block) in read_all(&blocks, &param)?.into_iter().enumerate() {
                    parts.extend(self.part(reader, block, &format!("{param}.{place}")).await?);
                }
            }
        }
        Ok(parts)
    }

    /// Reads a block of a user's message or of a tool's result.
    async fn part(&mut self, reader: &Reader<'_>, block: Block, param: &str) -> Result<Vec<Part>, ApiError> {
        Ok(vec![match block {
            Block::Text { text, .. } => Part::Text(text),
            Block::Image { source } => self.image(reader, source, param).await?,
            Block::Document { source, title, context } => {
                let text = self.document(reader, source, &format!("{param}.source")).await?;
                let head = [title, context].into_iter().flatten();
                Part::Text(head.chain([text]).collect::<Vec<_>>().join("\n"))
            }
            Block::SearchResult { source, title, content } => {
                Part::Text([title, source, text_of(&content, &format!("{param}.content"))?].join("\n"))
            }
            Block::ContainerUpload { file_id } => Part::Text(self.upload(reader, &file_id, param).await?),
            other => return Err(misplaced(&other, "user", param)),
        }])
    }

    async fn upload(&mut self, reader: &Reader<'_>, id: &str, param: &str) -> Result<String, ApiError> {
        let file = self.file(reader, id, param).await?;
        let known = self.uploads.iter().find(|known| known.file.id() == id).map(|known| known.name.clone());
        let name = known.unwrap_or_else(|| {
            let taken = self.uploads.iter().map(|known| known.name.clone()).collect();
            let name = free_name(file.name(), &taken);
            self.uploads.push(Upload { file, name: name.clone(), is_old: false });
            name
        });
        Ok(format!("[The user attached a file: {WORKSPACE}/{name}]"))
    }

    async fn file(&mut self, reader: &Reader<'_>, id: &str, param: &str) -> Result<Stored, ApiError> {
        if let Some(known) = self.files.get(id) {
            return Ok(known.clone());
        }
        if self.files.len() == MAX_FILES {
            return Err(ApiError::invalid(param, format!("A conversation can name {MAX_FILES} files.")));
        }
        let found = Stored::find(reader.app, reader.tenant, id).await;
        let found = found.map_err(|error| error.param(format!("{param}.file_id")))?;
        self.files.insert(id.to_owned(), found.clone());
        Ok(found)
    }

    async fn image(&mut self, reader: &Reader<'_>, source: ImageSource, param: &str) -> Result<Part, ApiError> {
        let param = format!("{param}.source");
        match source {
            ImageSource::Base64 { media_type, data } => {
                check_image(&media_type, &param)?;
                let data = BASE64_STANDARD.decode(data.trim());
                let data = data.map_err(|error| ApiError::not_base64(format!("{param}.data"), &error))?;
                Ok(Part::image(media_type, data))
            }
            ImageSource::Url { url } => Ok(Part::ImageUrl(RemoteImage { url, detail: None })),
            ImageSource::File { file_id } => {
                let file = self.file(reader, &file_id, &param).await?;
                check_image(file.mime(), &param)?;
                Ok(Part::image(file.mime(), content(reader, &file, &param).await?))
            }
        }
    }

    async fn document(&mut self, reader: &Reader<'_>, source: DocumentSource, param: &str) -> Result<String, ApiError> {
        let unread = |kind: &str| {
            let message = format!(
                "Documents of the type '{kind}' cannot be shown to the model here; put it in as text, or into the container with 'container_upload'."
            );
            ApiError::invalid(param, message)
        };
        match source {
            DocumentSource::Text { data } | DocumentSource::Content { content: Content::Text(data) } => Ok(data),
            DocumentSource::Content { content: Content::Blocks(blocks) } => {
                text_of(&blocks, &format!("{param}.content"))
            }
            DocumentSource::Base64 { media_type, .. } => Err(unread(&media_type)),
            DocumentSource::Url { .. } => Err(unread("url")),
            DocumentSource::File { file_id } => {
                let file = self.file(reader, &file_id, param).await?;
                if !file.mime().starts_with("text/") {
                    return Err(unread(file.mime()));
                }
                Ok(String::from_utf8_lossy(&content(reader, &file, param).await?).into_owned())
            }
        }
    }

    fn assistant(&mut self, reader: &Reader<'_>, blocks: Vec<PlacedBlock>) -> Result<(), ApiError> {
        self.check_answers()?;
        self.pending = None;
        self.uploads.iter_mut().for_each(|upload| upload.is_old = true);
        for PlacedBlock { block, message, param } in blocks {
            match block {
                Block::Text { text, .. } if text.is_empty() => {}
                Block::Text { text, .. } => self.items.push(Item::Assistant(text)),
                Block::Thinking { thinking, .. } if thinking.is_empty() => {}
                Block::Thinking { thinking, .. } => self.items.push(Item::Reasoning(thinking)),
                // Only the server that made it could read it.
                Block::RedactedThinking { .. } => {}
                Block::ToolUse { id, name, input, caller } => {
                    if self.open.insert(id.clone(), message).is_some() {
                        return Err(ApiError::invalid(format!("{param}.id"), format!("There are two calls '{id}'.")));
                    }
                    if let Some(Caller::Program(caller)) = caller {
                        self.called(ProgramCall { id, name, input, program: caller.tool_id }, &param)?;
                        continue;
                    }
                    self.items.push(Item::Call(Call { id, name, arguments: json(input) }));
                }
                Block::ServerToolUse { id, name, input, .. } => {
                    let Some((tool, arguments)) = reader.tools.call(&name, input) else {
                        let message = format!("Calls of the tool '{}' are not understood here.", name.name());
                        return Err(ApiError::invalid(format!("{param}.name"), message));
                    };
                    if !self.running.insert(id.clone()) {
                        return Err(ApiError::invalid(format!("{param}.id"), format!("There are two calls '{id}'.")));
                    }
                    self.items.push(Item::Call(Call { id, name: tool.to_owned(), arguments }));
                }
                Block::CodeExecutionToolResult { tool_use_id, content }
                | Block::BashCodeExecutionToolResult { tool_use_id, content } => {
                    self.end(tool_use_id, &words_of(&content), &param)?;
                }
                Block::TextEditorCodeExecutionToolResult { tool_use_id, content } => {
                    self.end(tool_use_id, &words_of_editor(content), &param)?;
                }
                other => return Err(misplaced(&other, "assistant", &param)),
            }
        }
        Ok(())
    }

    /// Adds a call that a program made.
    fn called(&mut self, call: ProgramCall, param: &str) -> Result<(), ApiError> {
        let ProgramCall { id, program, .. } = &call;
        if !self.running.contains(program) {
            let message = format!("source tool `{program}` not found for tool use block `{id}`");
            return Err(ApiError::bad_request(message).param(param));
        }
        if self.called.iter().any(|other| other.program != *program) {
            let message = "Calls in one message are made by one program.";
            return Err(ApiError::invalid(format!("{param}.caller"), message));
        }
        self.called.push(call);
        Ok(())
    }

    /// Ends the programs that wait for answers and cannot continue.
    pub(super) fn lose(&mut self, programs: &[String]) {
        for id in programs.iter().filter(|id| self.running.remove(*id)) {
            self.items.push(Item::output(id, LOST));
        }
    }

    /// Returns true if this program was written in this call.
    pub(super) fn wrote(&self, id: &str, code: &str) -> bool {
        let arguments = arguments_of(code);
        self.items.iter().any(|item| matches!(item, Item::Call(call) if call.id == id && call.arguments == arguments))
    }

    /// Ends a program of an earlier message.
    fn end(&mut self, id: String, output: &str, param: &str) -> Result<(), ApiError> {
        if !self.running.remove(&id) {
            let message = format!("There is no `server_tool_use` block '{id}' before this result.");
            return Err(ApiError::invalid(format!("{param}.tool_use_id"), message));
        }
        self.items.push(Item::output(id, framed(output)));
        Ok(())
    }

    /// Ends the programs without a result: no program that a client wrote is ever run.
    fn end_programs(&mut self) {
        let mut left: Vec<String> = self.running.drain().collect();
        left.sort();
        self.items.extend(left.into_iter().map(|id| Item::output(id, "(no result is known)")));
    }
}

/// The names by which the model knows our tools.
#[derive(Debug)]
pub(super) struct ToolNames {
    python: String,
    /// Those of the shell and the editor, where it has them.
    shell: Option<(String, String)>,
}

impl ToolNames {
    /// The names beside these tools of the client's.
    pub(super) fn beside(kernel: &KernelSpec, others: &[FunctionTool], has_shell: bool) -> Self {
        let shell = || (ProgramTool::Bash.name_beside(others), ProgramTool::Editor.name_beside(others));
        Self { python: CodeInterpreter::name_beside(kernel, others), shell: has_shell.then(shell) }
    }

    /// An earlier call in the model's own form: a tool that it has now, with the arguments.
    fn call(&self, tool: &ServerTool, input: Map<String, Value>) -> Option<(&str, String)> {
        let text = |name: &str| input.get(name).and_then(Value::as_str).unwrap_or_default();
        let python = |program: &str| (self.python.as_str(), arguments_of(program));
        Some(match (tool, &self.shell) {
            (ServerTool::CodeExecution, _) => python(text("code")),
            (ServerTool::BashCodeExecution, Some((bash, _))) => (bash, json(input)),
            (ServerTool::BashCodeExecution, None) => python(&format!("%%bash\n{}", text("command"))),
            (ServerTool::TextEditorCodeExecution, Some((_, editor))) => (editor, json(input)),
            (ServerTool::TextEditorCodeExecution, None) => {
                python(&format!("# A change of a file: {}", json(input.clone())))
            }
            (ServerTool::Other(_), _) => return None,
        })
    }
}

/// The client's answer to a call that a program made.
fn answer(content: Option<Content>, is_error: Option<bool>, param: &str) -> Result<ClientAnswer, ApiError> {
    let text = match content {
        None => String::new(),
        Some(Content::Text(text)) => text,
        Some(Content::Blocks(blocks)) => text_of(&blocks, &format!("{param}.content"))?,
    };
    Ok(ClientAnswer { text, is_error: is_error == Some(true) })
}

fn words_of(result: &CodeExecutionResult) -> String {
    match result {
        CodeExecutionResult::CodeExecutionResult(result) | CodeExecutionResult::BashCodeExecutionResult(result) => {
            let ProgramResult { stdout, stderr, return_code, content } = result;
            let mut words = format!("stdout:\n{stdout}\nstderr:\n{stderr}\nexit status: {return_code}");
            if !content.is_empty() {
                words.push_str(&format!("\n[{} files were given to the user]", content.len()));
            }
            words
        }
        CodeExecutionResult::EncryptedCodeExecutionResult { stderr, return_code, .. } => {
            format!("stdout: (not readable here)\nstderr:\n{stderr}\nexit status: {return_code}")
        }
        CodeExecutionResult::CodeExecutionToolResultError { error_code }
        | CodeExecutionResult::BashCodeExecutionToolResultError { error_code } => words_of_error(error_code),
    }
}

fn words_of_error(code: &ErrorCode) -> String {
    match code {
        ErrorCode::InvalidToolInput => "It was not run: the arguments could not be used.".to_owned(),
        ErrorCode::Unavailable => "It was not run to its end.".to_owned(),
        ErrorCode::TooManyRequests => "It was not run: too many were asked for at once.".to_owned(),
        ErrorCode::ExecutionTimeExceeded => "It was ended: it took too long.".to_owned(),
        ErrorCode::FileNotFound => "The file is not there.".to_owned(),
        ErrorCode::Other(code) => format!("It failed: {code}."),
    }
}

fn words_of_editor(result: EditorResult) -> String {
    match result {
        EditorResult::View { content, .. } => content,
        EditorResult::Create { is_file_update: true } => "The file was replaced.".to_owned(),
        EditorResult::Create { is_file_update: false } => "The file was made.".to_owned(),
        EditorResult::Replace { lines, .. } => lines.unwrap_or_default().join("\n"),
        EditorResult::Error { error_code, error_message } => {
            error_message.unwrap_or_else(|| words_of_error(&error_code))
        }
    }
}

fn json(fields: Map<String, Value>) -> String {
    Value::Object(fields).to_string()
}

/// Reads the content of a file that the model is shown.
async fn content(reader: &Reader<'_>, file: &Stored, param: &str) -> Result<Vec<u8>, ApiError> {
    if file.bytes() > MAX_SHOWN {
        let message = format!("The file is larger than the {} MB that a model is shown.", MAX_SHOWN >> 20);
        return Err(ApiError::invalid(param, message));
    }
    reader.memory.count_file(file.bytes())?;
    let mut bytes = Vec::new();
    let mut content = reader.app.store.read_blob(file.blob()).await?.take(MAX_SHOWN);
    content.read_to_end(&mut bytes).await.map_err(ApiError::internal)?;
    Ok(bytes)
}

fn check_image(mime: &str, param: &str) -> Result<(), ApiError> {
    if matches!(mime, "image/png" | "image/jpeg" | "image/gif" | "image/webp") {
        return Ok(());
    }
    let message = format!("Images can be PNG, JPEG, GIF or WebP, and this is '{mime}'.");
    Err(ApiError::invalid(format!("{param}.media_type"), message))
}

fn misplaced(block: &Block, role: &str, param: &str) -> ApiError {
    let kind = match block {
        Block::Text { .. } => "text",
        Block::Image { .. } => "image",
        Block::Document { .. } => "document",
        Block::SearchResult { .. } => "search_result",
        Block::Thinking { .. } => "thinking",
        Block::RedactedThinking { .. } => "redacted_thinking",
        Block::ToolUse { .. } => "tool_use",
        Block::ToolResult { .. } => "tool_result",
        Block::ServerToolUse { .. } => "server_tool_use",
        Block::CodeExecutionToolResult { .. } => "code_execution_tool_result",
        Block::BashCodeExecutionToolResult { .. } => "bash_code_execution_tool_result",
        Block::TextEditorCodeExecutionToolResult { .. } => "text_editor_code_execution_tool_result",
        Block::ContainerUpload { .. } => "container_upload",
    };
    ApiError::invalid(param, format!("A '{kind}' block cannot stand in a message of the role '{role}'."))
}

fn read_all(blocks: &[BlockDocument], param: &str) -> Result<Vec<Block>, ApiError> {
    let read = |(place, block): (usize, &BlockDocument)| {
        block.read().map_err(|error| ApiError::invalid(format!("{param}.{place}"), format!("{error}.")))
    };
    blocks.iter().enumerate().map(read).collect()
}

/// The text of blocks that can only be text.
pub(super) fn text_of(blocks: &[BlockDocument], param: &str) -> Result<String, ApiError> {
    text_of_blocks(&read_all(blocks, param)?, param)
}

fn text_of_blocks(blocks: &[Block], param: &str) -> Result<String, ApiError> {
    let texts = blocks.iter().enumerate().map(|(place, block)| match block {
        Block::Text { text, .. } => Ok(text.as_str()),
        _ => Err(ApiError::invalid(format!("{param}.{place}"), "There can only be text here.")),
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n\n"))
}
