//! A command in a sandbox: its number, and its input.

use aludel_wire::e2b::process::{Input, ProcessEvent, Selector, SendInputRequest};
use serde_json::Value;

use crate::remote::{CommandEvents, Remote};

/// The number of a command that starts.
pub(super) async fn started(events: &mut CommandEvents) -> anyhow::Result<u32> {
    loop {
        match events.next().await? {
            ProcessEvent::Start(started) => return Ok(started.pid),
            ProcessEvent::Keepalive(_) => {}
            ProcessEvent::Data(_) | ProcessEvent::End(_) => anyhow::bail!("the server answers out of turn"),
        }
    }
}

/// Sends input to a command.
pub(super) async fn send(sandbox: &Remote, pid: u32, input: Input) -> anyhow::Result<()> {
    let request = SendInputRequest { process: Selector::Pid(pid), input };
    sandbox.call::<Value>("/process.Process/SendInput", &request).await.map(drop)
}
