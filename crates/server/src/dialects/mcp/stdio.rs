//! Standard input and output: one message a line, and nothing else.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use aludel_engine::{ArrivalOrder, Engine, Tasks};
use aludel_ignore::Ignore;
use aludel_store::Tenant;
use rmcp::RoleServer;
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, ErrorData, GetExtensions as _, ServerJsonRpcMessage};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage, serve_server_with_ct};
use rmcp::transport::Transport;
use rmcp::transport::async_rw::AsyncRwTransport;
use serde::de::IgnoredAny;
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader, DuplexStream,
};
use tokio::sync::mpsc;
use tracing::warn;

use super::server::Server;
use super::tools::Profile;
use super::{Head, Mcp};
use crate::auth::DailyBudgets;

/// Time for which a budget's state is believed.
const BUDGETS_FRESH: Duration = Duration::from_secs(1);
/// Bytes of a line. A longer one ends the connection: its id is unknown, so nobody could be answered.
const MAX_LINE: u64 = 64 << 20;
/// Bytes that wait between the reader of lines and the protocol.
const PIPE: usize = 64 << 10;
/// Refusals that wait to be written.
const MAX_REFUSALS: usize = 16;

/// Serves a client on these streams until it closes its end. Running programs are then interrupted.
pub async fn serve(
    engine: &Arc<Engine>,
    return_after: Duration,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
) {
    let mcp = Mcp::new(engine, Arc::new(DailyBudgets::new(BUDGETS_FRESH)), return_after);
    let server = Server::new(&mcp, &Tenant::terminal(), Profile::Full);
    let (readable, lines) = tokio::io::duplex(PIPE);
    let (refuse, refused) = mpsc::channel(MAX_REFUSALS);
    let reading = async {
        read_lines(input, readable, refuse).await.ignore("the client sees that its messages are not taken");
        std::future::pending::<()>().await;
    };
    let messages = AsyncRwTransport::new_server(lines, output).with_max_line_length(usize::MAX);
    let transport = Lines { messages, refused, calls: ArrivalOrder::default(), tasks: engine.tasks.clone() };
    let serving = async {
        if let Ok(serving) = serve_server_with_ct(server, transport, engine.shutdown.child_token()).await {
            serving.waiting().await.ignore("it ends with the client, for whatever reason");
        }
    };
    tokio::select! {
        () = serving => {}
        () = reading => {}
    }
}

/// The messages of a client, and refusals of those that cannot be read.
struct Lines<W: AsyncWrite> {
    messages: AsyncRwTransport<RoleServer, DuplexStream, W>,
    refused: mpsc::Receiver<ServerJsonRpcMessage>,
    calls: ArrivalOrder,
    tasks: Tasks,
}

impl<W: AsyncWrite + Send + Unpin + 'static> Transport<RoleServer> for Lines<W> {
    type Error = io::Error;

    fn send(&mut self, message: TxJsonRpcMessage<RoleServer>) -> impl Future<Output = io::Result<()>> + Send + 'static {
        self.messages.send(message)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            tokio::select! {
                message = self.messages.receive() => {
                    let mut message = message?;
                    if let ClientJsonRpcMessage::Request(request) = &mut message
                        && let ClientRequest::CallToolRequest(call) = &mut request.request
                    {
                        call.extensions_mut().insert(self.calls.arrive());
                    }
                    return Some(message);
                }
                Some(refusal) = self.refused.recv() => {
                    // In a task of its own: this future is dropped whenever something else happens.
                    self.tasks.spawn(self.messages.send(refusal));
                }
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.messages.close().await
    }
}

/// Hands lines on. Requests that are no JSON as the protocol's library reads it are refused, if their id can be read: the library
/// would drop them, and their client would wait.
async fn read_lines(
    input: impl AsyncRead + Unpin,
    mut readable: DuplexStream,
    refuse: mpsc::Sender<ServerJsonRpcMessage>,
) -> io::Result<()> {
    let mut input = BufReader::new(input);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut input).take(MAX_LINE).read_until(b'\n', &mut line).await?;
        if read == 0 {
            return Ok(());
        }
        if read as u64 == MAX_LINE {
            warn!("a message has more than {} MB: the connection ends", MAX_LINE >> 20);
            return Ok(());
        }
        match refusal(&line) {
            None => readable.write_all(&line).await?,
            Some(refusal) => refuse.send(refusal).await.map_err(io::Error::other)?,
        }
    }
}

/// The answer to a request whose texts are no Unicode, such as half of a pair of surrogates.
fn refusal(line: &[u8]) -> Option<ServerJsonRpcMessage> {
    serde_json::from_slice::<serde_json::Value>(line).err()?;
    serde_json::from_slice::<IgnoredAny>(line).ok()?;
    let Head { id, method } = serde_json::from_slice(line).ok()?;
    method?;
    let message = "A text in this message is not Unicode: it has half of a pair of surrogates.";
    Some(ServerJsonRpcMessage::error(ErrorData::invalid_params(message, None), Some(id?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_with_half_a_character_is_answered() {
        let line = br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"python","arguments":{"code":"\ud83d"}}}"#;
        let answer = serde_json::to_value(refusal(line).unwrap()).unwrap();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&7.into(), &(-32602).into()), "{answer}");
        for line in [r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#, "no json", r#"{"method":"ping","x":"\ud83d"}"#, ""]
        {
            assert!(refusal(line.as_bytes()).is_none(), "{line}");
        }
    }
}
