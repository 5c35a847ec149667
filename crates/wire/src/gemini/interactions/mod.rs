//! The Interactions API: the answers of `generateContent` with ids, stored, and as a list of steps. Its fields are in snake case.

mod event;
mod interaction;
mod request;
mod step;

pub use event::{Delta, Event, StreamEvent};
pub use interaction::{Interaction, InteractionError, InteractionKind, Status, Usage};
pub use request::{
    AllowedTools, CreateInteraction, Environment, EnvironmentObject, GenerationConfig, ResponseFormat, Source, Tool,
    ToolChoice,
};
pub use step::{CodeArguments, Content, Media, Step, StepDocument};
