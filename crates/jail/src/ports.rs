//! The sandbox's own network: a loopback device, and connections to it from the host. There is no way out.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::{Step, StepError, message, sys};

/// Connections in TIME_WAIT, which Linux keeps for a minute: 250 bytes each, counted by no control group.
const REMEMBERED: u32 = 4096;
/// The least, first and largest size of a connection's buffers, bytes. Linux bounds what all connections of a sandbox hold together, and of
/// a host, and by itself would let one of them have 38 MB.
const BUFFERS: [(&str, &str); 2] = [("tcp_rmem", "4096 131072 262144"), ("tcp_wmem", "4096 16384 262144")];
/// The longest wait before a connection is handed over unfinished. A loopback device answers at once unless the listener's queue is full.
const WAIT: Duration = Duration::from_millis(20);

/// Starts the loopback device of the calling process's network namespace.
pub(crate) fn start_loopback() -> Result<(), StepError> {
    fs::write("/proc/sys/net/ipv4/tcp_max_tw_buckets", REMEMBERED.to_string()).step("bound closed connections")?;
    for (name, sizes) in BUFFERS {
        fs::write(format!("/proc/sys/net/ipv4/{name}"), sizes).step("bound the buffers of connections")?;
    }
    sys::raise_loopback().step("start the loopback device")
}

/// A connection to a port.
pub(crate) enum PortConnection {
    /// The connection, established or in progress.
    Open(OwnedFd),
    /// Nothing listens there.
    Closed,
}

/// Connects to a port of the process behind `pidfd`. Leaves the calling process in that process's network namespace.
pub(crate) fn connect(pidfd: BorrowedFd<'_>, port: u16) -> Result<PortConnection, StepError> {
    sys::setns(pidfd, libc::CLONE_NEWNET).step("join the sandbox's network")?;
    for address in [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))] {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match rustix::net::socket_with(family, SocketType::STREAM, flags, None) {
            // The host has no IPv6.
            Err(Errno::AFNOSUPPORT) => continue,
            socket => socket.step("make a socket")?,
        };
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(Errno::CONNREFUSED | Errno::ADDRNOTAVAIL | Errno::NETUNREACH) => continue,
            Err(error) => return Err(error).step("connect"),
        }
        message::is_writable(socket.as_fd(), WAIT).step("wait for the connection")?;
        match rustix::net::sockopt::socket_error(&socket).step("look at the connection")? {
            Err(Errno::CONNREFUSED) => {}
            Err(error) => return Err(error).step("connect"),
            Ok(()) => return Ok(PortConnection::Open(socket)),
        }
    }
    Ok(PortConnection::Closed)
}
