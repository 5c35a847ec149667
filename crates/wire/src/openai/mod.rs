//! Objects of OpenAI's API beside chats, as clients read them.

mod containers;
mod conversations;
mod error;
mod files;
mod list;
mod models;
pub mod responses;

pub use containers::{
    AddContainerFile, Container, ContainerFile, ContainerFileObject, ContainerObject, CreateContainer, ExpiresAfter,
    IdleAnchor, IdleTime, LastActive, MemoryLimit, NetworkPolicy,
};
pub use conversations::{AddItems, Conversation, ConversationObject, CreateConversation, UpdateConversation};
pub use error::{Error, ErrorEnvelope};
pub use files::{
    CompleteUpload, CreateUpload, File, FileObject, Life, Processed, Upload, UploadObject, UploadPart, UploadPartObject,
};
pub use list::{Deleted, List, ListObject};
pub use models::{Model, ModelObject};

/// Writes the one value that a field of this object always has.
macro_rules! literal {
    ($($(#[$about:meta])* $name:ident = $text:literal;)*) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, schemars::JsonSchema)]
        pub enum $name {
            /// The only value.
            #[default]
            #[serde(rename = $text)]
            It,
        }
    )*};
}
pub(crate) use literal;
