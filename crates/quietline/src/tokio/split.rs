//! The two directions of a stream as separate objects, as in `tokio::net::tcp`.

use std::{
    fmt,
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::TcpStream;

/// The receiving direction, borrowed by [`TcpStream::split`].
#[derive(Debug)]
pub struct ReadHalf<'a>(&'a TcpStream);

/// The sending direction, borrowed by [`TcpStream::split`].
#[derive(Debug)]
pub struct WriteHalf<'a>(&'a TcpStream);

/// The receiving direction, by [`TcpStream::into_split`].
#[derive(Debug)]
pub struct OwnedReadHalf(Arc<TcpStream>);

/// The sending direction, by [`TcpStream::into_split`]. Dropping it sends FIN.
#[derive(Debug)]
pub struct OwnedWriteHalf {
    stream: Arc<TcpStream>,
    finishes: bool,
}

/// Two halves of different streams.
#[derive(Debug)]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

impl fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the halves are of different streams")
    }
}

impl std::error::Error for ReuniteError {}

pub(super) const fn split(stream: &TcpStream) -> (ReadHalf<'_>, WriteHalf<'_>) {
    (ReadHalf(stream), WriteHalf(stream))
}

pub(super) fn into_split(stream: TcpStream) -> (OwnedReadHalf, OwnedWriteHalf) {
    let stream = Arc::new(stream);
    (OwnedReadHalf(Arc::clone(&stream)), OwnedWriteHalf { stream, finishes: true })
}

impl OwnedReadHalf {
    /// Joins both halves again.
    ///
    /// # Errors
    /// The halves, if they are of different streams.
    pub fn reunite(self, other: OwnedWriteHalf) -> Result<TcpStream, ReuniteError> {
        if !Arc::ptr_eq(&self.0, &other.stream) {
            return Err(ReuniteError(self, other));
        }
        other.forget();
        Ok(Arc::into_inner(self.0).expect("no other half exists"))
    }
}

impl OwnedWriteHalf {
    /// Drops the half without sending FIN: the connection ends with the other half.
    pub fn forget(mut self) {
        self.finishes = false;
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if self.finishes {
            let _ = self.stream.finish();
        }
    }
}

/// The stream gives addresses, options, `readable`, `try_read` and the like.
impl AsRef<TcpStream> for ReadHalf<'_> {
    fn as_ref(&self) -> &TcpStream {
        self.0
    }
}

impl AsRef<TcpStream> for WriteHalf<'_> {
    fn as_ref(&self) -> &TcpStream {
        self.0
    }
}

impl AsRef<TcpStream> for OwnedReadHalf {
    fn as_ref(&self) -> &TcpStream {
        &self.0
    }
}

impl AsRef<TcpStream> for OwnedWriteHalf {
    fn as_ref(&self) -> &TcpStream {
        &self.stream
    }
}

macro_rules! readers {
    ($($half:ty),*) => {$(
        impl AsyncRead for $half {
            fn poll_read(
                self: Pin<&mut Self>,
                task: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                let stream: &TcpStream = (*self).as_ref();
                stream.poll_read_shared(task, buf)
            }
        }
    )*};
}

macro_rules! writers {
    ($($half:ty),*) => {$(
        impl AsyncWrite for $half {
            fn poll_write(
                self: Pin<&mut Self>,
                task: &mut Context<'_>,
                buf: &[u8],
            ) -> Poll<io::Result<usize>> {
                let stream: &TcpStream = (*self).as_ref();
                stream.poll_write_shared(task, &[IoSlice::new(buf)])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                task: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                let stream: &TcpStream = (*self).as_ref();
                stream.poll_write_shared(task, bufs)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                let stream: &TcpStream = (*self).as_ref();
                Poll::Ready(stream.finish())
            }
        }
    )*};
}

readers!(ReadHalf<'_>, OwnedReadHalf);
writers!(WriteHalf<'_>, OwnedWriteHalf);
