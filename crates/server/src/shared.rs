//! The state that all requests share.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::Semaphore;

use crate::access::Access;
use crate::ending::Ending;
use crate::models::{Models, Served};
use crate::recent::RecentItems;
use crate::request_log::RequestLog;
use crate::unknown_fields::UnknownFields;
use crate::{Log, Options, ids};

/// Maximum size of a body in bytes, and of all large ones at the same time.
pub(crate) const BODY: usize = 32 << 20;
pub(crate) const LARGE_BODIES: usize = 8 * BODY;
/// The number of requests that may do long work at the same time, which bounds their memory.
pub(crate) const APART: usize = 4;

/// The state that all requests share.
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) models: Models,
    /// The last picture of memory, and when it was taken.
    pub(crate) memory: Mutex<Option<(Instant, Bytes)>>,
    pub(crate) access: Access,
    /// The log of requests, if there is one.
    pub(crate) request_log: Option<Arc<RequestLog>>,
    /// Fields of requests that no endpoint knows.
    pub(crate) unknown_fields: UnknownFields,
    /// The items of the last answers of `/v1/responses`.
    pub(crate) recent: RecentItems,
    /// Permits for large bodies, by KiB.
    pub(crate) bodies: Arc<Semaphore>,
    /// Permits for requests that do long work.
    pub(crate) apart: Arc<Semaphore>,
    pub(crate) ending: Ending,
    /// When it started, in seconds since 1970.
    pub(crate) started: u64,
}

impl Shared {
    /// Starts the engines. A line for each request goes to `requests`.
    ///
    /// # Errors
    /// A model for which there can be no engine, or no thread for the log of requests.
    pub(crate) fn start(
        models: Vec<Served>,
        options: Options,
        log: &Log,
        requests: Option<Log>,
    ) -> Result<Arc<Shared>, String> {
        let models = Models::start(models, &options, log).map_err(|error| error.to_string())?;
        let access = Access::new(&options);
        let request_log = requests.map(RequestLog::start).transpose()?.map(Arc::new);
        let [bodies, apart] =
            [LARGE_BODIES >> 10, APART].map(|permits| Arc::new(Semaphore::new(permits)));
        let (memory, ending, started) = (Mutex::new(None), Ending::default(), ids::now());
        Ok(Arc::new(Shared {
            options,
            models,
            memory,
            access,
            request_log,
            unknown_fields: UnknownFields::new(Arc::clone(log)),
            recent: RecentItems::default(),
            bodies,
            apart,
            ending,
            started,
        }))
    }
}
