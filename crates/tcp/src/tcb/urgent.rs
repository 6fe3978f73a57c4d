//! Urgent data: the one byte that the sockets API calls out-of-band.
//!
//! Above: `socket` (`MSG_OOB`, `SIOCATMARK`), step six of `input`, and `segment`, which writes the
//! pointer. RFC 9293 §3.8.5, RFC 6093; Linux: `urg_data`, `urg_seq` and `snd_up` of struct
//! tcp_sock.
//!
//! TCP has no second channel: the urgent pointer marks a position in the one stream. As in BSD and
//! Linux, it points to the byte *after* the last urgent byte (RFC 6093 §3.2). RFC 6093 §4 makes
//! this the standard's interpretation, too; with `tcp_stdurg` a peer's pointer is interpreted as in
//! RFC 1122. Only the newest mark is kept. The byte before the pointer is removed from the stream,
//! unless `SO_OOBINLINE` is set. RFC 6093 §5 and §6: new applications should not use urgent data,
//! and others should read it in line. Middleboxes clear pointers (RFC 6093 §3.4), so a mark may be
//! lost while its byte arrives as plain data.
//!
//! The mark of received data is the urgent byte's sequence number; the mark of sent data is SND.UP,
//! the sequence number after the urgent byte. A read stops in front of the urgent byte, and the
//! next read starts after it, or with it if `SO_OOBINLINE` is set.
//!
//! While the peer has not acknowledged the mark (urgent mode), segments are sent one by one,
//! without Nagle's algorithm and without superframes (packets of several segments), so that each
//! can carry its own pointer.
//!
//! Differs from Linux: no process gets a SIGURG; [`Readiness::PRI`](crate::Readiness::PRI) reports
//! urgent data.
//!
//! Not here: received pointers (`input::urgent`), the calls that send and read the byte
//! (`socket::urgent`).

use crate::{
    tcb::{Tcb, TcbFlags},
    wire::{
        header::{Flags, SegmentHeader},
        seq::SeqNum,
    },
};

/// State of the peer's urgent byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UrgentByte {
    /// A pointer announced the byte, but the byte has not arrived (Linux `TCP_URG_NOTYET`).
    Announced,
    /// The byte has arrived (Linux `TCP_URG_VALID`).
    Valid(u8),
    /// The application has read the byte; the mark stays until the stream was read past the byte
    /// (Linux `TCP_URG_READ`).
    Read,
}

/// Urgent marks of both directions. [`TcbFlags::URGENT_OUT`] and [`TcbFlags::URGENT_IN`] say
/// whether a mark exists, so that connections without urgent data never access this type.
#[derive(Clone, Debug)]
pub(crate) struct Urgent {
    /// SND.UP: end of the last byte that was sent as urgent.
    pub(crate) snd_up: SeqNum,
    /// Sequence number of the peer's urgent byte: RCV.UP less one.
    pub(crate) seq: SeqNum,
    pub(crate) byte: UrgentByte,
    /// `SO_OOBINLINE`: whether the byte stays in the stream.
    pub(crate) inline: bool,
}

impl Urgent {
    pub(crate) const fn new(inline: bool) -> Self {
        Self { snd_up: SeqNum(0), seq: SeqNum(0), byte: UrgentByte::Read, inline }
    }
}

/// Limit of the next read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadLimit {
    /// No limit.
    None,
    /// Up to the mark.
    Bytes(usize),
    /// The read begins at the urgent byte, and skips it because it is not part of the stream.
    SkipOne,
}

impl Tcb {
    /// Whether the next byte to read is the urgent one (`SIOCATMARK`).
    #[must_use]
    pub fn at_mark(&self) -> bool {
        self.has_mark() && self.urgent.seq == copied_seq(self)
    }

    pub(crate) fn has_mark(&self) -> bool {
        self.flags.contains(TcbFlags::URGENT_IN)
    }

    /// Whether the urgent byte can be read: `EPOLLPRI`.
    pub(crate) fn has_urgent_byte(&self) -> bool {
        self.has_mark() && matches!(self.urgent.byte, UrgentByte::Valid(_))
    }

    /// Whether the next byte of the queue is the urgent one and is not part of the stream.
    pub(crate) fn skips_urgent_byte(&self) -> bool {
        self.at_mark() && !self.urgent.inline && !self.receive_queue.is_empty()
    }
}

/// Returns the sequence number of the next byte that the application reads (Linux `copied_seq`).
pub(crate) fn copied_seq(tcb: &Tcb) -> SeqNum {
    let fin = u32::from(tcb.flags.contains(TcbFlags::FIN_RECEIVED));
    tcb.rcv_nxt - (tcb.receive_queue.bytes() + fin)
}

/// Returns the limit of a read that begins now.
pub(crate) fn read_limit(tcb: &Tcb) -> ReadLimit {
    if !tcb.has_mark() {
        return ReadLimit::None;
    }
    let copied = copied_seq(tcb);
    if tcb.urgent.seq == copied {
        return if tcb.urgent.inline { ReadLimit::None } else { ReadLimit::SkipOne };
    }
    if tcb.urgent.seq.gt(copied) {
        return ReadLimit::Bytes(tcb.urgent.seq.since(copied) as usize);
    }
    ReadLimit::None
}

/// Returns the number of unread bytes before the mark, if the mark lies in the received data and
/// the urgent byte is not read in line. `SIOCINQ` counts only these bytes.
pub(crate) fn bytes_before_mark(tcb: &Tcb) -> Option<u32> {
    let copied = copied_seq(tcb);
    let seq = tcb.urgent.seq;
    let counts = tcb.has_mark() && !tcb.urgent.inline && seq.ge(copied) && seq.lt(tcb.rcv_nxt);
    counts.then(|| seq.since(copied))
}

/// Clears the mark after the application has read past it.
pub(crate) fn on_read(tcb: &mut Tcb) {
    if tcb.has_mark() && copied_seq(tcb).gt(tcb.urgent.seq) {
        tcb.flags -= TcbFlags::URGENT_IN;
    }
}

/// Ends urgent mode if SND.UNA has reached the mark, that is, the urgent byte is acknowledged.
pub(crate) fn on_acked(tcb: &mut Tcb) {
    if tcb.flags.contains(TcbFlags::URGENT_OUT) && tcb.urgent.snd_up.le(tcb.snd_una) {
        tcb.flags -= TcbFlags::URGENT_OUT;
    }
}

/// Writes the urgent pointer into a segment that begins before the mark. If the distance to the
/// mark exceeds 16 bits, the largest pointer is written, provided that it points beyond SND.NXT.
/// The pointers of later segments then approach the mark.
pub(crate) fn mark(tcb: &Tcb, header: &mut SegmentHeader) {
    if !tcb.flags.contains(TcbFlags::URGENT_OUT) || header.seq.ge(tcb.urgent.snd_up) {
        return;
    }
    match u16::try_from(tcb.urgent.snd_up.since(header.seq)) {
        Ok(offset) => header.urgent = offset,
        Err(_) if (header.seq + u32::from(u16::MAX)).gt(tcb.snd_nxt) => header.urgent = u16::MAX,
        Err(_) => return,
    }
    header.flags |= Flags::URG;
}

/// Whether a probe of a closed window announces the mark: the distance must fit into 16 bits.
pub(crate) fn wants_probe(tcb: &Tcb) -> bool {
    let up = tcb.urgent.snd_up;
    let reach = tcb.snd_una + u32::from(u16::MAX);
    tcb.flags.contains(TcbFlags::URGENT_OUT) && up.gt(tcb.snd_una) && up.le(reach)
}
