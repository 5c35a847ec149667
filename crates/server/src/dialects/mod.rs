//! The protocols that programs already speak, one folder each.

pub(crate) mod openai;
