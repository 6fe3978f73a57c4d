//! The TCP engine of quietline, sans-IO.
//!
//! Below: `stack::ip`. Above: `stack::socket`. RFC 9293; Linux: net/ipv4/tcp*.c.
//!
//! Nothing here reads a clock, draws chance or makes a call to the outside: `now`, packet memory,
//! counters and random numbers arrive as arguments, and packets to send leave in a list. The same
//! segments at the same instants give the same answer, which is what the simulator and the packet
//! scripts rely on.
//!
//! # Theory of operation
//!
//! *Goals.* Full RFC 9293 as Linux reads it; correct under loss, reordering and duplication; cost per
//! packet, not per segment: a packet may be a superframe of 64 KB and more in both directions, so everything
//! that counts segments counts bytes.
//!
//! *Who owns what.* A connection is one [`Tcb`] and whoever holds its socket lock calls into it with a
//! [`Cx`]. A passive open is a [`Request`] until its handshake is done, and what remains after both FINs
//! is a [`TimeWait`]: small objects, because a peer makes them for free. Payload lives in packets:
//! written once by `send`, read once by `recv`, never copied between.
//!
//! ```text
//!                   Request ── Establish ──► Tcb ── state TIME_WAIT ──► TimeWait
//!                      ▲                      ▲
//!          SYN to a listener            Tcb::connect
//! ```
//!
//! *Call order.* Any of [`input()`], [`on_timer`], [`on_icmp`] and the calls of [`api`]; then [`output()`]
//! once for the batch; then `cx.out` goes to IP, and `state`, `readiness` and `next_deadline` are looked
//! at. Each of the first kind only notes what is owed; `output` pays it, so that a batch of sixty-four
//! segments is answered by one ACK.
//!
//! *Receive.* `input` takes the steps of RFC 9293 §3.10.7.4 in order, each a function: sequence number
//! and timestamp, RST, SYN, ACK (which frees the front of the send queue, samples the round trip, tells
//! `recovery` and moves the window), payload (receive queue, or [`reassembly`] and a duplicate ACK), FIN.
//! Header prediction skips the steps that cannot matter.
//!
//! *Transmit.* `send` fills the tail packet of the send queue up to a superframe. `output` sends what is
//! marked lost, then what the two windows and Nagle let go, as clones that share the payload; `segment`
//! writes the header. The ACK frees the original.
//!
//! *Time.* Deadlines are fields. `next_deadline` may be asked at any time; a timer that fires too early
//! does nothing.
//!
//! *Loss.* With SACK the peer's blocks mark entries of the send queue (`scoreboard`), RACK finds what is lost by time
//! (`rack`), a probe asks for a silent tail (`tlp`), and the window follows PRR (`recovery`, [`congestion`]). Without SACK
//! duplicate ACKs are counted (NewReno).
//!
//! *Flow.* What arrives is charged by memory and promised by bytes: `receive_buffer` holds the three limits and grows with
//! what the application reads, `receive_window` announces what is free and never takes it back, `delayed_ack` and
//! `ack_compression` say when. When the buffer overruns, what is out of order is given up from its far end
//! (`input::prune`); when the host's memory does, everybody does without ([`memory`]). Urgent data ([`Tcb::at_mark`]) is a
//! mark in the stream.
//!
//! *Pace.* Every ACK gives a sample of the delivery rate (`delivery_rate`); a model of the path (BBR) lives on it. Segments
//! are held back to a pace where the algorithm or the application wants one (`pacing`). Marks of routers are echoed and
//! answered (`ecn`).
//!
//! *Before the handshake.* SYN cookies keep nothing ([`syn_cookie`]), Fast Open takes data before the third segment
//! ([`fast_open`]).
//!
//! *Limits.* No AccECN yet.
//!
//! # Leaf modules
//!
//! Each knows one thing and none knows the control block:
//!
//! - [`seq`]: sequence numbers, compared modulo 2^32.
//! - [`header`] and [`option`]: a segment's header as values; the only code that reads or writes
//!   header bytes.
//! - [`state`], [`four_tuple`]: which state, which connection.
//! - [`rtt`]: round-trip estimate and retransmission time-out (RFC 6298).
//! - [`congestion`]: how much may be in flight (RFC 5681, RFC 6582).
//! - [`reassembly`]: packets that arrived before their turn.
//! - [`isn`], [`ports`], [`syn_cookie`]: numbers an outsider must not guess (RFC 6528, RFC 6056, RFC 4987).
//! - [`mod@counters`], [`rng`]: what is counted under Linux's names, and the engine's source of chance.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod base;
pub mod close;
pub mod congestion;
pub mod cx;
pub mod input;
mod loss;
pub mod open;
pub mod output;
pub mod segment;
pub mod socket;
pub mod tcb;
pub mod wire;

#[cfg(test)]
mod tests;

pub use base::{
    challenge::ChallengeBudget,
    counters::{Counter, Counters},
    error::{IcmpError, RecvError, SendError, TcpError},
    memory::{MemoryPressure, MemoryState},
    rng::{RNG_KEY_BYTES, Rng},
    state::State,
};
pub use close::{
    time_wait::{Reuse, TIME_WAIT_LEN, TimeWait, TimeWaitVerdict},
    timer::on_timer,
};
pub use congestion::{
    Algorithm, Congestion, CongestionConfig, HystartDetect, LossThresh, RateSample,
    UnknownAlgorithm,
};
pub use cx::{
    Cx, SegmentVerdict,
    config::{BufferLimits, Keepalive, PacketRecycle, PathParams, SocketOptions, TcpConfig},
    host_queue::{HostQueue, TsqLimit},
};
pub use input::{icmp::on_icmp, input, input_to_user};
pub use open::{
    fast_open::keys::{FastOpenKeys, KeyUsed},
    isn::IsnGenerator,
    ports::PortSelector,
    request::{Request, RequestTimer, RequestVerdict},
    syn_cookie::SynCookies,
};
pub use output::{is_settled_after_read, output, output_nothing};
pub use socket::{
    api::Readiness,
    audit::Edges,
    info::{HandshakeInfo, TcpInfo},
};
pub use tcb::{
    OpenParams, Tcb,
    fast_open::{FastOpen, FastOpenFailure, FastOpenNews},
    reassembly::Reassembly,
    rtt::{RttConfig, RttEstimator},
    totals::SenderTime,
};
pub use wire::{
    cookie::Cookie,
    four_tuple::FourTuple,
    header::{Flags, SegmentHeader},
    option::Options,
    seq::SeqNum,
};
