//! `send`: passes application data from the buffer to the device, in the calling thread.
//!
//! Above: crate `quietline` (`stream::send`). Below: `tcp::Tcb::send`, then `settle`, which
//! transmits. Linux: `tcp_sendmsg_locked`, `tcp_push`.
//!
//! A call handles one superframe (a packet of several segments, GSO) per step: it copies the data
//! into the send queue, transmits ([`StreamState::settle`](super::StreamState::settle)), runs the
//! peer's core if that core is in this process, and processes the acknowledgments on the backlog.
//! Without `MSG_MORE` the last step only copies, and the end of the call does the rest.
//!
//! Not here: waiting for space in the send buffer. A call returns `EAGAIN` instead.

use std::io::IoSlice;

use bitflags::bitflags;
use pkt::{PagesRange, Payload};
use tcp::SendError;

use super::{
    Connection, backlog,
    call::{Call, SEND_STEP_BYTES},
};
use crate::{base::errno::Errno, cx::Cx, socket::net::Net};

bitflags! {
    /// Flags of a write.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SendFlags: u8 {
        /// Another write follows soon: the last small segment waits for it, as under `TCP_CORK`
        /// (`MSG_MORE`).
        const MORE = 1;
        /// A record ends with this write: later bytes are not put into the packet that holds the
        /// record's last byte (`MSG_EOR`).
        const EOR = 1 << 1;
    }
}

impl Connection {
    /// Queues and sends from `bufs`; returns the number of bytes taken, at least one unless `bufs`
    /// is empty. `EAGAIN` if the send buffer is full.
    pub fn send(&self, net: &Net, cx: &mut Cx, bufs: &[IoSlice<'_>]) -> Result<usize, Errno> {
        if let [buf] = bufs {
            // The common case: one buffer needs no list.
            return self.send_payload(net, cx, core::iter::once(&**buf), SendFlags::empty());
        }
        self.send_with_flags(net, cx, bufs, SendFlags::empty())
    }

    /// As [`send`](Self::send), with flags.
    pub fn send_with_flags(
        &self,
        net: &Net,
        cx: &mut Cx,
        bufs: &[IoSlice<'_>],
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        self.send_payload(net, cx, bufs.iter().map(|buf| &**buf), flags)
    }

    /// As [`send`](Self::send), of a range of pages, which are not copied: the packets share them.
    pub fn send_pages(
        &self,
        net: &Net,
        cx: &mut Cx,
        range: PagesRange<'_>,
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        self.send_payload(net, cx, core::iter::once(range), flags)
    }

    fn send_payload<P: Payload>(
        &self,
        net: &Net,
        cx: &mut Cx,
        parts: impl Iterator<Item = P> + Clone,
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        let mut call = self.begin_call(net, cx);
        let total = parts.clone().map(|part| part.byte_len()).sum();
        let sent = call.send_all(cx, parts, total, flags);
        call.state.tcb.set_mid_write(false);
        if sent == Err(Errno::EAGAIN) {
            self.note_full();
        }
        // The record ends with the last byte of the write, so it has ended only if all bytes were
        // taken.
        if flags.contains(SendFlags::EOR) && sent == Ok(total) {
            call.state.tcb.end_record();
        }
        call.end(cx);
        sent
    }

    /// Sends `buf`, the last byte of which is urgent (`MSG_OOB`); returns the number of bytes
    /// taken. `EAGAIN` if the send buffer is full.
    pub fn send_oob(&self, net: &Net, cx: &mut Cx, buf: &[u8]) -> Result<usize, Errno> {
        let mut call = self.begin_call(net, cx);
        let sent = call.state.tcb.send_oob(&mut cx.tcp(), buf).map_err(errno);
        if sent == Err(Errno::EAGAIN) {
            self.note_full();
        }
        call.end(cx);
        sent
    }
}

impl Call<'_> {
    /// Sends one superframe after the other, as long as the send buffer has space.
    fn send_all<P: Payload>(
        &mut self,
        cx: &mut Cx,
        parts: impl Iterator<Item = P>,
        total: usize,
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        let mut sent = 0;
        let step_bytes = SEND_STEP_BYTES.max(self.state.superframe_bytes());
        for mut rest in parts {
            while rest.byte_len() > 0 {
                let (step, later) = rest.split(rest.byte_len().min(step_bytes));
                rest = later;
                let len = step.byte_len();
                let has_more = sent + len < total;
                self.state.tcb.set_mid_write(has_more);
                let more = has_more || flags.contains(SendFlags::MORE);
                match self.send_step(cx, step, more) {
                    Ok(taken) => {
                        sent += taken;
                        // The next call reports an error that arrived meanwhile.
                        if taken < len || self.state.tcb.has_error() {
                            self.state.tcb.end_write_early();
                            return Ok(sent);
                        }
                    }
                    Err(_) if sent > 0 => return Ok(sent),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(sent)
    }

    /// Sends one superframe. Space that acknowledgments on the backlog free is used at once.
    fn send_step(&mut self, cx: &mut Cx, step: impl Payload, more: bool) -> Result<usize, Errno> {
        let len = step.byte_len();
        let mut taken = 0;
        loop {
            match self.state.tcb.send(&mut cx.tcp(), &[step.split(taken).1], more) {
                Ok(bytes) => {
                    taken += bytes;
                    self.state.note_sent(bytes);
                }
                Err(_) if taken > 0 => return Ok(taken),
                Err(error) => return Err(errno(error)),
            }
            if taken == len && !more {
                // The end of the call transmits.
                return Ok(taken);
            }
            let has_processed = self.transmit(cx);
            if taken == len || !has_processed || self.state.tcb.has_error() {
                return Ok(taken);
            }
        }
    }

    /// Transmits queued data to the device, runs the cores whose doorbells (arrival signals of
    /// devices in this process) the packets have rung (`Cx::do_softirq`), polls the connection's
    /// core if that is due, and processes the backlog. Returns whether the backlog held any work.
    fn transmit(&mut self, cx: &mut Cx) -> bool {
        backlog::note_locked_timer(&self.state, cx);
        self.state.settle(self.socket, self.net, cx);
        cx.do_softirq();
        self.poll_in_passing(cx);
        backlog::drain_backlog(self.socket, &mut self.state, self.net, cx)
    }
}

fn errno(error: SendError) -> Errno {
    match error {
        SendError::WouldBlock => Errno::EAGAIN,
        SendError::BrokenPipe => Errno::EPIPE,
        SendError::NoMemory => Errno::ENOBUFS,
        SendError::Connection(error) => error.into(),
    }
}
