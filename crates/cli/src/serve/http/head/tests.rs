use super::*;

fn parse(head: &str) -> Result<Request, u16> {
    match Request::parse(head.as_bytes()) {
        Ok(Some((request, used))) => {
            assert_eq!(used, head.len());
            Ok(request)
        }
        Ok(None) => panic!("incomplete: {head}"),
        Err(refusal) => Err(refusal.status),
    }
}

fn get(path: &str, headers: &str) -> Result<Request, u16> {
    parse(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n"))
}

fn put(headers: &str) -> Result<Request, u16> {
    parse(&format!("PUT /f HTTP/1.1\r\nHost: x\r\n{headers}\r\n"))
}

#[test]
fn a_plain_request_is_parsed() {
    let request = get("/a/b%20c?q=1", "").expect("valid");
    assert_eq!((request.method, request.path.as_slice()), (Method::Get, &b"a/b c"[..]));
    assert!(request.keep_alive && !request.has_body() && !request.names_directory);
}

#[test]
fn every_prefix_is_incomplete_or_refused_but_never_complete() {
    let head = b"GET / HTTP/1.1\r\nHost: x\r\nRange: bytes=0-1\r\n\r\n";
    for end in 0..head.len() {
        assert!(matches!(Request::parse(&head[..end]), Ok(None)), "{end}");
    }
}

#[test]
fn paths_stay_below_the_root() {
    for path in ["/../etc/passwd", "/a/../../b", "/%2e%2e/b", "/a%2f..%2f..%2fb", "/.%2E/"] {
        assert_eq!(get(path, ""), Err(403), "{path}");
    }
    assert_eq!(get("/a%00b", ""), Err(400));
    assert_eq!(get("/a%2", ""), Err(400));
    assert_eq!(get("/a%zz", ""), Err(400));
    assert_eq!(get("relative", ""), Err(400));
    assert_eq!(get("//a//./b/", "").expect("valid").path, b"a/b");
    assert_eq!(get("/a.../b.", "").expect("valid").path, b"a.../b.");
    assert_eq!(get("/.well-known/x", "").expect("valid").path, b".well-known/x");
    for path in ["/...", "/.git", "/a/.b/c", "/%2Eb", "/.well-known/.x"] {
        assert_eq!(get(path, ""), Err(403), "{path}");
    }
    assert_eq!(get("http://host/a", "").expect("valid").path, b"a");
    assert_eq!(get("http://host", "").expect("valid").path, b"");
}

#[test]
fn ambiguous_body_framing_is_refused() {
    assert_eq!(put("Content-Length: 5\r\n").expect("valid").body, Body::Length(5));
    assert_eq!(
        put("Content-Length: 5\r\ncontent-length: 5\r\n").expect("valid").body,
        Body::Length(5)
    );
    assert_eq!(put("Transfer-Encoding: Chunked\r\n").expect("valid").body, Body::Chunked);
    assert_eq!(put("Content-Length: 5\r\nContent-Length: 6\r\n"), Err(400));
    assert_eq!(put("Content-Length: 5, 6\r\n"), Err(400));
    assert_eq!(put("Content-Length: +5\r\n"), Err(400));
    assert_eq!(put("Content-Length: 99999999999999999999999\r\n"), Err(400));
    assert_eq!(put("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), Err(400));
    assert_eq!(put("Transfer-Encoding: gzip, chunked\r\n"), Err(501));
    assert_eq!(put("Content-Range: bytes 0-4/10\r\nContent-Length: 5\r\n"), Err(400));
}

#[test]
fn connections_persist_by_version_and_option() {
    assert!(!get("/", "Connection: close\r\n").expect("valid").keep_alive);
    assert!(!get("/", "Connection: x, Close\r\n").expect("valid").keep_alive);
    assert!(!parse("GET / HTTP/1.0\r\n\r\n").expect("valid").keep_alive);
    assert!(parse("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").expect("valid").keep_alive);
}

#[test]
fn valid_ranges_are_parsed_and_others_ignored() {
    let range = |text: &str| get("/", &format!("Range: {text}\r\n")).expect("valid").range;
    assert_eq!(range("bytes=0-99"), Some(Range::From(0, Some(99))));
    assert_eq!(range("bytes=7-"), Some(Range::From(7, None)));
    assert_eq!(range("bytes=-5"), Some(Range::Last(5)));
    for ignored in
        ["bytes=5-4", "bytes=", "bytes=-", "bytes=a-b", "lines=0-1", "bytes=0-1,3-4", "bytes"]
    {
        assert_eq!(range(ignored), None, "{ignored}");
    }
}

#[test]
fn other_invalid_requests_are_refused() {
    assert_eq!(parse("GET / HTTP/1.1\r\n\r\n"), Err(400));
    assert_eq!(parse("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), Err(400));
    assert_eq!(parse("GET / HTTP/2.0\r\nHost: a\r\n\r\n"), Err(505));
    assert_eq!(parse("BREW / HTTP/1.1\r\nHost: a\r\n\r\n"), Err(501));
    assert_eq!(parse("DELETE / HTTP/1.1\r\nHost: a\r\n\r\n").expect("valid").method, Method::Other);
    assert_eq!(put("Expect: a-miracle\r\n"), Err(417));
    let many = "A: b\r\n".repeat(HEADERS_MAX);
    assert_eq!(get("/", &many), Err(431));
}
