//! The server's side: makes the socket, and accepts clients of the same user.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aludel_ignore::Ignore;
use aludel_server::{App, LocalUserService, NO_DESCRIPTORS_PAUSE};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use super::connection::{SocketServer, serve_connection};
use super::message::PeerIdentity;
use crate::context::CommandContext;

/// Concurrent clients. One more starts a sandbox of its own.
const MAX_CONNECTIONS: usize = 256;
/// Connections that the system keeps until they are accepted.
const BACKLOG: i32 = 128;

/// The socket in the data directory. Dropping it removes the socket.
pub(crate) struct SocketListener {
    listener: UnixListener,
    host: Arc<SocketServer>,
    _name: Name,
}

/// The name of a socket of ours.
struct Name {
    path: PathBuf,
    inode: u64,
}

impl Drop for Name {
    fn drop(&mut self) {
        if inode_of(&self.path).is_ok_and(|inode| inode == self.inode) {
            std::fs::remove_file(&self.path).ignore("the next server replaces it");
        }
    }
}

impl SocketListener {
    /// Listens in the data directory of a server, which is locked by it: an earlier server's socket is replaced.
    pub(crate) fn bind(context: &CommandContext, app: &Arc<App>) -> Result<Self, String> {
        let path = super::path(&context.config.server.data)?;
        let shown = path.display().to_string();
        let host = SocketServer {
            engine: Arc::clone(app.engine()),
            local_user: LocalUserService::new(app),
            peer: PeerIdentity::of_this_process(context)
                .map_err(|error| format!("the executable is not known: {error}"))?,
            limits: context.config.sandbox.limits(),
        };
        let (listener, name) = bind(path).map_err(|error| format!("{shown}: {error}"))?;
        Ok(Self { listener, host: Arc::new(host), _name: name })
    }

    /// Lets clients in, for ever.
    pub(crate) async fn serve(&self) {
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let user = rustix::process::geteuid().as_raw();
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                tokio::time::sleep(NO_DESCRIPTORS_PAUSE).await;
                continue;
            };
            if !is_of(&stream, user) {
                continue;
            }
            let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else { continue };
            let (host, connections) = (Arc::clone(&self.host), &self.host.engine.socket_connections);
            connections.spawn(async move {
                serve_connection(&host, stream).await;
                drop(permit);
            });
        }
    }
}

/// Returns true if a connection's other end is a process of this user.
pub(super) fn is_of(stream: &UnixStream, user: u32) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == user)
}

/// Makes a socket that only its user can open, under a temporary name, and renames it.
fn bind(path: PathBuf) -> io::Result<(UnixListener, Name)> {
    if path.symlink_metadata().is_ok_and(|there| !there.file_type().is_socket()) {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "something else than a socket is there"));
    }
    let directory = tempfile::Builder::new().prefix(".").rand_bytes(4).tempdir_in(path.parent().unwrap_or(&path))?;
    let fresh = directory.path().join("s");
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(&fresh)?)?;
    // No client can connect before it listens.
    std::fs::set_permissions(&fresh, PermissionsExt::from_mode(0o600))?;
    rustix::net::listen(&socket, BACKLOG)?;
    let inode = inode_of(&fresh)?;
    std::fs::rename(&fresh, &path)?;
    Ok((UnixListener::from_std(socket.into())?, Name { path, inode }))
}

fn inode_of(path: &Path) -> io::Result<u64> {
    Ok(path.symlink_metadata()?.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_socket_replaces_a_dead_one_and_nothing_else_and_is_for_its_user_alone() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join("s.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let (listener, name) = bind(path.clone()).unwrap();
        assert_eq!(path.symlink_metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 1, "nothing else is left");
        let (_client, accepted) = tokio::join!(UnixStream::connect(&path), listener.accept());
        let (accepted, _) = accepted.unwrap();
        let user = rustix::process::geteuid().as_raw();
        assert_eq!([user, user + 1].map(|user| is_of(&accepted, user)), [true, false]);

        let (_second, replacing) = bind(path.clone()).unwrap();
        drop(name);
        assert!(path.exists(), "it is another one's by now");
        drop(replacing);
        assert!(!path.exists());
        std::fs::write(&path, "mine").unwrap();
        assert!(bind(path.clone()).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    }
}
