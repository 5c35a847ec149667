//! Sandboxes: isolated places that run programs and hold files.
//!
//! This crate is usable alone: no database, no HTTP. The isolation itself is in `aludel-jail`; this crate has templates, the pool, the
//! kernel channel, executions and the host's side of workspaces.
#![forbid(unsafe_code)]

pub mod attack;
mod backend;
mod backends;
mod command_line;
mod conformance;
mod driver;
mod error;
mod event_memory;
mod event_queue;
mod execution;
pub mod files;
mod frame;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod guest_pipe;
mod guest_threads;
mod interpreter;
mod kernel;
mod kernel_spec;
mod language;
mod limits;
mod link;
mod outcome;
mod output;
pub mod probe;
pub mod process;
mod random;
mod sandbox_id;
pub mod template;
mod trial;
mod workspace;

pub use backend::{
    Backend, BackendStatus, Capabilities, Connection, Health, OfferedTemplate, Profile, Sandbox, SandboxSpec, Usage,
};
#[cfg(feature = "docker")]
pub use backends::docker::{DEFAULT_IMAGE, Docker, DockerConfig};
#[cfg(feature = "e2b")]
pub use backends::e2b::{E2b, E2bConfig};
pub use backends::local::{KernelStart, Local, LocalConfig, Require};
pub use backends::memory;
#[cfg(feature = "opensandbox")]
pub use backends::opensandbox::{Network, OpenSandbox, OpenSandboxConfig};
pub use backends::templates::Templates;
pub use command_line::CommandLine;
pub use conformance::{ConformancePrograms, conformance};
pub use error::Error;
pub use event_memory::{AllEventMemory, EventMemory};
pub use execution::{Execution, Interrupter};
pub use interpreter::{Interpreter, InterpreterBuilder, RunOutput};
pub use kernel::{CHART, Cell, INPUT, Kernel, KernelOptions, TABLE};
pub use kernel_spec::{KernelSpec, PYTHON_TOOL};
pub use language::{Language, NoLanguage};
pub use limits::Limits;
pub use outcome::{
    ClientAnswer, ClientCall, ExecutionEvent, Finished, KernelDeath, LimitHit, MimeBundle, MimeData, Outcome,
    ProgramError, VariablesState,
};
pub use sandbox_id::{InvalidSandboxId, SandboxId};
pub use template::Template;
pub use trial::{trial, trial_of};
pub use workspace::{
    FileEntry, Fingerprint, Workspace, WorkspaceEntry, WorkspaceListing, WorkspaceUsage, ending_of, mime_of,
};
