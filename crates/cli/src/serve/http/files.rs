//! GET and HEAD: files, ranges of files, and plain directory listings.

use std::{
    ffi::OsStr,
    fmt::Write as _,
    fs::File,
    io::{self, ErrorKind, Read as _, Seek as _, SeekFrom},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, openat2};

use super::{
    super::BUFFER_BYTES,
    connection::Connection,
    date::http_date,
    error::{Refusal, RequestError},
    head::{Method, Range, Request},
    response::Response,
};
use crate::endpoint::Stream;

/// The served directory, as a handle: it stays valid when the directory is renamed, and paths
/// resolve beneath it.
#[derive(Debug)]
pub(super) struct Root(OwnedFd);

impl Root {
    /// Opens the directory.
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(dir, flags, Mode::empty())?))
    }

    /// Opens a path. A path that leaves the root by `..` or by a symbolic link is refused.
    pub(super) fn open_beneath(&self, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        let path = if path.is_empty() { b"." } else { path };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let flags = flags | OFlags::CLOEXEC;
        Ok(openat2(&self.0, OsStr::from_bytes(path), flags, Mode::empty(), resolve)?)
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Answers GET and HEAD.
pub(super) fn send<S: Stream>(
    root: &Root,
    connection: &mut Connection<S>,
    request: &Request,
) -> Result<(), RequestError> {
    let refuse = |error: io::Error| RequestError::from(Refusal::from_file_error(&error));
    // Nonblocking, so that a named pipe in the directory cannot block the thread.
    let file =
        root.open_beneath(&request.path, OFlags::RDONLY | OFlags::NONBLOCK).map_err(refuse)?;
    let file = File::from(file);
    let metadata = file.metadata().map_err(refuse)?;
    if metadata.is_dir() {
        if !request.names_directory {
            let location = format!("{}/", request.raw_path);
            let refusal = Refusal::new(301, "this is a directory").header("Location", location);
            return Err(refusal.into());
        }
        return send_directory(root, connection, request, file.into());
    }
    if !metadata.is_file() || request.names_directory {
        return Err(Refusal::new(404, "there is no such file").into());
    }
    send_file(connection, request, file, &request.path)
}

fn send_directory<S: Stream>(
    root: &Root,
    connection: &mut Connection<S>,
    request: &Request,
    directory: OwnedFd,
) -> Result<(), RequestError> {
    let index = [request.path.as_slice(), b"index.html"].join(&b'/');
    let index = index.strip_prefix(b"/").unwrap_or(&index);
    if let Ok(file) = root.open_beneath(index, OFlags::RDONLY | OFlags::NONBLOCK) {
        let file = File::from(file);
        if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return send_file(connection, request, file, index);
        }
    }
    let page =
        listing(&request.path, directory).map_err(|error| Refusal::from_file_error(&error))?;
    let response = Response::content(200, "text/html; charset=utf-8", page.into_bytes());
    Ok(response.keep_alive(request.keep_alive).send(connection, request.method == Method::Get)?)
}

fn send_file<S: Stream>(
    connection: &mut Connection<S>,
    request: &Request,
    mut file: File,
    path: &[u8],
) -> Result<(), RequestError> {
    let refuse = |error: io::Error| RequestError::from(Refusal::from_file_error(&error));
    let metadata = file.metadata().map_err(refuse)?;
    let size = metadata.len();
    let modified = metadata.modified().ok().map(http_date);
    if let (Some(modified), Some(since)) = (modified, request.modified_since)
        && modified <= since
    {
        let response = Response::empty(304).header("Last-Modified", &modified.to_string());
        return Ok(response.keep_alive(request.keep_alive).send(connection, false)?);
    }
    let counts = request.method == Method::Get && request.if_range.holds(modified);
    let (response, first, length) = match request.range.filter(|_| counts) {
        None => (Response::with_length(200, size), 0, size),
        Some(range) => {
            let Some((first, length)) = range.of(size) else {
                let refusal = Refusal::new(416, "the file is shorter")
                    .header("Content-Range", format!("bytes */{size}"));
                return Err(refusal.into());
            };
            let part = format!("bytes {first}-{}/{size}", first + length - 1);
            let response = Response::with_length(206, length).header("Content-Range", &part);
            (response, first, length)
        }
    };
    let mut response = response
        .header("Content-Type", media_type(path))
        .header("Accept-Ranges", "bytes")
        .keep_alive(request.keep_alive);
    if let Some(modified) = modified {
        response = response.header("Last-Modified", &modified.to_string());
    }
    let head = response.head().into_bytes();
    if request.method == Method::Head {
        return Ok(connection.write_all(&head)?);
    }
    if first > 0 {
        file.seek(SeekFrom::Start(first)).map_err(refuse)?;
    }
    Ok(send_content(connection, head, &file, length)?)
}

/// Sends head and content. They share the first write, so that a small file fits one segment.
fn send_content<S: Stream>(
    connection: &mut Connection<S>,
    head: Vec<u8>,
    mut file: &File,
    mut left: u64,
) -> io::Result<()> {
    let mut filled = head.len();
    let mut buffer = head;
    buffer.resize(filled + BUFFER_BYTES.min(usize::try_from(left).unwrap_or(BUFFER_BYTES)), 0);
    while left > 0 {
        let room = &mut buffer[filled..];
        let room_bytes = room.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let count = file.read(&mut room[..room_bytes])?;
        if count == 0 {
            // The file became shorter than the announced length: only breaking the connection can
            // report that.
            let reason = "the file became shorter while it was sent";
            return Err(io::Error::new(ErrorKind::UnexpectedEof, reason));
        }
        left -= count as u64;
        connection.write_all(&buffer[..filled + count])?;
        filled = 0;
    }
    if filled > 0 { connection.write_all(&buffer[..filled]) } else { Ok(()) }
}

impl Range {
    /// Returns the first byte and the length of the range in a file of `size` bytes; `None` if it
    /// lies beyond the end.
    fn of(self, size: u64) -> Option<(u64, u64)> {
        let (first, end) = match self {
            Self::From(first, last) => {
                (first, last.map_or(size, |last| last.saturating_add(1).min(size)))
            }
            Self::Last(count) => (size.saturating_sub(count), size),
        };
        (first < end).then(|| (first, end - first))
    }
}

/// Returns a plain page with links to a directory's entries, directories first.
fn listing(path: &[u8], directory: OwnedFd) -> io::Result<String> {
    let mut names = Vec::new();
    for entry in Dir::new(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        match entry.file_type() {
            _ if name.starts_with(b".") => {}
            FileType::Directory => names.push((false, [name, b"/"].concat())),
            _ => names.push((true, name.to_vec())),
        }
    }
    names.sort();
    let title = escape(&format!("/{}", String::from_utf8_lossy(path)));
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title></head>\n\
         <body><h1>{title}</h1>\n<ul>\n"
    );
    for (_, name) in &names {
        let _ = writeln!(
            page,
            "<li><a href=\"./{}\">{}</a></li>",
            percent_encode(name),
            escape(&String::from_utf8_lossy(name)),
        );
    }
    page.push_str("</ul></body></html>\n");
    Ok(page)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn percent_encode(name: &[u8]) -> String {
    let mut encoded = String::new();
    for &byte in name {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

fn media_type(path: &[u8]) -> &'static str {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let extension = name.rsplit(|byte| *byte == b'.').next().unwrap_or_default();
    match extension.to_ascii_lowercase().as_slice() {
        b"html" | b"htm" => "text/html; charset=utf-8",
        b"css" => "text/css; charset=utf-8",
        b"js" | b"mjs" => "text/javascript; charset=utf-8",
        b"json" => "application/json",
        b"txt" | b"md" | b"log" => "text/plain; charset=utf-8",
        b"svg" => "image/svg+xml",
        b"png" => "image/png",
        b"jpg" | b"jpeg" => "image/jpeg",
        b"gif" => "image/gif",
        b"webp" => "image/webp",
        b"pdf" => "application/pdf",
        b"wasm" => "application/wasm",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_limited_to_the_file() {
        assert_eq!(Range::From(0, Some(0)).of(10), Some((0, 1)));
        assert_eq!(Range::From(3, None).of(10), Some((3, 7)));
        assert_eq!(Range::From(3, Some(99)).of(10), Some((3, 7)));
        assert_eq!(Range::From(0, Some(u64::MAX)).of(10), Some((0, 10)));
        assert_eq!(Range::From(10, None).of(10), None);
        assert_eq!(Range::Last(4).of(10), Some((6, 4)));
        assert_eq!(Range::Last(40).of(10), Some((0, 10)));
        assert_eq!(Range::Last(0).of(10), None);
        assert_eq!(Range::Last(4).of(0), None);
    }

    #[test]
    fn file_names_are_escaped_in_listings() {
        assert_eq!(percent_encode(b"a b%\"<.txt"), "a%20b%25%22%3C.txt");
        assert_eq!(escape("<a&\"b\">"), "&lt;a&amp;&quot;b&quot;&gt;");
    }

    #[test]
    fn the_media_type_follows_the_extension() {
        assert_eq!(media_type(b"a/b.HTML"), "text/html; charset=utf-8");
        assert_eq!(media_type(b"a.tar/noext"), "application/octet-stream");
    }
}
