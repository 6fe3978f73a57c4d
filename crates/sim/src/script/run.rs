//! Plays a script: advances virtual time from event to event, sends the packets of the peer, and
//! compares those of the host.
//!
//! A relative time counts from the end of the previous event, as in packetdrill. A segment of the
//! host that no line expects fails the script at the next event, or at the end. So a script asserts
//! silence by expecting nothing.
//!
//! Not here: the host and its wire (`stage`).

use std::time::Duration;

use super::{
    ScriptError,
    ast::{Call, Event, Expected, Payload, Spec, TcpSpec, Time, What},
    compare,
    expr::{self, Names},
    info,
    stage::{Sent, Stage},
    syscall::{Outcome, Running},
};

/// Longest wait of `*`: longer than any timer of TCP.
const ANY_TIME_MAX: Duration = Duration::from_secs(3 * 3600);

/// A call that sleeps, with the expected time of its return.
#[derive(Debug)]
struct Sleeping {
    running: Running,
    line: u32,
    ends: Duration,
}

/// See the module head.
#[derive(Debug)]
pub(super) struct Player {
    pub(super) stage: Stage,
    sleeping: Option<Sleeping>,
}

impl Player {
    pub(super) const fn new(stage: Stage) -> Self {
        Self { stage, sleeping: None }
    }

    /// Plays one event.
    pub(super) fn play(&mut self, event: &Event) -> Result<(), ScriptError> {
        let played = match &event.what {
            What::Out(spec) => self.expect(event.time, spec),
            _ => self.act(event),
        };
        self.stage.check();
        played.map_err(|text| ScriptError::new(event.line, text))
    }

    /// Checks the end of the script: no call sleeps, and the host has sent no unexpected segment.
    pub(super) fn end(&mut self) -> Result<(), ScriptError> {
        if let Some(Sleeping { line, ends, .. }) = self.sleeping {
            let limit = ends + self.stage.config.tolerance;
            let moved = self.advance(limit.max(self.stage.now()));
            moved.map_err(|text| ScriptError::new(line, text))?;
            if self.sleeping.is_some() {
                return Err(ScriptError::new(line, String::from("the call has not returned")));
            }
        }
        let moved = self.advance(self.stage.now()).and_then(|()| self.no_unexpected(Duration::MAX));
        moved.map_err(|text| ScriptError::new(0, format!("at the end: {text}")))
    }

    fn act(&mut self, event: &Event) -> Result<(), String> {
        let now = self.stage.now();
        let (due, ends) = match event.time {
            Time::Any => (now, None),
            Time::At { relative, from, ends, .. } => {
                let base = if relative { now } else { Duration::ZERO };
                (base + from, ends.map(|ends| base + ends))
            }
        };
        if due + self.stage.config.tolerance < now {
            return Err(format!("due at {}, and it is {}", show_time(due), show_time(now)));
        }
        self.advance(due.max(now))?;
        self.no_unexpected(due)?;
        match &event.what {
            What::In(spec) => self.stage.inbound(spec)?,
            What::Call(call) => return self.call(event.line, call, ends),
            What::Code(code) => return expr::check(code, &mut Values(&mut self.stage)),
            What::Sysctls(settings) => return self.stage.set_sysctls(settings),
            What::Out(_) => {}
        }
        self.turn().map(|_| ())
    }

    /// Checks that the host has sent no unexpected segment before `due`.
    fn no_unexpected(&self, due: Duration) -> Result<(), String> {
        match self.stage.sent.front() {
            Some(sent) if sent.at.saturating_add(self.stage.config.tolerance) < due => {
                let shown = self.stage.show(&sent.segment);
                Err(format!("not expected: {} > {shown}", show_time(sent.at)))
            }
            _ => Ok(()),
        }
    }

    fn call(&mut self, line: u32, call: &Call, ends: Option<Duration>) -> Result<(), String> {
        if let Some(sleeping) = &self.sleeping {
            return Err(format!("the call of line {} has not returned", sleeping.line));
        }
        self.stage.note_call(call);
        let mut running = Running::new(call.clone());
        match (self.stage.run_call(&mut running)?, ends) {
            (Outcome::Blocks, None) => return Err(String::from("the call blocks")),
            (Outcome::Blocks, Some(ends)) => self.sleeping = Some(Sleeping { running, line, ends }),
            (Outcome::Done(result), ends) => {
                let ends = ends.unwrap_or_else(|| self.stage.now());
                self.returned(&call.result, ends, result)?;
            }
        }
        self.turn().map(|_| ())
    }

    /// Checks the time and the result of a call that has returned.
    fn returned(
        &mut self,
        expected: &Expected,
        ends: Duration,
        result: Result<i64, stack::Errno>,
    ) -> Result<(), String> {
        let now = self.stage.now();
        self.stage.note_result(result);
        if now.abs_diff(ends) > self.stage.config.tolerance {
            return Err(format!("returned at {}, expected {}", show_time(now), show_time(ends)));
        }
        let same = match (expected, result) {
            (Expected::Any, _) => true,
            (Expected::Value(value), Ok(came)) => *value == came,
            (Expected::Fails(name), Err(errno)) => name == errno.name(),
            _ => false,
        };
        let expected = match expected {
            Expected::Any => String::from("?"),
            Expected::Value(value) => value.to_string(),
            Expected::Fails(name) => format!("-1 {name}"),
        };
        let came = match result {
            Ok(value) => value.to_string(),
            Err(errno) => format!("-1 {} ({errno})", errno.name()),
        };
        if same { Ok(()) } else { Err(format!("expected {expected}, the call returned {came}")) }
    }

    /// Runs the host and the sleeping call until neither makes progress. Returns the next deadline.
    fn turn(&mut self) -> Result<Option<Duration>, String> {
        loop {
            let next = self.stage.settle()?;
            let Some(sleeping) = &mut self.sleeping else { return Ok(next) };
            let before = sleeping.running.moved();
            match self.stage.run_call(&mut sleeping.running) {
                Err(text) => return Err(format!("line {}: {text}", sleeping.line)),
                Ok(Outcome::Done(result)) => {
                    let Some(Sleeping { running, line, ends }) = self.sleeping.take() else {
                        continue;
                    };
                    let checked = self.returned(&running.call.result, ends, result);
                    checked.map_err(|text| format!("line {line}: {text}"))?;
                }
                Ok(Outcome::Blocks) if sleeping.running.moved() == before => {
                    let until = sleeping.running.until().map(|until| self.stage.since_start(until));
                    let next = [self.stage.settle()?, until].into_iter().flatten().min();
                    return Ok(next);
                }
                Ok(Outcome::Blocks) => {}
            }
        }
    }

    fn advance(&mut self, to: Duration) -> Result<(), String> {
        while let Some(next) = self.turn()?.filter(|next| *next <= to) {
            self.stage.set_now(next);
        }
        self.stage.set_now(to);
        self.turn().map(|_| ())
    }

    /// Waits for a segment until `limit`. False if none has come.
    fn wait(&mut self, limit: Duration) -> Result<bool, String> {
        loop {
            let next = self.turn()?;
            if !self.stage.sent.is_empty() {
                return Ok(true);
            }
            match next.filter(|next| *next <= limit) {
                Some(next) => self.stage.set_now(next),
                None => {
                    self.stage.set_now(limit);
                    return Ok(false);
                }
            }
        }
    }

    /// Expects the host to send `spec`: as one segment, or as several with its bytes.
    fn expect(&mut self, time: Time, spec: &Spec) -> Result<(), String> {
        let Payload::Tcp(tcp) = &spec.payload else {
            return Err(String::from("only segments of TCP can be expected"));
        };
        let now = self.stage.now();
        let tolerance = self.stage.config.tolerance;
        let (from, to) = match time {
            Time::Any => (Duration::ZERO, now + ANY_TIME_MAX),
            Time::At { relative, from, to, .. } => {
                let base = if relative { now } else { Duration::ZERO };
                (base + from, base + to + tolerance)
            }
        };
        let conn = self.stage.expected_conn(tcp)?;
        let mut seq = tcp.seq;
        loop {
            if !self.wait(to)? {
                let expected = compare::show_expected(&spec.ip, tcp);
                return Err(format!("nothing came until {}; expected {expected}", show_time(to)));
            }
            let Some(sent) = self.stage.sent.pop_front() else { continue };
            let rest = self.one(conn, spec, tcp, seq, &sent).map_err(|found| {
                let shown = self.stage.show(&sent.segment);
                let expected = compare::show_expected(&spec.ip, tcp);
                let at = show_time(sent.at);
                format!("{found}\n  expected {expected}\n  came     {shown}, sent at {at}")
            })?;
            self.stage.note_sent(conn, &sent);
            if sent.at + tolerance < from || sent.at > to {
                let to = to.saturating_sub(tolerance);
                let range = format!("{}~{}", show_time(from), show_time(to));
                return Err(format!("sent at {}, expected at {range}", show_time(sent.at)));
            }
            match rest {
                Some(next) => seq = next,
                None => return Ok(()),
            }
        }
    }

    /// Compares one segment with the rest of `tcp`, which begins at `seq`. Returns the beginning of
    /// the new rest, if any.
    fn one(
        &mut self,
        conn: usize,
        spec: &Spec,
        tcp: &TcpSpec,
        seq: u32,
        sent: &Sent,
    ) -> Result<Option<u32>, String> {
        let seen = self.stage.learn(conn, tcp, &sent.segment)?;
        let end = tcp.seq.wrapping_add(tcp.len);
        let last = seen.len() >= end.wrapping_sub(seq);
        let found = if last {
            let mut found = compare::differences(&spec.ip, tcp, &seen);
            if seen.seq != seq {
                found.insert(0, format!("seq: expected {seq}, came {}", seen.seq));
            }
            found
        } else {
            compare::part_differences(&spec.ip, tcp, seq, &seen)
        };
        if found.is_empty() {
            self.stage.check_clock(conn, tcp, sent)?;
            return Ok((!last).then(|| seq.wrapping_add(seen.len())));
        }
        Err(found.join("; "))
    }
}

/// The names of assertions.
struct Values<'a>(&'a mut Stage);

impl Names for Values<'_> {
    fn value(&mut self, name: &str) -> Result<i64, String> {
        if let Some(value) = info::constant(name).or_else(|| self.0.counter(name)) {
            return Ok(value);
        }
        let known = self.0.info()?;
        info::value(&known, name).ok_or_else(|| format!("{name}: no such counter or field"))
    }
}

/// Seconds with microseconds.
pub(super) fn show_time(time: Duration) -> String {
    format!("{}.{:06}", time.as_secs(), time.subsec_micros())
}
