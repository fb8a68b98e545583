//! The end of the server, for requests in progress.

use tokio::sync::watch;

/// The moment from which requests still in progress are cut off.
#[derive(Clone)]
pub(crate) struct Ending(watch::Sender<bool>);

impl Default for Ending {
    fn default() -> Ending {
        Ending(watch::channel(false).0)
    }
}

impl Ending {
    pub(crate) fn begin(&self) {
        self.0.send_replace(true);
    }

    pub(crate) fn has_begun(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits for it.
    pub(crate) async fn begun(&self) {
        let _ = self.0.subscribe().wait_for(|begun| *begun).await;
    }
}
