//! A running server, and a client that sends what it is told to and no more.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Instant;

use serde_json::Value;

use super::{PATIENCE, command, ended, kill};

/// `alight serve`, until it is dropped.
pub struct Serving {
    pub child: Child,
    pub address: String,
    /// Its messages before it was ready, and a thread that reads the later ones: a server stops at a full pipe.
    said: String,
    more: Option<JoinHandle<String>>,
}

/// A response.
pub struct Answer {
    pub status: u16,
    head: String,
    pub body: Vec<u8>,
}

impl Serving {
    /// Starts it at a free port, and waits until it says that it is ready.
    pub fn start(args: &[&str]) -> Serving {
        Serving::of(command(&[&["serve"], args, &["--port", "0"]].concat()))
    }

    /// What this command starts, as soon as it says that it is ready.
    pub fn of(mut command: Command) -> Serving {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        let address = loop {
            let before = said.len();
            assert!(stderr.read_line(&mut said).unwrap() > 0, "it has ended: {said}");
            if let Some(address) = said[before..].strip_prefix("listening on http://") {
                break address.trim().replace("0.0.0.0", "127.0.0.1");
            }
        };
        let rest = move || {
            let mut rest = String::new();
            stderr.read_to_string(&mut rest).unwrap();
            rest
        };
        Serving { child, address, said, more: Some(std::thread::spawn(rest)) }
    }

    /// A connection.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends these bytes; what comes back until the server closes the connection.
    pub fn bytes(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        // It may be refused before all of it was sent.
        let _ = stream.write_all(bytes);
        let mut all = Vec::new();
        // A connection that is closed with something unread is reset, after the answer.
        let _ = stream.read_to_end(&mut all);
        all
    }

    /// The answer to these bytes.
    pub fn raw(&self, bytes: &[u8]) -> Answer {
        Answer::parse(&self.bytes(bytes))
    }

    /// The answer to a request.
    pub fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        let mut bytes = head(method, path, headers, body.len()).into_bytes();
        bytes.extend_from_slice(body);
        self.raw(&bytes)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.request("POST", path, &[], body.to_string().as_bytes())
    }

    /// Asks again and again until the answer has this status.
    pub fn until(&self, path: &str, body: &Value, status: u16) -> Answer {
        let began = Instant::now();
        loop {
            let answer = self.post(path, body);
            if answer.status == status {
                return answer;
            }
            assert!(began.elapsed() < PATIENCE, "{} {}", answer.status, answer.text());
        }
    }

    /// Begins a request, whose answer can be read piece by piece.
    pub fn begin(&self, path: &str, body: &Value) -> Begun {
        let body = body.to_string();
        let head = head("POST", path, &[], body.len());
        self.begin_with(format!("{head}{body}").as_bytes())
    }

    /// The same with any bytes.
    pub fn begin_with(&self, bytes: &[u8]) -> Begun {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap();
        Begun(stream)
    }

    /// Ends it by a signal; its status, and what it has said.
    pub fn stop(self, signal: i32) -> (ExitStatus, String) {
        kill(&self.child, signal);
        self.wait()
    }

    /// Waits for it to end.
    pub fn wait(mut self) -> (ExitStatus, String) {
        let status = ended(&mut self.child);
        let more = self.more.take().unwrap().join().unwrap();
        (status, std::mem::take(&mut self.said) + &more)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn head(method: &str, path: &str, headers: &[(&str, &str)], len: usize) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "host") {
        head += "host: localhost\r\n";
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    format!("{head}content-type: application/json\r\ncontent-length: {len}\r\n\r\n")
}

/// A request whose answer is being read. Dropping it is leaving.
pub struct Begun(TcpStream);

impl Begun {
    /// Reads until this text has come.
    pub fn wait_for(&mut self, text: &str) {
        self.read_to(text);
    }

    /// Reads until this text has come, and returns what was read.
    pub fn read_to(&mut self, text: &str) -> String {
        let (mut all, mut piece) = (Vec::new(), [0; 256]);
        while !String::from_utf8_lossy(&all).contains(text) {
            let n = self.0.read(&mut piece).unwrap();
            assert!(n > 0, "it has ended: {}", String::from_utf8_lossy(&all));
            all.extend_from_slice(&piece[..n]);
        }
        String::from_utf8_lossy(&all).into_owned()
    }

    /// The same, which says that it sends no more.
    pub fn ending(self) -> Begun {
        self.0.shutdown(Shutdown::Write).unwrap();
        self
    }

    /// The whole answer, of which nothing was read yet.
    pub fn answer(mut self) -> Answer {
        Answer::parse(&self.read_to_end())
    }

    /// The rest.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        self.0.read_to_end(&mut all).unwrap();
        all
    }
}

impl Answer {
    fn parse(mut bytes: &[u8]) -> Answer {
        // The server asks a client that sends no more if it is there.
        while let Some(rest) = bytes.strip_prefix(b"HTTP/1.1 100 Continue\r\n\r\n") {
            bytes = rest;
        }
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no head: {:?}", String::from_utf8_lossy(bytes)));
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut answer = Answer { status, head, body: bytes[end + 4..].to_vec() };
        if answer.header("transfer-encoding") == Some("chunked") {
            answer.body = unchunked(&answer.body);
        }
        answer
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let mut found = lines.filter(|(other, _)| other.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value)
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// The events of a stream, which must end as OpenAI's do.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.text());
        assert_eq!(self.header("content-type"), Some("text/event-stream"));
        let text = self.text();
        let events: Vec<&str> =
            text.split_terminator("\n\n").filter(|event| !event.starts_with(':')).collect();
        let (last, events) = events.split_last().unwrap();
        assert_eq!(*last, "data: [DONE]");
        let parse = |event: &&str| serde_json::from_str(event.strip_prefix("data: ").unwrap());
        events.iter().map(|event| parse(event).unwrap()).collect()
    }
}

/// What chunks say together; the last, empty one has to be there.
fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n").expect("the length of a chunk");
        let len = std::str::from_utf8(&rest[..end]).unwrap();
        let len = usize::from_str_radix(len, 16).unwrap();
        if len == 0 {
            return all;
        }
        all.extend_from_slice(&rest[end + 2..end + 2 + len]);
        rest = &rest[end + 4 + len..];
    }
}
