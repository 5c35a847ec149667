//! Attacks on a server and on its clients by programs in sandboxes, and on sandboxes by strangers: real requests to the real server with
//! the local sandbox, which all of them share. Each attacker is a tenant of its own, and each test has a control that works.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, and cases need a part of this"
)]

#[path = "../common/mod.rs"]
mod common;
mod raw;
mod tenant;

/// Tests that need a template.
mod local_sandbox {
    mod answers;
    mod contexts;
    mod init;
    mod links;
    mod names;
    mod share;
    mod terminals;
    mod tunnels;
    mod watches;
}
