//! Connections to ports of a sandbox.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::warden_client::SandboxHandle;
use crate::Error;
use crate::backend::Connection;

/// The longest wait for a server to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to a port on which something in the sandbox listens.
pub(super) async fn connect(handle: &SandboxHandle, port: u16) -> Result<Box<dyn Connection>, Error> {
    let late = || Error::Timeout { what: "connection", limit: CONNECT_TIMEOUT };
    let made = timeout(CONNECT_TIMEOUT, handle.connect(port)).await;
    let socket = std::net::TcpStream::from(made.map_err(|_| late())??);
    let established = async {
        socket.set_nonblocking(true)?;
        // Proxies write without delay.
        socket.set_nodelay(true)?;
        let stream = TcpStream::from_std(socket)?;
        stream.writable().await?;
        match stream.take_error()? {
            None => Ok(stream),
            Some(error) => Err(error),
        }
    };
    match timeout(CONNECT_TIMEOUT, established).await {
        Ok(Ok(stream)) => Ok(Box::new(stream)),
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Err(Error::PortClosed(port)),
        Ok(Err(error)) => Err(Error::Setup(format!("connect to port {port}: {error}"))),
        Err(_) => Err(late()),
    }
}
