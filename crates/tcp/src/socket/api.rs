//! Calls of the application: send, receive, readiness, and errors.
//!
//! Above: `stack::socket`. RFC 9293 §3.10.2–3.10.3; Linux: tcp_sendmsg, tcp_recvmsg, tcp_poll.
//!
//! A call moves bytes between the application and the queues. No call blocks or sends: the caller
//! runs `output` afterwards, and waits if the result is `WouldBlock`.
//!
//! Not here: the limit of the send buffer (`tcb::send_buffer`), closing (`close`), options
//! (`sockopt`).

use bitflags::bitflags;
use pkt::Payload;

use crate::{
    base::{
        error::{RecvError, SendError, TcpError},
        state::State,
    },
    cx::Cx,
    segment::window::receive_window,
    tcb::{
        Tcb, TcbFlags, delivery_rate,
        memory::{self, rmem_alloc},
        packet_cache::CacheCx,
        urgent::{self, ReadLimit},
    },
};

bitflags! {
    /// Operations that the application can perform without waiting (Linux `tcp_poll`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Readiness: u8 {
        /// A read returns data, end of stream or an error (EPOLLIN).
        const READ = 1;
        /// A write finds room or fails at once (EPOLLOUT).
        const WRITE = 1 << 1;
        /// Reading has ended, by the peer's FIN, `shutdown` or the end of the connection
        /// (EPOLLRDHUP).
        const RDHUP = 1 << 2;
        /// Both directions are closed (EPOLLHUP).
        const HUP = 1 << 3;
        /// An error is pending (EPOLLERR).
        const ERROR = 1 << 4;
        /// An urgent byte can be read (EPOLLPRI).
        const PRI = 1 << 5;
    }
}

impl Tcb {
    /// Appends the bytes of `bufs` to the send queue and returns the number of appended bytes: at
    /// least one, unless `bufs` is empty. `more` announces another write soon (`MSG_MORE`): the
    /// last small segment is held for it, as under a cork.
    ///
    /// # Errors
    ///
    /// See [`SendError`].
    pub fn send<P: Payload>(
        &mut self,
        cx: &mut Cx<'_>,
        bufs: &[P],
        more: bool,
    ) -> Result<usize, SendError> {
        if self.error.is_some() || self.flags.contains(TcbFlags::SHUT_WRITE) {
            return Err(self.error.take().map_or(SendError::BrokenPipe, SendError::Connection));
        }
        match self.state {
            State::Established | State::CloseWait => {}
            State::SynSent if self.is_syn_held() => return self.send_early(cx, bufs),
            State::SynRecv if self.is_open_early() => {}
            State::SynSent | State::SynRecv => return Err(SendError::WouldBlock),
            _ => return Err(SendError::BrokenPipe),
        }
        delivery_rate::check_app_limited(self);
        let wanted: usize = bufs.iter().map(Payload::byte_len).sum();
        let mut sent = 0;
        let mut failed = SendError::WouldBlock;
        'bufs: for buf in bufs {
            let mut rest = *buf;
            while rest.byte_len() > 0 {
                match self.append(cx, rest) {
                    Ok(taken) => {
                        sent += taken;
                        rest = rest.split(taken).1;
                    }
                    Err(error) => {
                        failed = error;
                        break 'bufs;
                    }
                }
            }
        }
        // A write that found no room is not followed by another one at once, so no segment is held
        // for it.
        self.flags.set(TcbFlags::MORE, more && sent == wanted);
        self.flags -= TcbFlags::PUSH_HELD;
        if sent == 0 && wanted > 0 {
            return Err(failed);
        }
        if !more && sent > 0 {
            self.flags |= TcbFlags::WRITTEN;
            self.send_queue.mark_push();
            self.pushed_seq = self.send_queue.write_seq();
        }
        Ok(sent)
    }

    /// Sets whether a write is in progress. Until it is over, its last small segment is not sent,
    /// because the caller appends more data at once.
    pub fn set_mid_write(&mut self, on: bool) {
        self.flags.set(TcbFlags::MID_WRITE, on);
    }

    /// Ends a write early, with the bytes appended so far: no segment is held for the rest.
    pub fn end_write_early(&mut self) {
        self.flags -= TcbFlags::MORE;
    }

    /// Ends a record after the last queued byte (`MSG_EOR`): later bytes go into another packet,
    /// and so into another segment. Without effect on data that was already sent.
    pub fn end_record(&mut self) {
        self.send_queue.mark_record_end();
    }

    /// Appends data to the held SYN, as much as the SYN can carry.
    fn send_early<P: Payload>(&mut self, cx: &mut Cx<'_>, bufs: &[P]) -> Result<usize, SendError> {
        let wanted: usize = bufs.iter().map(Payload::byte_len).sum();
        let mut sent = 0;
        for buf in bufs {
            let room = self.syn_data_room().saturating_sub(sent);
            let piece = buf.split(buf.byte_len().min(room)).0;
            if piece.byte_len() == 0 {
                continue;
            }
            match self.append(cx, piece) {
                Ok(taken) => sent += taken,
                Err(error) if sent == 0 => return Err(error),
                Err(_) => break,
            }
        }
        if sent == 0 && wanted > 0 {
            return Err(SendError::WouldBlock);
        }
        self.send_queue.mark_push();
        self.pushed_seq = self.send_queue.write_seq();
        Ok(sent)
    }

    /// Appends at most the payload of one full packet.
    fn append(&mut self, cx: &mut Cx<'_>, bytes: impl Payload) -> Result<usize, SendError> {
        let goal = self.mss.size_goal();
        // As in Linux (sk_stream_memory_free), this limit is checked only for a new packet, so the
        // buffer is exceeded by one packet at most.
        let no_space = self.send_queue.wmem_queued() >= self.sndbuf;
        let full = no_space || self.not_sent() >= self.not_sent_lowat;
        // If the buffer is full, the last packet may be filled, but no new packet is started.
        let room = if full { self.send_queue.tail_room(goal) } else { goal };
        self.flags.set(TcbFlags::NO_SPACE, no_space && room == 0);
        if room == 0 {
            return Err(SendError::WouldBlock);
        }
        if memory::suppresses_send(self, cx) {
            self.flags |= TcbFlags::WRITE_SUPPRESSED;
            return Err(SendError::WouldBlock);
        }
        let piece = bytes.split(bytes.byte_len().min(room as usize)).0;
        let (pool, _, cache_cx) = CacheCx::split(cx);
        let cache = &mut self.packet_cache;
        let sizes = (goal, self.mss.summed_piece());
        // The last packet may have no fragment left for bytes that its size still allows (Linux:
        // MAX_SKB_FRAGS).
        let packet_for = |pool: &mut _| if full { None } else { cache.take_tx(pool, &cache_cx) };
        let taken = self.send_queue.append(pool, piece, sizes, packet_for);
        if taken == 0 && full {
            self.flags.set(TcbFlags::NO_SPACE, no_space);
            return Err(SendError::WouldBlock);
        }
        if taken == 0 {
            return Err(SendError::NoMemory);
        }
        // Sets PSH after half a window without a push (Linux `forced_push`).
        if self.send_queue.write_seq().since(self.pushed_seq) > self.mss.max_window() / 2 {
            self.send_queue.mark_push();
            self.pushed_seq = self.send_queue.write_seq();
        }
        Ok(taken)
    }

    /// Copies received bytes to `buf` and returns their number; 0 is the end of the stream. With
    /// `peek` the bytes stay in the queue. A read stops before a byte that the peer marked urgent.
    /// The next read skips this byte, unless `SO_OOBINLINE` makes it part of the stream.
    ///
    /// # Errors
    ///
    /// See [`RecvError`].
    pub fn recv(
        &mut self,
        cx: &mut Cx<'_>,
        buf: &mut [u8],
        peek: bool,
    ) -> Result<usize, RecvError> {
        if self.receive_queue.is_empty() {
            return self.recv_nothing();
        }
        let (buf, skip) = match urgent::read_limit(self) {
            ReadLimit::None => (buf, 0),
            ReadLimit::Bytes(bytes) => {
                let end = buf.len().min(bytes);
                (&mut buf[..end], 0)
            }
            ReadLimit::SkipOne => (buf, 1),
        };
        if skip == self.receive_queue.bytes() {
            // The queue contains the urgent byte only.
            return self.recv_nothing();
        }
        if peek {
            return Ok(self.receive_queue.peek(buf, skip as usize));
        }
        let (pool, read, cache_cx) = CacheCx::split(cx);
        let cache = &mut self.packet_cache;
        let mut free_read = |packet| cache.put_read((pool, read), &cache_cx, packet);
        self.receive_queue.skip(skip, &mut free_read);
        let copied = self.receive_queue.read(buf, &mut free_read);
        urgent::on_read(self);
        self.on_read(cx, u32::try_from(copied).unwrap_or(u32::MAX) + skip);
        Ok(copied)
    }

    /// Accounts for bytes that `input_to_user` has copied to the application since the last call:
    /// they count as read.
    pub fn on_direct_read(&mut self, cx: &mut Cx<'_>, bytes: usize) {
        self.on_read(cx, u32::try_from(bytes).unwrap_or(u32::MAX));
    }

    /// Returns the result of a read when the queue holds no byte of the stream.
    fn recv_nothing(&mut self) -> Result<usize, RecvError> {
        if self.flags.contains(TcbFlags::FIN_RECEIVED) {
            // The stream is complete, so reads do not report a later error (Linux: SOCK_DONE).
            return Ok(0);
        }
        if let Some(error) = self.error.take() {
            return Err(RecvError::Connection(error));
        }
        if self.flags.contains(TcbFlags::SHUT_READ) {
            return Ok(0);
        }
        if self.state == State::Close {
            return Err(RecvError::NotConnected);
        }
        Err(RecvError::WouldBlock)
    }

    /// Updates autotuning after a read, and schedules an ACK that announces the freed space if that
    /// is worth a segment (Linux `tcp_cleanup_rbuf`).
    fn on_read(&mut self, cx: &Cx<'_>, copied: u32) {
        self.receive_buffer.on_read(copied, cx.memory.is_plenty(), cx.config, cx.now);
        if copied == 0 || !self.state.may_receive() {
            return;
        }
        let unacked = self.rcv_nxt.since(self.rcv_wup);
        let drained = self.receive_queue.is_empty() && self.ack.wants_ack_when_drained();
        if self.ack.is_pending() && (unacked > self.ack.rcv_mss() || drained) {
            self.ack.schedule_now();
            return;
        }
        self.schedule_window_update();
    }

    /// Returns the operations that the application can perform without waiting.
    #[inline]
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        const ODD: TcbFlags =
            TcbFlags::SHUT_READ.union(TcbFlags::SHUT_WRITE).union(TcbFlags::URGENT_IN);
        if self.state != State::Established || self.flags.intersects(ODD) || self.error.is_some() {
            return self.readiness_in_any_state();
        }
        // In this case only the two queues determine the readiness.
        let mut ready = Readiness::empty();
        ready.set(Readiness::READ, !self.receive_queue.is_empty() && self.is_readable());
        ready.set(Readiness::WRITE, self.has_write_space());
        ready
    }

    #[inline(never)]
    fn readiness_in_any_state(&self) -> Readiness {
        let mut ready = Readiness::empty();
        let shut_read = self.flags.contains(TcbFlags::SHUT_READ);
        let shut_write = self.flags.contains(TcbFlags::SHUT_WRITE);
        ready.set(Readiness::ERROR, self.error.is_some());
        ready.set(Readiness::HUP, self.state == State::Close || (shut_read && shut_write));
        ready.set(Readiness::RDHUP, shut_read);
        if matches!(self.state, State::SynSent | State::SynRecv) && !self.is_open_early() {
            // The first write sends a held SYN.
            ready.set(Readiness::WRITE, self.is_syn_held() && self.send_queue.is_empty());
            return ready;
        }
        ready.set(Readiness::READ, shut_read || self.is_readable());
        ready.set(Readiness::PRI, self.has_urgent_byte());
        ready.set(Readiness::WRITE, shut_write || self.has_write_space());
        ready
    }

    /// Returns whether an error is pending (`Readiness::ERROR`).
    #[must_use]
    pub const fn has_error(&self) -> bool {
        self.error.is_some()
    }

    /// Returns whether `SO_RCVLOWAT` bytes are readable, or as many as can arrive before the
    /// application reads: the buffer is nearly full, memory is scarce, or the window is nearly
    /// closed (Linux `tcp_epollin_ready`).
    fn is_readable(&self) -> bool {
        let readable = self.receive_queue.bytes() - u32::from(self.skips_urgent_byte());
        if readable == 0 {
            return false;
        }
        let rcvbuf = self.receive_buffer.rcvbuf();
        readable >= self.receive_buffer.lowat()
            || rmem_alloc(self) > rcvbuf - rcvbuf / 8
            || self.receive_buffer.is_scarce()
            || receive_window(self) <= self.ack.rcv_mss()
    }

    /// Takes the error that ended the connection or that `IP_RECVERR` reports at once, or else the
    /// ICMP error reported since the last segment arrived (`SO_ERROR`; RFC 9293 §3.9.1.8).
    pub fn take_error(&mut self) -> Option<TcpError> {
        self.error.take().or_else(|| self.soft_error.take())
    }

    /// Returns the number of bytes that can be read now, up to the urgent byte (`SIOCINQ`).
    #[must_use]
    pub fn readable_bytes(&self) -> usize {
        urgent::bytes_before_mark(self).unwrap_or_else(|| self.receive_queue.bytes()) as usize
    }

    /// Returns the number of queued bytes that are not acknowledged (`SIOCOUTQ`). A FIN counts as
    /// one.
    #[must_use]
    pub fn unacked_bytes(&self) -> usize {
        self.send_queue.write_seq().since(self.snd_una) as usize
    }
}
