//! Urgent data: the one byte that the sockets API calls out of band.
//!
//! Above: `socket` (`MSG_OOB`, `SIOCATMARK`), step six of `input`, and `segment`, which writes the
//! pointer. RFC 9293 §3.8.5, RFC 6093; Linux: `urg_data`, `urg_seq` and `snd_up` of struct
//! tcp_sock.
//!
//! TCP knows no second channel: the pointer marks a place in the one stream. As in BSD and Linux
//! the pointer names the byte *behind* the last urgent one (RFC 6093 §3.2; §4 makes that the
//! standard's reading too; `tcp_stdurg` reads a peer's pointer as RFC 1122 wanted it), only the
//! newest mark is kept, and the byte before it is taken out of the stream unless `SO_OOBINLINE`
//! leaves it there. RFC 6093 §5 and §6: new applications should not use it, and those that must
//! should read in line; middleboxes clear pointers (§3.4), so a mark may be lost while its byte
//! arrives as plain data.
//!
//! ```text
//!   stream     ... a b c [!] d e ...        copied_seq --> next byte to read
//!                         ^ `seq`           a read stops before it, and the next one begins behind it
//! ```
//!
//! While the peer has not acknowledged the mark (urgent mode), segments leave one by one, without
//! Nagle and without being gathered into superframes, so that each can carry its own pointer.
//!
//! Differs from Linux: no process gets a SIGURG; [`Readiness::PRI`](crate::Readiness::PRI) tells.
//!
//! Not here: a pointer that arrives (`input::urgent`), the calls that send and take the byte
//! (`socket::urgent`).

use crate::{
    tcb::{Tcb, TcbFlags},
    wire::{
        header::{Flags, SegmentHeader},
        seq::SeqNum,
    },
};

/// What is known of the peer's urgent byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Byte {
    /// A pointer announced it, it has not come (Linux `TCP_URG_NOTYET`).
    Announced,
    /// It is here (Linux `TCP_URG_VALID`).
    Valid(u8),
    /// The application has it; the mark stays until the stream was read past it (Linux `TCP_URG_READ`).
    Read,
}

/// Both directions' marks. [`TcbFlags::URGENT_OUT`] and [`TcbFlags::URGENT_IN`] say whether there is one, so that
/// everybody else's path never looks here.
#[derive(Clone, Debug)]
pub(crate) struct Urgent {
    /// SND.UP: behind the last byte that was sent as urgent.
    pub(crate) snd_up: SeqNum,
    /// Sequence number of the peer's urgent byte: RCV.UP less one.
    pub(crate) seq: SeqNum,
    pub(crate) byte: Byte,
    /// `SO_OOBINLINE`: the byte stays in the stream.
    pub(crate) inline: bool,
}

impl Urgent {
    pub(crate) const fn new(inline: bool) -> Self {
        Self { snd_up: SeqNum(0), seq: SeqNum(0), byte: Byte::Read, inline }
    }
}

/// How far the next read may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadLimit {
    /// As far as there is data.
    None,
    /// Up to the mark.
    Bytes(usize),
    /// It begins with the urgent byte, which is not part of the stream.
    SkipOne,
}

impl Tcb {
    /// The next byte to read is the urgent one (`SIOCATMARK`).
    #[must_use]
    pub fn at_mark(&self) -> bool {
        self.has_mark() && self.urgent.seq == copied_seq(self)
    }

    pub(crate) fn has_mark(&self) -> bool {
        self.flags.contains(TcbFlags::URGENT_IN)
    }

    /// The urgent byte can be taken: `EPOLLPRI`.
    pub(crate) fn has_urgent_byte(&self) -> bool {
        self.has_mark() && matches!(self.urgent.byte, Byte::Valid(_))
    }

    /// The next byte of the queue is urgent and none of the stream's.
    pub(crate) fn skips_urgent_byte(&self) -> bool {
        self.at_mark() && !self.urgent.inline && !self.receive_queue.is_empty()
    }
}

/// Linux `copied_seq`: the next byte the application reads.
pub(crate) fn copied_seq(tcb: &Tcb) -> SeqNum {
    let fin = u32::from(tcb.flags.contains(TcbFlags::FIN_RECEIVED));
    tcb.rcv_nxt - (tcb.receive_queue.bytes() + fin)
}

/// How far a read may go that begins now.
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

/// Bytes before the mark, when it lies in what was received: all that `SIOCINQ` counts.
pub(crate) fn bytes_before_mark(tcb: &Tcb) -> Option<u32> {
    let copied = copied_seq(tcb);
    let seq = tcb.urgent.seq;
    let counts = tcb.has_mark() && !tcb.urgent.inline && seq.ge(copied) && seq.lt(tcb.rcv_nxt);
    counts.then(|| seq.since(copied))
}

/// The application has read: a mark behind it is over.
pub(crate) fn on_read(tcb: &mut Tcb) {
    if tcb.has_mark() && copied_seq(tcb).gt(tcb.urgent.seq) {
        tcb.flags -= TcbFlags::URGENT_IN;
    }
}

/// SND.UNA moved: a mark that is acknowledged ends urgent mode.
pub(crate) fn on_acked(tcb: &mut Tcb) {
    if tcb.flags.contains(TcbFlags::URGENT_OUT) && tcb.urgent.snd_up.le(tcb.snd_una) {
        tcb.flags -= TcbFlags::URGENT_OUT;
    }
}

/// Puts the pointer into a segment that begins before the mark. Where 16 bits do not reach, the largest pointer stands for
/// it, as long as it names nothing that was sent already; later segments move it on.
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

/// A probe of a closed window tells of the mark too, with a pointer that 16 bits hold.
pub(crate) fn wants_probe(tcb: &Tcb) -> bool {
    let up = tcb.urgent.snd_up;
    let told = tcb.snd_una + u32::from(u16::MAX);
    tcb.flags.contains(TcbFlags::URGENT_OUT) && up.gt(tcb.snd_una) && up.le(told)
}
