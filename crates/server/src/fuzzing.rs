//! A server without sockets, for the fuzz targets `request` and `body`: a connection is two queues of bytes.

use std::pin::Pin;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::listen;
use crate::shared::Shared;
use crate::{Log, Options, Served};

/// A server that is called directly.
pub struct Fuzzed {
    runtime: Runtime,
    shared: Arc<Shared>,
    /// The server runs until this is dropped.
    stop: watch::Sender<bool>,
}

impl Fuzzed {
    /// Starts the engines of the models.
    ///
    /// # Errors
    /// As [`Server::run`](crate::Server::run).
    pub fn new(models: Vec<Served>, options: Options, log: Log) -> Result<Fuzzed, String> {
        let requests: Log = Arc::new(|_| ());
        let shared = Shared::start(models, options, &log, Some(requests))?;
        let runtime = crate::threads::runtime()?;
        Ok(Fuzzed { runtime, shared, stop: watch::channel(false).0 })
    }

    /// Returns the response to a connection that sends these bytes, up to its close. If the client then closes its sending side
    /// (`ends`), it sends no more; otherwise it waits, so the bytes must request that the connection be closed.
    pub fn answer(&self, bytes: &[u8], ends: bool) -> Vec<u8> {
        let (client, server) = tokio::io::duplex(64 << 10);
        let stop = self.stop.subscribe();
        let shared = Arc::clone(&self.shared);
        self.runtime.block_on(async move {
            let served =
                tokio::spawn(listen::connection((Box::new(server), "fuzzed".into()), shared, stop));
            let (mut reader, mut writer) = tokio::io::split(client);
            let mut all = Vec::new();
            let sent = writer.write_all(bytes).await;
            if ends || sent.is_err() {
                let _ = Pin::new(&mut writer).shutdown().await;
            }
            let _ = reader.read_to_end(&mut all).await;
            drop((reader, writer));
            served.await.expect("a connection panics never");
            all
        })
    }
}
