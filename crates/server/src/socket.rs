//! The socket a server listens on: a port, or a Unix socket, whose file is removed when the server ends.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::TcpListener as StdTcp;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnix, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

/// The suffix of a host that is the file of a Unix socket.
const FILE: &str = ".sock";

/// True if a host is the file of a Unix socket, which has no port.
pub fn is_socket_file(host: &str) -> bool {
    host.ends_with(FILE)
}

/// A listening socket made by another process, such as a service manager, at which clients may wait already.
pub enum Listening {
    /// A port.
    Tcp(StdTcp),
    /// A Unix socket.
    Unix(StdUnix),
}

impl Listening {
    /// Returns the value of [`Options::host`](crate::Options::host) that would select it.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn host(&self) -> io::Result<String> {
        match self {
            Listening::Tcp(listener) => Ok(listener.local_addr()?.ip().to_string()),
            Listening::Unix(_) => Ok(FILE.to_owned()),
        }
    }
}

/// A bound socket.
pub(crate) enum Socket {
    Tcp(StdTcp),
    /// With its file, if it was made here.
    Unix(StdUnix, Option<File>),
}

/// The file of a socket.
pub(crate) struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        // The next server removes a file that is left.
        let _ = fs::remove_file(&self.0);
    }
}

impl Socket {
    pub(crate) fn bind(host: &str, port: u16) -> io::Result<Socket> {
        if is_socket_file(host) {
            return Socket::bind_file(Path::new(host));
        }
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let listener = StdTcp::bind((host, port))?;
        listener.set_nonblocking(true)?;
        Ok(Socket::Tcp(listener))
    }

    fn bind_file(path: &Path) -> io::Result<Socket> {
        // The file of a server that was killed is removed; a server that still listens keeps its file.
        let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
        if is_socket
            && let Err(error) = StdUnixStream::connect(path)
            && error.kind() == ErrorKind::ConnectionRefused
        {
            fs::remove_file(path)?;
        }
        let listener = StdUnix::bind(path)?;
        let file = File(path.to_owned());
        // Accessible to this user only, like prompt files.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Socket::Unix(listener, Some(file)))
    }

    /// Uses a socket that listens already.
    pub(crate) fn given(listening: Listening) -> io::Result<Socket> {
        match listening {
            Listening::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                Ok(Socket::Tcp(listener))
            }
            Listening::Unix(listener) => {
                listener.set_nonblocking(true)?;
                Ok(Socket::Unix(listener, None))
            }
        }
    }

    /// Returns the address for clients.
    pub(crate) fn address(&self) -> io::Result<String> {
        match self {
            Socket::Tcp(listener) => Ok(format!("http://{}", listener.local_addr()?)),
            Socket::Unix(listener, _) => {
                let address = listener.local_addr()?;
                let path = address.as_pathname().unwrap_or(Path::new("(without a name)"));
                Ok(format!("unix:{}", path.display()))
            }
        }
    }

    /// Must be called within a runtime.
    pub(crate) fn listen(self) -> io::Result<Listener> {
        match self {
            Socket::Tcp(listener) => TcpListener::from_std(listener).map(Listener::Tcp),
            Socket::Unix(listener, file) => {
                Ok(Listener::Unix(UnixListener::from_std(listener)?, file))
            }
        }
    }
}

/// A connection.
pub(crate) trait ClientStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> ClientStream for S {}

/// Accepts connections.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, #[expect(dead_code, reason = "it is there to be dropped")] Option<File>),
}

impl Listener {
    /// Returns a connection, and the address of its client as people read it.
    pub(crate) async fn accept(&self) -> io::Result<(Box<dyn ClientStream>, Arc<str>)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // A token is a packet.
                let _ = stream.set_nodelay(true);
                Ok((Box::new(stream), peer.to_string().into()))
            }
            // Its clients have no addresses.
            Listener::Unix(listener, _) => {
                Ok((Box::new(listener.accept().await?.0), "unix".into()))
            }
        }
    }
}
