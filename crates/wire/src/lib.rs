//! Messages of the protocols that aludel speaks, as plain data in both directions. No I/O, no rules: who reads them decides what they mean.
//!
//! Input is taken as real clients and servers send it: unknown fields are ignored, `null` is the same as absent, and an unknown kind of
//! tool or content part is kept as JSON instead of failing the message around it.
#![forbid(unsafe_code)]

pub mod chat;
pub mod openai;
