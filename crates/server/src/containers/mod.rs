//! Containers: sessions that have a name, files that outlive them, and a time after which they end.

mod api;
mod container;
mod memory;
mod registry;
#[cfg(test)]
mod tests;

pub(crate) use api::{add_file, create, delete, delete_file, file_content, list, list_files, retrieve, retrieve_file};
pub(crate) use container::{Container, ContainerFile};
pub(crate) use memory::MemoryLimit;
pub(crate) use registry::{ContainerChoice, Containers, NewContainer, reap};

use crate::error::ApiError;

/// Where programs find their files.
pub(crate) const ROOT: &str = "/mnt/data";

/// 404, in the words by which clients know it.
pub(crate) fn no_container(id: &str) -> ApiError {
    ApiError::not_found(format!("Container with id '{id}' not found."))
}

/// 400, in the words by which clients know it.
fn expired() -> ApiError {
    ApiError::bad_request("Container is expired.")
}
