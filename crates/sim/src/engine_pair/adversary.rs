//! The adversary's actions, each driven by the next bytes of the input.

use std::time::Duration;

use pkt::{Gso, GsoKind};
use tcp::{
    Algorithm, Flags, IcmpError, Keepalive, MemoryPressure, MemoryState, SegmentHeader, SeqNum,
    TcpError, on_icmp,
};

use super::{EnginePair, engine::Segment};

impl EnginePair<'_> {
    /// Plays one step: the high bit chooses the engine, the other bits the action.
    pub(super) fn step(&mut self, step: u8) {
        let index = usize::from(step >> 7);
        match step & 31 {
            0..3 => self.deliver_at(index, 0),
            3 | 4 => {
                let at = usize::from(self.input.next());
                self.deliver_at(index, at);
            }
            5 | 6 => self.drop_one(index),
            7 => self.repeat_one(index),
            8 | 9 => self.edit_one(index),
            10 | 11 => self.invent(index),
            12 => self.cut_one(index),
            13 | 14 => self.time(),
            15 => self.next_timer(),
            16 | 17 => {
                let rounds = 1 + usize::from(self.input.next() & 31);
                self.behave(rounds);
            }
            18..21 => self.write(index),
            21..23 => self.read(index),
            23 => self.control(index),
            24..27 => self.set_option(index),
            27 => self.report(index),
            28 => self.drop_all(index),
            // Reverse the order of all segments on the wire.
            29 => self.wires[index].make_contiguous().reverse(),
            30 => self.memory(index),
            _ => self.behave(1),
        }
    }

    /// Reports memory pressure to an engine, or its end.
    fn memory(&mut self, index: usize) {
        let pressure = match self.input.next() & 3 {
            0 => MemoryPressure::Pressure,
            1 => MemoryPressure::Exhausted,
            _ => MemoryPressure::None,
        };
        let share_bytes = u32::from(self.input.next_u16());
        self.engines[index].memory = MemoryState { pressure, share_bytes };
    }

    fn deliver_at(&mut self, index: usize, at: usize) {
        let wire = &mut self.wires[index];
        if let Some(segment) = wire.remove(at % wire.len().max(1)) {
            self.deliver(index, &segment);
        }
    }

    fn drop_one(&mut self, index: usize) {
        let at = usize::from(self.input.next());
        let wire = &mut self.wires[index];
        let _ = wire.remove(at % wire.len().max(1));
    }

    fn drop_all(&mut self, index: usize) {
        self.wires[index].clear();
    }

    fn repeat_one(&mut self, index: usize) {
        let at = usize::from(self.input.next());
        let wire = &self.wires[index];
        if let Some(segment) = wire.get(at % wire.len().max(1)).cloned() {
            self.deliver(index, &segment);
        }
    }

    /// Drops some segments of a superframe, as a path behind a device that has cut it does.
    fn cut_one(&mut self, index: usize) {
        let (at, keep) = (usize::from(self.input.next()), self.input.next());
        let wire = &mut self.wires[index];
        let Some(segment) = wire.remove(at % wire.len().max(1)) else { return };
        if segment.gso.kind == GsoKind::None {
            return self.deliver(index, &segment);
        }
        let size = usize::from(segment.gso.size);
        let count = segment.payload.len().div_ceil(size);
        for (number, piece) in segment.payload.chunks(size).enumerate() {
            if keep >> (number % 8) & 1 == 0 {
                continue;
            }
            let mut header = segment.header.clone();
            header.seq += u32::try_from(number * size).expect("inside a superframe");
            if number + 1 < count {
                header.flags -= Flags::FIN | Flags::PSH;
            }
            let payload = piece.to_vec();
            self.deliver(index, &Segment { header, payload, gso: Gso::default() });
        }
    }

    fn forged(&mut self) {
        self.outcome.forged += 1;
        for engine in &mut self.engines {
            engine.compares = false;
        }
    }

    fn edit_one(&mut self, index: usize) {
        let at = usize::from(self.input.next());
        let wire = &mut self.wires[index];
        let Some(mut segment) = wire.remove(at % wire.len().max(1)) else { return };
        for _ in 0..=self.input.next() & 3 {
            self.edit(&mut segment.header);
        }
        if self.input.next() & 7 == 0 {
            segment.payload.truncate(usize::from(self.input.next()));
        }
        self.forged();
        self.deliver(index, &segment);
    }

    /// Changes one field, slightly or to any value.
    fn edit(&mut self, header: &mut SegmentHeader) {
        match self.input.next() % 12 {
            0 => header.seq += u32::from(self.input.next()),
            1 => header.seq -= u32::from(self.input.next_u16()),
            2 => header.seq = SeqNum(self.input.next_u32()),
            3 => header.ack += u32::from(self.input.next_u16()),
            4 => header.ack -= u32::from(self.input.next_u16()),
            5 => header.ack = SeqNum(self.input.next_u32()),
            6 => header.flags = Flags::from_bits_retain(self.input.next()),
            7 => header.flags ^= Flags::from_bits_retain(1 << (self.input.next() & 7)),
            8 => header.window = self.input.next_u16(),
            9 => {
                let (value, echo) = (self.input.next_u32(), self.input.next_u32());
                header.options.timestamps = (self.input.next() & 1 == 0).then_some((value, echo));
            }
            10 => self.edit_sack(header),
            _ => {
                header.options.mss = Some(self.input.next_u16()).filter(|mss| *mss > 0);
                header.options.window_scale = Some(self.input.next() % 15);
                header.options.sack_permitted = self.input.next() & 1 == 0;
                header.urgent = self.input.next_u16();
            }
        }
    }

    /// Sets blocks around the acknowledged number, or anywhere.
    fn edit_sack(&mut self, header: &mut SegmentHeader) {
        header.options.sack_blocks.clear();
        for _ in 0..=self.input.next() & 3 {
            let start = match self.input.next() & 3 {
                0 => SeqNum(self.input.next_u32()),
                1 => header.ack - u32::from(self.input.next_u16()),
                _ => header.ack + u32::from(self.input.next_u16()),
            };
            let block = (start, start + u32::from(self.input.next_u16()));
            let _ = header.options.sack_blocks.try_push(block);
        }
    }

    /// Forges a segment: the next one that the other engine might have sent, with edits.
    fn invent(&mut self, index: usize) {
        let Some(edges) = self.edges[index] else { return };
        let mut header = SegmentHeader {
            seq: edges.rcv_nxt,
            ack: edges.snd_nxt,
            flags: Flags::ACK,
            window: 0xffff,
            ..SegmentHeader::default()
        };
        for _ in 0..self.input.next() & 3 {
            self.edit(&mut header);
        }
        let len = usize::from(self.input.next_u16()) % 3000;
        let payload = vec![self.input.next(); if self.input.next() & 1 == 0 { 0 } else { len }];
        self.forged();
        self.deliver(index, &Segment { header, payload, gso: Gso::default() });
    }

    fn time(&mut self) {
        let exponent = self.input.next() % 40;
        // At most nine minutes in one step.
        self.pass(Duration::from_nanos(1 << exponent));
        if exponent > 36 {
            // Long enough for a timer to give up the connection.
            self.broken = true;
        }
    }

    /// Moves to the next deadline, plus a small delay.
    fn next_timer(&mut self) {
        let late = Duration::from_micros(u64::from(self.input.next()) * 50);
        if let Some(due) = self.engines.iter().filter_map(super::Engine::deadline).min() {
            self.broken |= due - self.now > Duration::from_secs(30);
            self.run_timers(due + late);
        }
    }

    /// Writes. A quarter of the writes may fill a superframe; the others are short, because copies
    /// take most of a run's time.
    fn write(&mut self, index: usize) {
        let (len, more) = (usize::from(self.input.next_u16()), self.input.next() & 7 == 0);
        let len = if len & 3 == 0 { len } else { len & 0xfff };
        self.engines[index].write(self.now, len, more);
        self.collect(index);
    }

    fn read(&mut self, index: usize) {
        let (len, peek) = (usize::from(self.input.next_u16()), self.input.next() & 7 == 0);
        let len = if len & 3 == 0 { len } else { len & 0xfff };
        self.engines[index].read(self.now, len, peek);
        self.collect(index);
    }

    fn control(&mut self, index: usize) {
        let engine = &mut self.engines[index];
        match self.input.next() {
            0..160 => engine.shut_down(self.now),
            160..200 => {
                engine.close(self.now);
                self.broken = true;
            }
            200..220 => {
                engine.abort(self.now);
                self.broken = true;
            }
            220..240 => {
                engine.call(self.now, |tcb, _| tcb.shutdown_read());
                self.broken = true;
            }
            _ => drop(engine.call(self.now, |tcb, _| tcb.take_error())),
        }
        self.collect(index);
    }

    fn set_option(&mut self, index: usize) {
        let (what, value) = (self.input.next(), u32::from(self.input.next_u16()));
        let on = value & 1 == 1;
        let millis = |n: u32| Duration::from_millis(u64::from(n));
        let mut breaks = false;
        self.engines[index].call(self.now, |tcb, cx| match what % 15 {
            0 => tcb.set_nodelay(on),
            1 => tcb.set_cork(on),
            2 => tcb.set_quickack(on),
            3 => tcb.set_rcvbuf(2304 + value),
            4 => tcb.set_sndbuf(4608 + value),
            5 => tcb.set_notsent_lowat(value),
            6 => tcb.set_header_prediction(on),
            7 => tcb.set_congestion(Algorithm::ALL[value as usize % Algorithm::ALL.len()]),
            8 => tcb.set_maxseg(u16::try_from(value).unwrap_or(u16::MAX).max(88)),
            9 => {
                breaks = true;
                let keepalive = Keepalive {
                    time: millis(1 + value),
                    interval: millis(1 + value / 4),
                    probes: (value % 8) as u8,
                };
                tcb.set_keepalive(cx, on.then_some(keepalive));
            }
            10 => {
                breaks = true;
                tcb.set_user_timeout(on.then(|| millis(value)));
            }
            11 => {
                breaks = true;
                tcb.set_linger(on.then(|| millis(value & 2)));
            }
            12 => tcb.set_device(if on { 65_535 } else { 0 }, on),
            13 => {
                breaks = true;
                tcb.set_path_mtu(value.max(88));
            }
            _ => drop(tcb.info()),
        });
        self.broken |= breaks;
        self.collect(index);
    }

    /// Delivers an ICMP error about a segment, which may be in flight.
    fn report(&mut self, index: usize) {
        let (what, mtu) = (self.input.next(), u32::from(self.input.next_u16()));
        let Some(edges) = self.edges[index] else { return };
        let error = match what & 3 {
            0 | 1 => IcmpError::PacketTooBig { mtu },
            2 => IcmpError::PathBroken(TcpError::HostUnreachable),
            _ if what & 4 == 0 => IcmpError::Unreachable(TcpError::ProtocolUnreachable),
            _ => IcmpError::Other,
        };
        let seq = if what & 8 == 0 { edges.snd_una } else { edges.snd_nxt - u32::from(what) };
        self.broken = true;
        self.engines[index].call(self.now, |tcb, cx| {
            // As the network layer does: bounds the MTU from below and passes it to TCP.
            if let Some(mtu) = on_icmp(tcb, cx, error, seq) {
                tcb.set_path_mtu(mtu.max(552));
            }
        });
        self.collect(index);
    }
}
