//! A connection whose application sleeps in `recv`.

use std::{io::IoSliceMut, sync::Arc, time::Duration};

use sim::{Peer, Rig, RigConfig};
use stack::{
    Errno,
    base::counters::Counter,
    host::Host,
    socket::{Connection, Listener, Reader},
    sysctl::{Sysctls, modes::RxContext},
};
use tcp::{Flags, Options};

pub(crate) const PSH_ACK: Flags = Flags::PSH.union(Flags::ACK);

/// Contexts in which packets are queued for a reader.
pub(crate) const PREQUEUES: [RxContext; 3] =
    [RxContext::PrequeueRef, RxContext::PrequeueDrop, RxContext::PrequeueDropLimited];

/// Connection whose application sleeps in `recv`.
pub(crate) struct Waiting {
    pub(crate) rig: Rig,
    pub(crate) host: Arc<Host>,
    pub(crate) peer: Peer,
    pub(crate) socket: Arc<Connection>,
    pub(crate) reader: Reader,
    listener: Arc<Listener>,
}

impl Waiting {
    /// Opens a connection in this context; no thread reads yet.
    pub(crate) fn new(rx_context: RxContext) -> Self {
        Self::with(Sysctls { rx_context, ..Sysctls::default() })
    }

    pub(crate) fn with(mut sysctls: Sysctls) -> Self {
        // Without GRO every segment reaches the socket by itself.
        sysctls.set("net.quietline.dev.default.gro", "0").expect("a switch");
        let mut rig = Rig::new(RigConfig { sysctls, second_link: true, ..RigConfig::default() });
        let listener = rig.listen(80, 8);
        let peer = Peer::open(&mut rig, 80, 2000, Options::default());
        let socket = listener.accept().expect("an established connection");
        rig.take();
        let host = rig.host();
        Self { rig, host, peer, socket, reader: Reader::new(), listener }
    }

    /// Runs the reader: it reads up to `max` bytes, or continues to sleep (`EAGAIN`).
    pub(crate) fn read(&mut self, max: usize) -> Result<Vec<u8>, Errno> {
        let Self { rig, host, socket, reader, .. } = self;
        let mut buf = vec![0; max];
        let bufs = &mut [IoSliceMut::new(&mut buf)];
        let read = socket.recv_or_wait(host, &mut rig.world.cx, reader, bufs)?;
        buf.truncate(read);
        Ok(buf)
    }

    /// Runs the reader, which finds no data and sleeps.
    pub(crate) fn wait(&mut self) {
        assert_eq!(self.read(1), Err(Errno::EAGAIN));
        self.rig.take();
    }

    /// Ends the reader's call, as a read timeout does.
    pub(crate) fn leave(&mut self, max: usize) -> Result<Vec<u8>, Errno> {
        let Self { rig, host, socket, reader, .. } = self;
        let mut buf = vec![0; max];
        let bufs = &mut [IoSliceMut::new(&mut buf)];
        let read = socket.recv_and_leave(host, &mut rig.world.cx, reader, bufs)?;
        buf.truncate(read);
        Ok(buf)
    }

    /// Reads without waiting, as another thread does.
    pub(crate) fn recv(&mut self, max: usize, peek: bool) -> Result<Vec<u8>, Errno> {
        let mut buf = vec![0; max];
        let read = self.socket.recv(&self.host, &mut self.rig.world.cx, &mut buf, peek)?;
        buf.truncate(read);
        Ok(buf)
    }

    /// Delivers the peer's next data, in a poll of its own.
    pub(crate) fn arrives(&mut self, payload: &[u8]) {
        self.peer.send_next(&mut self.rig, PSH_ACK, payload);
    }

    /// Delivers the peer's next data on the host's second link.
    pub(crate) fn arrives_elsewhere(&mut self, payload: &[u8]) {
        let frame = self.next_frame(PSH_ACK, payload);
        let other = Arc::clone(self.rig.other.as_ref().expect("a second link"));
        assert!(other.deliver(&mut self.rig.world.cx, &frame));
        self.rig.settle();
    }

    /// Delivers the peer's next data to the device, which the host has not polled yet.
    pub(crate) fn reaches_device(&mut self, flags: Flags, payload: &[u8]) {
        let frame = self.next_frame(flags, payload);
        self.rig.queue(&frame);
    }

    /// Returns the frame with the peer's next data, and counts it as sent.
    pub(crate) fn next_frame(&mut self, flags: Flags, payload: &[u8]) -> Vec<u8> {
        let header = self.peer.header(flags);
        let frame = self.rig.framed(&self.peer.packet(&header, payload));
        self.peer.snd_nxt += header.segment_len(u32::try_from(payload.len()).expect("a segment"));
        frame
    }

    /// Owns the socket for `time`, while the host processes the frames that reached its device.
    pub(crate) fn hold(&mut self, time: Duration) {
        let Self { rig, host, socket, .. } = self;
        socket.hold(host, &mut rig.world.cx, |cx| {
            cx.now += time;
            let _ = host.poll(cx);
        });
    }

    /// Returns the segments that the host has sent since the last call: flags and acknowledgment of
    /// each.
    pub(crate) fn sent(&mut self) -> Vec<(Flags, u32)> {
        let seen = self.rig.take();
        self.peer.hear(&seen);
        let segments = seen.iter().filter_map(|seen| seen.segment());
        segments.map(|(header, _)| (header.flags, header.ack.since(self.peer.snd_nxt))).collect()
    }

    pub(crate) fn is_due(&self) -> bool {
        self.socket.is_due(&self.reader)
    }

    pub(crate) fn check(&mut self) {
        let _ = self.socket.check(&self.host, &mut self.rig.world.cx);
    }

    pub(crate) fn tcp(&self, counter: tcp::Counter) -> u64 {
        self.rig.count_tcp(counter)
    }

    pub(crate) fn stack(&self, counter: Counter) -> u64 {
        self.rig.count(counter)
    }

    /// Returns the truesize of a packet with this payload. Call it before a reader waits.
    pub(crate) fn truesize_of(&mut self, payload: &[u8]) -> u32 {
        self.arrives(payload);
        let size =
            self.socket.with_tcb(&self.host, &mut self.rig.world.cx, |tcb, _| tcb.rmem_alloc());
        assert_eq!(self.recv(payload.len(), false).expect("data"), payload);
        size
    }

    /// Closes everything and asserts that nothing is left.
    pub(crate) fn finish(self) {
        let Self { mut rig, host, socket, listener, .. } = self;
        socket.abort(&host, &mut rig.world.cx);
        listener.close(&host, &mut rig.world.cx);
        drop((socket, listener, host));
        rig.finish();
    }
}
