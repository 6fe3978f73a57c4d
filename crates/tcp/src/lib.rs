//! The TCP engine of quietline, sans-IO.
//!
//! Internal to crate `quietline`: it promises no stability, and any release may change or remove
//! any item.
//!
//! Above: `stack::socket`. Below: `stack::transmit` sends the packets that the engine puts on
//! `cx.out`. RFC 9293; Linux: net/ipv4/tcp*.c.
//!
//! The engine is free of clocks, random sources and I/O of its own: `now`, packet memory, counters
//! and random numbers are arguments, and packets to send are returned in a list. The same segments
//! at the same instants give the same answer. The simulator and the packet scripts rely on that.
//!
//! # Theory of operation
//!
//! *Goals.* Full RFC 9293 as Linux implements it; correct under loss, reordering and duplication;
//! cost per packet, not per segment. In both directions a packet may be a superframe of 64 KB and
//! more (several segments in one packet, GRO or GSO), so code that accounts for segments counts
//! bytes.
//!
//! *Objects.* A connection is one [`Tcb`]. The thread that holds its socket lock calls the engine
//! with a [`Cx`]. An active open is a [`Tcb`] from its SYN on; a passive open is a [`Request`]
//! until its handshake completes, or with Fast Open a [`Tcb`] from the SYN on. In the state
//! TIME-WAIT a connection is a [`TimeWait`]. Requests and TIME-WAIT connections are small, because
//! a peer can create many of them at no cost. `send` writes payload into packets, and `recv` reads
//! payload from packets. Other steps share the payload's pages and copy only the few bytes in the
//! head of a packet, small packets that are joined, a path MTU probe, and data for a waiting
//! reader.
//!
//! *Call order.* Any of [`input()`], [`on_timer`], [`on_icmp`] and the calls of [`socket::api`];
//! then [`output()`] once for the batch; then the caller hands `cx.out` to IP, and reads `state`,
//! `readiness` and `next_deadline`. Calls before `output` put only segments on `cx.out` that must
//! be sent at once, such as a SYN, a reset, a probe, the retransmission after a timeout, or the ACK
//! of an out-of-order segment. Otherwise they record that an ACK or data must be sent, and `output`
//! sends it, so that one ACK can answer a whole batch of segments.
//!
//! *Receive.* `input` takes the steps of RFC 9293 §3.10.7.4 in order, each a function: sequence
//! number and timestamp, RST, SYN, ACK (which frees the acknowledged front of the send queue,
//! samples the round-trip time, informs `loss::recovery` and updates the send window), URG, payload
//! (in order into the receive queue; out of order into [`tcb::reassembly`], answered by a duplicate
//! ACK), FIN. Header prediction skips the steps that would change nothing.
//!
//! *Transmit.* `send` fills the tail packet of the send queue up to a superframe. `output` sends
//! first the entries that loss detection has marked lost, then as much new data as both windows,
//! Nagle's algorithm, pacing and TCP Small Queues allow, as clones that share the payload's pages.
//! The ACK frees the original packet.
//!
//! *Time.* Deadlines are fields. `next_deadline` may be read at any time; a timer that fires too
//! early does nothing.
//!
//! *Loss.* With SACK the peer's blocks mark entries of the send queue (`loss::scoreboard`), RACK
//! detects losses by time (`loss::rack`), a tail loss probe asks for an ACK when the end of a
//! flight stays unacknowledged (`loss::tlp`), and the window follows PRR unless the algorithm is
//! BBR (`loss::recovery`, [`congestion`]). Without SACK duplicate ACKs are counted (NewReno).
//!
//! *Flow control.* Arriving packets are charged by memory, and the window promises bytes:
//! `tcb::receive_buffer` converts between the two and grows with the application's reads;
//! `segment::window` announces the free part and shrinks an announced window only if
//! `tcp_shrink_window` is set; `tcb::delayed_ack` and `segment::ack_compression` decide when to
//! send an ACK. When the buffer overruns, out-of-order packets are dropped, highest sequence
//! numbers first (`input::prune`). When the host's memory is scarce, connections stop growing
//! ([`tcb::memory`]). Urgent data ([`Tcb::at_mark`]) is a mark in the stream.
//!
//! *Pacing.* Every ACK that delivers data gives a sample of the delivery rate
//! ([`tcb::delivery_rate`]), from which BBR builds its model of the path. Segments are paced when
//! the algorithm or the application asks for it, or when a queue below TCP holds packets until
//! their departure times (`segment::pacing`). ECN marks are echoed (`tcb::ecn`, `input::ecn`), and
//! an echo reduces the congestion window.
//!
//! *Handshake.* With SYN cookies a listener keeps no state of a half-open connection
//! ([`open::syn_cookie`]); Fast Open accepts data before the third segment ([`open::fast_open`]).
//!
//! *Limits.* AccECN, TCP-MD5 and TCP-AO are not implemented.
//!
//! # Modules
//!
//! A module imports only modules that come before it in this list; `cargo xtask layers` checks
//! that.
//!
//! - [`base`]: types that every module but `wire` uses: counters, random numbers, states, errors,
//!   memory pressure.
//! - [`wire`]: formats and their arithmetic: header, options, sequence numbers, four-tuple. Only
//!   this module reads and writes header bytes.
//! - [`congestion`]: the number of bytes that may be in flight (RFC 5681, RFC 6582).
//! - [`cx`]: the caller's resources that the calls borrow, and the settings.
//! - [`tcb`]: the control block and its parts: queues, estimates, and the deadlines of the timers.
//! - [`segment`]: one segment: its header, the announced window, the tests that permit its
//!   transmission; resets.
//! - [`open`]: SYN, requests, SYN cookies, Fast Open, and numbers that an outsider must not guess.
//! - `loss`: detection of lost transmissions, the window's reaction, and retransmission.
//! - [`mod@output`]: the segments that one call of `output` sends, and their order.
//! - [`socket`]: calls of the application; `TCP_INFO`; the invariants.
//! - [`close`]: closing, TIME-WAIT, and the timers.
//! - [`mod@input`]: the processing of an arriving segment or ICMP error.
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
    config::{
        BufferLimits, Keepalive, PacketRecycle, PathMetrics, PathParams, SocketOptions, TcpConfig,
    },
    host_queue::{HostQueue, TsqLimit},
};
pub use input::{
    icmp::{is_credible, on_icmp},
    input, input_to_user,
};
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
    fast_open::{FastOpen, FastOpenFailure, FastOpenResult},
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
