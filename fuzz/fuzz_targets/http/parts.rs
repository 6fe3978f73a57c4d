//! The parsers of the server, and the properties checked.
//!
//! An accepted head is complete with its last byte and not before, names a path below the root, and
//! has the same meaning before any other bytes. A body has the same content however it is cut into
//! pieces; a body that was written as chunks is read with the bytes written.

#[path = "../../../crates/cli/src/serve/http/body.rs"]
mod body;
#[path = "../../../crates/cli/src/serve/http/connection.rs"]
mod connection;
#[path = "../../../crates/cli/src/serve/http/date.rs"]
mod date;
#[path = "../../../crates/cli/src/serve/http/error.rs"]
mod error;
#[path = "../../../crates/cli/src/serve/http/head.rs"]
mod head;
#[path = "../../../crates/cli/src/serve/http/pace.rs"]
mod pace;

use std::sync::Arc;

use quietline_fuzz::Input;

use self::{
    body::BodyReader,
    connection::Connection,
    error::RequestError,
    head::{Body, Next, Range, Request},
};
use crate::{
    meter::{Metered, Totals},
    script::Script,
};

/// Statuses of refused heads.
const REFUSALS: [u16; 6] = [400, 403, 417, 431, 501, 505];

/// Maximum number of bytes of one read of a body.
const READ_BYTES: usize = 700;

/// Maximum number of requests on one connection.
const REQUESTS_MAX: usize = 20;

/// Parses one head that arrives at once.
pub(crate) fn head(bytes: &[u8]) {
    let (request, used) = match Request::parse(bytes) {
        Ok(Some(found)) => found,
        Ok(None) => return,
        Err(refusal) => return check_refusal(refusal.status),
    };
    check(&request);
    let head = &bytes[..used];
    let alone =
        Request::parse(head).expect("the head was accepted together with the bytes behind it");
    assert_eq!(alone, Some((request, used)), "the bytes behind a head change its meaning");
    for end in [used - 1, used / 2] {
        assert!(matches!(Request::parse(&head[..end]), Ok(None)), "complete with {end} of {used}");
    }
}

fn check_refusal(status: u16) {
    assert!(REFUSALS.contains(&status), "{status}");
}

fn check(request: &Request) {
    let path = &request.path;
    for component in path.split(|byte| *byte == b'/') {
        let hidden = component.starts_with(b".") && component != b".well-known";
        assert!(!hidden && !component.contains(&0), "{component:?} of {path:?}");
        assert!(!component.is_empty() || path.is_empty(), "{path:?}");
    }
    assert_eq!(request.names_directory, request.raw_path.ends_with('/'));
    assert!(request.raw_path.starts_with('/') && !request.raw_path.contains(['?', '#']));
    if let Some(Range::From(first, Some(last))) = request.range {
        assert!(first <= last);
    }
    // Written with every byte escaped, the path is the same.
    let escaped: String = path.iter().map(|byte| format!("%{byte:02x}")).collect();
    let again = format!("GET /{escaped} HTTP/1.1\r\nHost: x\r\n\r\n");
    let (again, _) = Request::parse(again.as_bytes())
        .unwrap_or_else(|refusal| panic!("{}: {again}", refusal.status))
        .expect("a whole head");
    assert_eq!(again.path, *path);
}

/// Reads a chunked body: whole, cut into pieces, and one that is known to be valid.
pub(crate) fn body(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (cuts, reads) = (input.array::<8>(), usize::from(input.next_u8()) * 4 + 1);
    let body = input.0;
    let whole = read(Script::new(body, &[]), READ_BYTES);
    let pieces = read(Script::new(body, &cuts), reads.min(READ_BYTES));
    assert_eq!(whole, pieces, "cut by {cuts:?}");

    let mut written = Vec::new();
    for chunk in body.chunks(reads) {
        written.extend(format!("{:x}\r\n", chunk.len()).bytes());
        written.extend(chunk);
        written.extend(b"\r\n");
    }
    let end = written.len();
    written.extend(b"0\r\n\r\nGET");
    let good = read(Script::new(&written, &cuts), READ_BYTES);
    assert_eq!(good, (Ok(()), body.to_vec(), b"GET".to_vec()), "written as chunks");
    // Without the last chunk the body is incomplete.
    let (cut_short, content, _) = read(Script::new(&written[..end], &cuts), READ_BYTES);
    assert_eq!((cut_short, content), (Err("i/o".to_owned()), body.to_vec()));
}

/// Result of a body, its content, and the bytes behind it. A body without an end has no bytes
/// behind it.
type Read = (Result<(), String>, Vec<u8>, Vec<u8>);

fn read(script: Script, piece: usize) -> Read {
    let mut connection = connection(script);
    let mut reader = BodyReader::new(&mut connection, Body::Chunked);
    let mut content = Vec::new();
    let mut into = vec![0; piece];
    let end = loop {
        match reader.read(&mut into) {
            Ok(0) => break Ok(()),
            Ok(count) => content.extend(&into[..count]),
            Err(error) => break Err(text(&error)),
        }
    };
    let mut behind = Vec::new();
    if end.is_ok() {
        while let Ok(count @ 1..) = connection.read(&mut into) {
            behind.extend(&into[..count]);
        }
    }
    (end, content, behind)
}

fn text(error: &RequestError) -> String {
    match error {
        RequestError::Refused(refusal) => {
            check_refusal(refusal.status);
            format!("{} {}", refusal.status, refusal.reason)
        }
        RequestError::Gone => "gone".to_owned(),
        RequestError::Io(_) => "i/o".to_owned(),
    }
}

fn connection(script: Script) -> Connection<Script> {
    Connection::new(Metered::new(script, &Arc::<Totals>::default()))
}

/// Parses requests one after the other, whole and cut into pieces.
pub(crate) fn pieces(bytes: &[u8]) {
    let mut input = Input(bytes);
    let cuts = input.array::<8>();
    let whole = requests(Script::new(input.0, &[]));
    let pieces = requests(Script::new(input.0, &cuts));
    assert_eq!(whole, pieces, "cut by {cuts:?}");
}

/// Returns the requests of a connection without their bodies, and the way it ended.
fn requests(script: Script) -> (Vec<Request>, String) {
    let mut connection = connection(script);
    let mut found = Vec::new();
    while found.len() < REQUESTS_MAX {
        match Request::read(&mut connection) {
            Ok(Next::Request(request)) => {
                check(&request);
                found.push(*request);
            }
            // The next piece follows.
            Ok(Next::Wait) => {}
            Ok(Next::End) => return (found, "end".to_owned()),
            Err(error) => return (found, text(&error)),
        }
    }
    (found, "more".to_owned())
}
