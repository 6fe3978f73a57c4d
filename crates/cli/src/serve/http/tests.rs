use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
};

use super::{
    super::{clients::Client as _, log::Log, meter::Totals, peers::Peers},
    *,
};

/// Largest size of one upload, in bytes.
const UPLOAD_MAX: u64 = 100_000;

/// A client of a server for one directory and one connection, over the kernel's loopback.
struct Client {
    dir: tempfile::TempDir,
    stream: TcpStream,
    server: Option<thread::JoinHandle<()>>,
}

impl Client {
    fn new(upload: bool) -> Self {
        let dir = tempfile::tempdir().expect("directory");
        std::fs::write(dir.path().join("hello.txt"), "hello, world\n").expect("file");
        std::fs::create_dir(dir.path().join("sub")).expect("directory");
        std::fs::write(dir.path().join("sub/a b.bin"), vec![7; 300_000]).expect("file");
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("outside")).expect("link");
        std::os::unix::fs::symlink("hello.txt", dir.path().join("inside")).expect("link");
        let service = Arc::new(HttpService::open(dir.path(), upload, UPLOAD_MAX).expect("service"));
        let listener = TcpListener::bind("127.0.0.1:0").expect("listener");
        let stream =
            TcpStream::connect(listener.local_addr().expect("address")).expect("connection");
        let server = thread::spawn(move || {
            let (stream, _) = listener.accept().expect("connection");
            serve_alone(&service, stream);
        });
        Self { dir, stream, server: Some(server) }
    }

    /// Sends bytes, closes the local side, and returns everything that the server sends.
    fn exchange(&mut self, request: impl AsRef<[u8]>) -> String {
        // The server may refuse the request and stop reading before everything is written.
        let _ = self.stream.write_all(request.as_ref());
        let _ = self.stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = self.stream.read_to_end(&mut answer);
        self.server.take().expect("server").join().expect("server");
        String::from_utf8_lossy(&answer).into_owned()
    }
}

/// Returns a session whose log and counters are not checked.
fn session() -> Session {
    let peer: SocketAddr = ([127, 0, 0, 1], 1).into();
    let permit = Peers::new(None).admit(peer.ip()).expect("no limit");
    Session::begin(&Arc::<Totals>::default(), &Arc::new(Log::new(false)), peer, permit)
}

/// Serves one connection on the calling thread, which waits for readability instead of `clients`.
fn serve_alone(service: &Arc<HttpService>, stream: TcpStream) {
    let (mut client, _) =
        service.client(Metered::new(stream, &Arc::default()), session()).expect("a connection");
    while client.serve().is_some() {
        // Waits until the socket is readable, without consuming data.
        let _ = client.stream().peek(&mut [0; 1]);
    }
}

fn ask(request: &str) -> String {
    Client::new(false).exchange(request)
}

fn get(path: &str, headers: &str) -> String {
    ask(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n"))
}

fn status(answer: &str) -> &str {
    answer.get(9..12).unwrap_or("none")
}

fn content(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").expect("a head").1
}

#[test]
fn files_are_sent_completely() {
    let answer = get("/hello.txt", "");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("Content-Length: 13\r\n") && answer.contains("text/plain"));
    assert_eq!(content(&answer), "hello, world\n");
    assert_eq!(content(&get("/sub/a%20b.bin", "")).len(), 300_000);
    assert_eq!(content(&get("/inside", "")), "hello, world\n");
}

#[test]
fn a_response_to_head_has_no_content() {
    let answer = ask("HEAD /hello.txt HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(status(&answer) == "200" && answer.contains("Content-Length: 13\r\n"));
    assert_eq!(content(&answer), "");
    let answer = ask("HEAD /none HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!((status(&answer), content(&answer)), ("404", ""));
}

#[test]
fn a_requested_range_is_sent() {
    let answer = get("/hello.txt", "Range: bytes=7-11\r\n");
    assert!(status(&answer) == "206" && answer.contains("Content-Range: bytes 7-11/13\r\n"));
    assert_eq!(content(&answer), "world");
    assert_eq!(status(&get("/hello.txt", "Range: bytes=13-\r\n")), "416");
}

#[test]
fn an_unmodified_file_is_not_sent_again() {
    let (past, future) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Fri, 31 Dec 9999 23:59:59 GMT");
    let since = |date: &str| format!("If-Modified-Since: {date}\r\n");
    let answer = get("/hello.txt", &since(future));
    assert_eq!((status(&answer), content(&answer)), ("304", ""));
    assert!(answer.contains("Last-Modified: ") && !answer.contains("Content-Length"), "{answer}");
    // The date that the server itself sent.
    let client = Client::new(false);
    let ask = |headers: &str| {
        let request = format!("GET /hello.txt HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
        (&client.stream).write_all(request.as_bytes()).expect("written");
        let mut answer = vec![0; 4096];
        let count = (&client.stream).read(&mut answer).expect("an answer");
        String::from_utf8_lossy(&answer[..count]).into_owned()
    };
    let answer = ask("");
    let modified = answer.lines().find_map(|line| line.strip_prefix("Last-Modified: "));
    let modified = modified.expect("a date");
    assert_eq!(status(&ask(&since(modified))), "304", "{modified}");
    // The connection must be kept.
    assert_eq!(status(&ask(&since(past))), "200");
    assert_eq!(status(&get("/hello.txt", &since("tomorrow"))), "200");
    let headers = format!("{}If-None-Match: \"x\"\r\n", since(future));
    assert_eq!(status(&get("/hello.txt", &headers)), "200", "If-None-Match takes precedence");
}

#[test]
fn a_range_of_another_version_is_not_sent() {
    let range = |condition: &str| get("/hello.txt", &format!("Range: bytes=0-4\r\n{condition}"));
    assert_eq!(status(&range("")), "206");
    let answer = range("If-Range: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
    assert_eq!((status(&answer), content(&answer)), ("200", "hello, world\n"));
    assert_eq!(status(&range("If-Range: \"tag\"\r\n")), "200");
}

#[test]
fn a_connection_serves_several_requests() {
    let one = "GET /hello.txt HTTP/1.1\r\nHost: x\r\n\r\n";
    let answer = ask(&format!("{one}GET /none HTTP/1.1\r\nHost: x\r\n\r\n{one}"));
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 2);
    assert_eq!(answer.matches("HTTP/1.1 404").count(), 1);
    let close = "GET /hello.txt HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let answer = ask(&format!("{close}{one}"));
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 1);
}

#[test]
fn files_outside_the_directory_are_not_served() {
    for path in
        ["/../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/outside", "/sub/..%2f../etc/passwd"]
    {
        assert_eq!(status(&get(path, "")), "403", "{path}");
    }
}

#[test]
fn directories_are_listed() {
    let answer = get("/", "");
    assert!(status(&answer) == "200" && answer.contains("href=\"./sub/\""));
    assert!(get("/sub/", "").contains("href=\"./a%20b.bin\""));
    let answer = get("/sub", "");
    assert!(status(&answer) == "301" && answer.contains("Location: /sub/\r\n"));
    assert_eq!(status(&get("/hello.txt/", "")), "404");
}

#[test]
fn uploads_are_stored_whole_or_not_at_all() {
    let head = "PUT /sub/new HTTP/1.1\r\nHost: x\r\n";
    let client = Client::new(true);
    let path = client.dir.path().to_owned();
    let keep = client.dir.path().join("sub/new");
    let mut stored = None;
    let (stream, mut client) = (client.stream.try_clone().expect("stream"), client);
    (&stream)
        .write_all(format!("{head}Content-Length: 5\r\n\r\n12345").as_bytes())
        .expect("written");
    let mut answer = [0; 512];
    let count = (&stream).read(&mut answer).expect("answer");
    assert!(answer[..count].starts_with(b"HTTP/1.1 201"));
    stored.replace(std::fs::read(&keep).expect("stored"));
    assert_eq!(stored.as_deref(), Some(&b"12345"[..]));
    // The second upload announces ten bytes and sends three.
    (&stream)
        .write_all(format!("{head}Content-Length: 10\r\n\r\nabc").as_bytes())
        .expect("written");
    stream.shutdown(Shutdown::Write).expect("shut down");
    client.server.take().expect("server").join().expect("server");
    assert_eq!(std::fs::read(&keep).expect("kept"), b"12345");
    assert_eq!(std::fs::read_dir(path.join("sub")).expect("directory").count(), 2);
}

#[test]
fn a_chunked_upload_is_reassembled() {
    let mut client = Client::new(true);
    let mut request = b"PUT /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    request
        .extend_from_slice(b"5\r\nhello\r\n6;x=y\r\n, worl\r\n1\r\nd\r\n0\r\nTrailer: 1\r\n\r\n");
    request.extend_from_slice(b"GET /c HTTP/1.1\r\nHost: x\r\n\r\n");
    let answer = client.exchange(request);
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    assert!(answer.ends_with("\r\n\r\nhello, world"), "{answer}");
}

#[test]
fn broken_chunks_are_refused() {
    for chunks in ["5\r\nhello!\r\n0\r\n\r\n", "zz\r\n", "fffffffffffffffff\r\n"] {
        let head = "PUT /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        let answer = Client::new(true).exchange(format!("{head}{chunks}"));
        assert_eq!(status(&answer), "400", "{chunks}");
    }
}

#[test]
fn a_client_that_expects_100_continue_receives_it() {
    let head = "PUT /c HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nok";
    let answer = Client::new(true).exchange(head);
    assert!(
        answer.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\n"),
        "{answer}"
    );
    let refused = Client::new(false).exchange(head);
    assert!(status(&refused) == "405" && refused.contains("Allow: GET, HEAD\r\n"), "{refused}");
}

#[test]
fn uploads_cannot_leave_the_directory() {
    for (path, expected) in [("/../x", "403"), ("/sub", "409"), ("/", "409"), ("/none/x", "404")] {
        let request = format!("PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx");
        assert_eq!(status(&Client::new(true).exchange(request)), expected, "{path}");
    }
    let mut client = Client::new(true);
    let target = client.dir.path().join("outside");
    // The symbolic link itself is replaced; its target is unchanged.
    let answer = client.exchange("PUT /outside HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx");
    assert_eq!(status(&answer), "204");
    drop(target);
    assert!(std::fs::read("/etc/passwd").expect("file").len() > 1);
}

#[test]
fn an_invalid_request_is_answered_and_the_connection_ends() {
    assert_eq!(status(&ask("\x16\x03\x01\x02\r\n\r\n")), "400");
    assert_eq!(
        status(&ask(&format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(20_000)))),
        "431"
    );
    assert_eq!(ask(""), "");
    assert_eq!(ask("GET / HT"), "");
}

#[test]
fn an_incomplete_head_is_refused_at_its_deadline() {
    let dir = tempfile::tempdir().expect("directory");
    let service = Arc::new(HttpService::open(dir.path(), false, UPLOAD_MAX).expect("service"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("listener");
    let mut stream =
        TcpStream::connect(listener.local_addr().expect("address")).expect("connection");
    let (accepted, _) = listener.accept().expect("connection");
    let (mut client, first) =
        service.client(Metered::new(accepted, &Arc::default()), session()).expect("a connection");
    let idle = client.serve().expect("it waits for a request");
    assert!(first < idle, "the first request has a shorter time limit");
    let mut deadlines = Vec::new();
    for part in ["GET / HTTP/1.1\r\n", "Host: x\r\n", "A: b\r\n"] {
        stream.write_all(part.as_bytes()).expect("written");
        let mut seen = [0; 64];
        while client.connection.buffered().is_empty()
            && client.stream().peek(&mut seen).expect("bytes") == 0
        {}
        deadlines.push(client.serve().expect("the head is not complete"));
    }
    assert!(
        deadlines.iter().all(|deadline| *deadline == deadlines[0]),
        "more bytes do not extend the deadline"
    );
    assert!(deadlines[0] < idle + HEAD_MAX);
    client.expire();
    drop(client);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert_eq!(status(&answer), "408", "{answer}");
}

#[test]
fn names_with_a_dot_are_neither_served_nor_stored() {
    let dotted = ["/.git/config", "/sub/.hidden", "/%2ehtaccess", "/.upload-1-0"];
    for path in dotted {
        assert_eq!(status(&get(path, "")), "403", "{path}");
        let put = format!("PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx");
        assert_eq!(status(&Client::new(true).exchange(put)), "403", "{path}");
    }
    assert_eq!(status(&get("/.well-known/none", "")), "404");
}

#[test]
fn uploads_have_a_limit() {
    let head = "PUT /large HTTP/1.1\r\nHost: x\r\n";
    let mut client = Client::new(true);
    let dir = client.dir.path().to_owned();
    let answer = client.exchange(format!("{head}Content-Length: {}\r\n\r\n", UPLOAD_MAX + 1));
    assert_eq!(status(&answer), "413", "{answer}");
    assert!(!dir.join("large").exists());
    let chunk = format!("{:x}\r\n{}\r\n", 60_000, "a".repeat(60_000));
    let mut client = Client::new(true);
    let dir = client.dir.path().to_owned();
    let body = format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunk}{chunk}0\r\n\r\n");
    let answer = client.exchange(body);
    assert_eq!(status(&answer), "413", "{answer}");
    assert!(!dir.join("large").exists());
}

#[test]
fn an_upload_that_replaces_a_file_leaves_no_temporary_file() {
    let client = Client::new(true);
    let dir = client.dir.path().to_owned();
    let mut stream = client.stream.try_clone().expect("stream");
    for content in ["one", "two"] {
        let put = format!("PUT /sub/it HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n{content}");
        stream.write_all(put.as_bytes()).expect("written");
        let mut answer = [0; 512];
        let count = stream.read(&mut answer).expect("answer");
        assert!(answer[..count].starts_with(b"HTTP/1.1 20"));
        assert_eq!(std::fs::read(dir.join("sub/it")).expect("stored"), content.as_bytes());
    }
    assert_eq!(std::fs::read_dir(dir.join("sub")).expect("directory").count(), 2);
    drop((client, stream));
}
