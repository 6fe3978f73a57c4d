//! Counters of a server: bytes are counted per connection and published in batches.

use std::{
    io::{self, IoSlice, Read, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::endpoint::Stream;

/// Bytes that a connection counts locally before it publishes them. Avoids contention on shared
/// cache lines when bytes arrive one at a time.
const PUBLISH_BYTES: u64 = 1 << 20;

/// Sums over all connections. Relaxed everywhere: the counters order no other memory accesses.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    connections: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    active: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
}

impl Totals {
    /// Counts an accepted connection.
    pub(super) fn connection(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection that was closed before it was served.
    pub(super) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection that ended with an error.
    pub(super) fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one datagram that was received and, if `sent` is not 0, answered.
    pub(super) fn datagram(&self, received: usize, sent: usize) {
        self.received.fetch_add(received as u64, Ordering::Relaxed);
        self.sent.fetch_add(sent as u64, Ordering::Relaxed);
    }

    /// Waits until no connection is being served, at most for `limit`.
    pub(super) fn settle(&self, limit: Duration) {
        let end = Instant::now() + limit;
        while self.active.load(Ordering::Relaxed) > 0 && Instant::now() < end {
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Number of accepted connections.
    pub(super) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Number of connections that were closed before they were served, because of `--max-per-peer`.
    pub(super) fn refusals(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Number of connections that ended with an error.
    pub(super) fn failures(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Number of connections that are being served.
    pub(super) fn open(&self) -> u64 {
        self.active.load(Ordering::Relaxed)
    }

    /// Returns all counters in one line.
    pub(super) fn sentence(&self) -> String {
        format!(
            "{} connections, {} open, {} refused, {} failed; {} bytes received, {} sent",
            self.connections(),
            self.open(),
            self.refusals(),
            self.failures(),
            self.bytes_received(),
            self.bytes_sent(),
        )
    }

    /// Number of bytes read.
    pub(super) fn bytes_received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Number of bytes written.
    pub(super) fn bytes_sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

/// A stream that counts its bytes.
#[derive(Debug)]
pub(super) struct Metered<S> {
    stream: S,
    totals: Arc<Totals>,
    /// Bytes that are not published yet.
    received: u64,
    sent: u64,
    /// Published bytes: received, sent.
    published: (u64, u64),
}

impl<S: Stream> Metered<S> {
    /// Starts counting a connection.
    pub(super) fn new(stream: S, totals: &Arc<Totals>) -> Self {
        totals.active.fetch_add(1, Ordering::Relaxed);
        Self { stream, totals: Arc::clone(totals), received: 0, sent: 0, published: (0, 0) }
    }

    /// The stream, for its options.
    pub(super) fn inner(&self) -> &S {
        &self.stream
    }

    /// Reads received bytes without waiting; `WouldBlock` when there are none.
    pub(super) fn try_read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.try_read(buffer)?;
        self.received += count as u64;
        self.publish(PUBLISH_BYTES);
        Ok(count)
    }
}

impl<S: Stream> Metered<S> {
    /// Sends all prepared bytes.
    pub(super) fn send_prepared(
        &mut self,
        prepared: &S::Prepared,
        length: usize,
    ) -> io::Result<()> {
        let mut from = 0;
        while from < length {
            let count = self.stream.send_prepared(prepared, from)?;
            from += count;
            self.sent += count as u64;
            self.publish(PUBLISH_BYTES);
        }
        Ok(())
    }
}

impl<S> Metered<S> {
    /// Returns the bytes of this connection: received, sent.
    pub(super) fn moved(&self) -> (u64, u64) {
        (self.published.0 + self.received, self.published.1 + self.sent)
    }

    fn publish(&mut self, least: u64) {
        if self.received + self.sent >= least {
            self.totals.received.fetch_add(self.received, Ordering::Relaxed);
            self.totals.sent.fetch_add(self.sent, Ordering::Relaxed);
            self.published = (self.published.0 + self.received, self.published.1 + self.sent);
            (self.received, self.sent) = (0, 0);
        }
    }
}

impl<S: Stream> Read for Metered<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        self.received += count as u64;
        self.publish(PUBLISH_BYTES);
        Ok(count)
    }
}

impl<S: Stream> Write for Metered<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.stream.write(bytes)?;
        self.sent += count as u64;
        self.publish(PUBLISH_BYTES);
        Ok(count)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let count = self.stream.write_vectored(slices)?;
        self.sent += count as u64;
        self.publish(PUBLISH_BYTES);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl<S> Drop for Metered<S> {
    fn drop(&mut self) {
        self.publish(1);
        self.totals.active.fetch_sub(1, Ordering::Relaxed);
    }
}
