//! A hub in threads of the test: its API, files in git and beside it, the other server that bytes come from, and what goes wrong.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub const REPO: &str = "org/model-GGUF";

/// What a request was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// True if it came to the server of bytes, and not to the hub.
    pub cdn: bool,
    pub method: String,
    pub path: String,
    pub range: Option<(u64, u64)>,
    pub token: Option<String>,
}

/// A file of the repository.
#[derive(Clone)]
pub struct Stored {
    pub path: String,
    pub bytes: Arc<Vec<u8>>,
    pub hash: String,
    /// Stored beside git, as weights are.
    pub lfs: bool,
}

/// What the servers do.
#[derive(Default)]
pub struct Plan {
    pub files: Vec<Stored>,
    pub commit: String,
    /// The listing, if it is not that of the files.
    pub listing: Option<String>,
    /// The token without which nothing is had.
    pub token: Option<String>,
    /// The server of bytes knows no ranges.
    pub no_ranges: bool,
    /// Answers that come first, for requests whose path contains a text: status and headers.
    pub instead: VecDeque<(&'static str, u16, &'static str)>,
    /// How many bytes of a body come before the connection is cut, for as many bodies.
    pub cut: Option<(usize, usize)>,
    /// How many more bytes of bodies come; then connections stay open and nothing comes.
    pub quota: Option<usize>,
    /// Bytes of bodies in a second, all connections together.
    pub rate: Option<u64>,
    /// The etag of the server of bytes.
    pub etag_of_bytes: Option<String>,
    /// True if one byte of each body is another one.
    pub wrong_bytes: bool,
    /// True if a body continues after its end.
    pub endless: bool,
    /// `X-Linked-ETag`, if it is not the hash of the file.
    pub etag: Option<String>,
    /// `X-Linked-Size`, if it is not that of the file.
    pub size: Option<String>,
    /// The `Content-Range`, if it is not what was asked for.
    pub content_range: Option<String>,
    /// Where the bytes are, if they are not at the other server.
    pub location: Option<String>,
    /// Bodies wait for as long as this is so.
    pub hold: bool,
    pub asked: Vec<Asked>,
    /// When the last byte has been sent, at the planned rate.
    busy_until: Option<Instant>,
}

/// Both servers, which run until the test ends.
pub struct FakeHub {
    pub endpoint: String,
    plan: Arc<Mutex<Plan>>,
}

/// Bytes that differ everywhere.
pub fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; count];
    for chunk in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    bytes
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl FakeHub {
    /// With these files, which are stored beside git.
    pub fn with(files: &[(&str, Vec<u8>)]) -> FakeHub {
        let plan = Plan { commit: COMMIT.to_owned(), ..Plan::default() };
        let plan = Arc::new(Mutex::new(plan));
        let cdn = serve(plan.clone(), true, String::new());
        let endpoint = serve(plan.clone(), false, cdn);
        let hub = FakeHub { endpoint, plan };
        for (path, bytes) in files {
            hub.add(path, bytes.clone(), true);
        }
        hub
    }

    pub fn add(&self, path: &str, bytes: Vec<u8>, lfs: bool) {
        let hash = sha256(&bytes);
        let stored = Stored { path: path.to_owned(), bytes: Arc::new(bytes), hash, lfs };
        self.plan().files.push(stored);
    }

    pub fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap()
    }

    /// What was asked since the last time.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.plan().asked)
    }
}

fn serve(plan: Arc<Mutex<Plan>>, cdn: bool, other: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(stream), plan, other) = (stream, plan.clone(), other.clone()) else { continue };
            thread::spawn(move || while answer(&stream, &plan, cdn, &other).is_some() {});
        }
    });
    own
}

/// Answers one request; none when the connection is over.
fn answer(stream: &TcpStream, plan: &Mutex<Plan>, cdn: bool, other: &str) -> Option<()> {
    let mut reader = BufReader::new(stream.take(64 << 10));
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let (mut range, mut token) = (None, None);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
                range = Some((first.parse().ok()?, last.parse().unwrap_or(u64::MAX)));
            }
            "authorization" => token = value.strip_prefix("Bearer ").map(str::to_owned),
            _ => {}
        }
    }
    let asked =
        Asked { cdn, method: method.clone(), path: path.clone(), range, token: token.clone() };
    let mut now = plan.lock().unwrap();
    now.asked.push(asked);
    let of_request = |(text, ..): &(&str, u16, &str)| path.contains(text);
    if let Some(at) = now.instead.iter().position(of_request) {
        let (_, status, headers) = now.instead.remove(at)?;
        drop(now);
        return head(stream, status, headers, 0);
    }
    if !cdn && now.token.is_some() && token != now.token {
        drop(now);
        return head(stream, 401, "X-Error-Code: RepoNotFound\r\n", 0);
    }
    let stored = |path: &str| now.files.iter().find(|file| file.path == path).cloned();
    if let Some(digits) = path.strip_prefix("/bytes/").filter(|_| cdn) {
        let digits = digits.split('?').next()?;
        let file = now.files.iter().find(|file| file.hash == digits).cloned();
        drop(now);
        return body(stream, plan, &file?.bytes, range);
    }
    if path.starts_with(&format!("/api/models/{REPO}/revision/")) {
        let text = now.listing.clone().unwrap_or_else(|| listing(&now));
        drop(now);
        head(stream, 200, "Content-Type: application/json\r\n", text.len())?;
        return (&*stream).write_all(text.as_bytes()).ok();
    }
    let prefix = format!("/{REPO}/resolve/");
    let rest = path.strip_prefix(&prefix).and_then(|rest| rest.split_once('/'));
    let Some(file) = rest.and_then(|(_, path)| stored(&path.replace("%20", " "))) else {
        drop(now);
        return head(stream, 404, "X-Error-Code: EntryNotFound\r\n", 0);
    };
    let hash = file.hash.clone();
    let mut headers = format!("X-Repo-Commit: {}\r\n", now.commit);
    if !file.lfs {
        drop(now);
        headers += &format!("ETag: \"{}\"\r\n", &hash[..40]);
        if method == "HEAD" {
            return head(stream, 200, &headers, file.bytes.len());
        }
        return body(stream, plan, &file.bytes, range);
    }
    let etag = now.etag.clone().unwrap_or_else(|| hash.clone());
    let size = now.size.clone().unwrap_or_else(|| file.bytes.len().to_string());
    let location =
        now.location.clone().unwrap_or_else(|| format!("{other}/bytes/{hash}?Signature=s"));
    drop(now);
    headers += &format!(
        "X-Linked-ETag: \"{etag}\"\r\nX-Linked-Size: {size}\r\nLocation: {location}\r\nETag: \"other\"\r\n"
    );
    head(stream, 302, &headers, 0)
}

fn listing(plan: &Plan) -> String {
    let files = plan.files.iter().map(|file| {
        let lfs = format!(r#","lfs":{{"sha256":"{}","size":{}}}"#, file.hash, file.bytes.len());
        let lfs = if file.lfs { lfs } else { String::new() };
        format!(r#"{{"rfilename":"{}","size":{}{lfs}}}"#, file.path, file.bytes.len())
    });
    let files: Vec<String> = files.collect();
    format!(r#"{{"id":"{REPO}","sha":"{}","siblings":[{}]}}"#, plan.commit, files.join(","))
}

fn head(mut stream: &TcpStream, status: u16, headers: &str, length: usize) -> Option<()> {
    let text = format!("HTTP/1.1 {status} Status\r\n{headers}Content-Length: {length}\r\n\r\n");
    stream.write_all(text.as_bytes()).ok()
}

/// A body as it is planned.
fn body(
    mut stream: &TcpStream,
    plan: &Mutex<Plan>,
    bytes: &[u8],
    range: Option<(u64, u64)>,
) -> Option<()> {
    while plan.lock().unwrap().hold {
        thread::sleep(Duration::from_millis(5));
    }
    let mut now = plan.lock().unwrap();
    let range = range.filter(|_| !now.no_ranges);
    let (first, last) = range.unwrap_or((0, u64::MAX));
    let last = last.min(bytes.len() as u64 - 1);
    let mut part = bytes[first as usize..=last as usize].to_vec();
    if now.wrong_bytes {
        part[0] ^= 1;
    }
    let cut = match &mut now.cut {
        Some((after, left)) if *left > 0 => {
            *left -= 1;
            Some(*after)
        }
        _ => None,
    };
    let said = now.content_range.clone();
    let said = said.unwrap_or_else(|| format!("bytes {first}-{last}/{}", bytes.len()));
    let (status, mut headers) = match range {
        Some(_) => ("206 Partial Content", format!("Content-Range: {said}\r\n")),
        None => ("200 OK", String::new()),
    };
    headers +=
        &now.etag_of_bytes.as_ref().map_or(String::new(), |etag| format!("ETag: {etag}\r\n"));
    let endless = now.endless;
    drop(now);
    headers += &match endless {
        true => "Transfer-Encoding: chunked\r\n".to_owned(),
        false => format!("Content-Length: {}\r\n", part.len()),
    };
    stream.write_all(format!("HTTP/1.1 {status}\r\n{headers}\r\n").as_bytes()).ok()?;
    if endless {
        loop {
            stream.write_all(b"1000\r\n").ok()?;
            stream.write_all(&[b'x'; 4096]).ok()?;
            stream.write_all(b"\r\n").ok()?;
        }
    }
    match cut {
        Some(after) => {
            let _ = stream.write_all(&part[..after.min(part.len())]);
            let _ = stream.flush();
            let _ = stream.shutdown(std::net::Shutdown::Both);
            None
        }
        None => part.chunks(64 << 10).try_for_each(|chunk| {
            while !may_send(plan, chunk.len()) {
                thread::sleep(Duration::from_millis(5));
            }
            wait_for_turn(plan, chunk.len());
            stream.write_all(chunk).ok()
        }),
    }
}

/// Waits as long as these bytes take at the planned rate, after those of all other connections.
fn wait_for_turn(plan: &Mutex<Plan>, count: usize) {
    let turn = {
        let mut plan = plan.lock().unwrap();
        let Some(rate) = plan.rate else { return };
        let free = plan.busy_until.unwrap_or_else(Instant::now).max(Instant::now());
        let time = Duration::from_secs_f64(count as f64 / rate as f64);
        *plan.busy_until.insert(free + time)
    };
    thread::sleep(turn.saturating_duration_since(Instant::now()));
}

/// Takes so many bytes out of the quota, if they are in it.
fn may_send(plan: &Mutex<Plan>, count: usize) -> bool {
    let quota = &mut plan.lock().unwrap().quota;
    let left = quota.map(|quota| quota.checked_sub(count));
    if let Some(Some(left)) = left {
        *quota = Some(left);
    }
    left != Some(None)
}
