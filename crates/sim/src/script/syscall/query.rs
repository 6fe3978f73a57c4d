//! Calls that ask and set: options, flags, counts of bytes, readiness.

use std::sync::Arc;

use stack::{Errno, Readiness, host::Host};

use super::{Answer, Kind, Outcome, Process, Running, done, done_bytes, fail};
use crate::{
    World,
    script::{ast::Arg, constants::O_NONBLOCK, sockopt},
};

impl Process {
    pub(super) fn setsockopt(
        &mut self,
        world: &mut World,
        host: &Arc<Host>,
        fd: i64,
        args: &[Arg],
    ) -> Answer {
        let [_, _, name, value, ..] = args else { return Err(String::from("too few arguments")) };
        let (option, value) = (sockopt::option(name.name()?)?, sockopt::value(value)?);
        let file = self.file(fd);
        let set = match &file.kind {
            Kind::Fresh => file.settings.set(option, &value, &host.sysctls()),
            Kind::Listener(listener) => listener.set_option(host, option, &value),
            Kind::Stream(socket) => socket.set_option(host, &mut world.cx, option, &value),
        };
        Ok(Outcome::Done(set.map(|()| 0)))
    }

    pub(super) fn getsockopt(
        &mut self,
        world: &mut World,
        host: &Arc<Host>,
        fd: i64,
        args: &[Arg],
    ) -> Answer {
        let [_, _, name, expected, ..] = args else {
            return Err(String::from("too few arguments"));
        };
        let (option, expected) = (sockopt::option(name.name()?)?, sockopt::value(expected)?);
        let file = self.file(fd);
        let value = match &file.kind {
            Kind::Fresh => file.settings.get(option, &host.sysctls()),
            Kind::Listener(listener) => listener.option(host, &world.cx, option),
            Kind::Stream(socket) => socket.option(host, &mut world.cx, option),
        };
        match value {
            Ok(value) => same(option.name(), expected, value),
            Err(errno) => fail(errno),
        }
    }

    pub(super) fn fcntl(&mut self, fd: i64, args: &[Arg]) -> Answer {
        let file = self.file(fd);
        match args.get(1).ok_or("fcntl needs a command")?.name()? {
            "F_GETFL" => done(2 | if file.nonblocking { O_NONBLOCK } else { 0 }),
            "F_SETFL" => {
                let flags = args.get(2).ok_or("F_SETFL needs flags")?.number()?;
                file.nonblocking = flags & O_NONBLOCK != 0;
                done(0)
            }
            other => Err(format!("fcntl: {other}: no such command")),
        }
    }

    pub(super) fn ioctl(
        &mut self,
        world: &mut World,
        host: &Arc<Host>,
        fd: i64,
        args: &[Arg],
    ) -> Answer {
        let [_, name, expected] = args else { return Err(String::from("ioctl takes three")) };
        let Kind::Stream(socket) = &self.file(fd).kind else { return fail(Errno::EINVAL) };
        let (inq, outq, at_mark) = socket.with_tcb(host, &mut world.cx, |tcb, _| {
            (tcb.readable_bytes(), tcb.unacked_bytes(), tcb.at_mark())
        });
        let bytes = match name.name()? {
            "SIOCINQ" | "FIONREAD" => inq,
            "SIOCOUTQ" => outq,
            "SIOCATMARK" => usize::from(at_mark),
            other => return Err(format!("ioctl: {other}: no such request")),
        };
        same(name.name()?, expected.number()?, i64::try_from(bytes).unwrap_or(i64::MAX))
    }

    /// `poll([{fd=4, events=POLLIN, revents=POLLIN}], 1, 1000)`
    pub(super) fn poll(&self, world: &World, running: &mut Running, args: &[Arg]) -> Answer {
        let [Arg::List(list), _, timeout] = args else {
            return Err(String::from("poll takes three"));
        };
        let timeout = timeout.number()?;
        let mut ready = Vec::new();
        for entry in list {
            let events = entry.field("events")?.number()?;
            let Some(file) = self.files.get(&entry.field("fd")?.number()?) else {
                return Err(String::from("poll: no such descriptor"));
            };
            ready.push(events_of(&file.kind) & (events | 8 | 16));
        }
        let count = ready.iter().filter(|events| **events != 0).count();
        if !running.begun {
            running.begun = true;
            let limit = u64::try_from(timeout).ok().map(std::time::Duration::from_millis);
            running.until = limit.map(|limit| world.cx.now + limit);
        }
        if count == 0 && running.until.is_none_or(|until| world.cx.now < until) {
            return Ok(Outcome::Blocks);
        }
        for (entry, events) in list.iter().zip(&ready) {
            let expected = entry.field("revents")?.number()?;
            if expected != *events {
                return Err(format!("poll: expected revents {expected:#x}, came {events:#x}"));
            }
        }
        done_bytes(count)
    }
}

/// `events` of poll(2) from what a socket is ready for.
fn events_of(kind: &Kind) -> i64 {
    match kind {
        Kind::Fresh => 4 | 16,
        Kind::Listener(listener) => i64::from(listener.is_ready()),
        Kind::Stream(socket) => {
            let ready = socket.readiness();
            let bits = [
                (Readiness::READ, 1),
                (Readiness::WRITE, 4),
                (Readiness::ERROR, 8),
                (Readiness::HUP, 16),
                (Readiness::RDHUP, 0x2000),
                (Readiness::PRI, 2),
            ];
            bits.into_iter().filter(|(bit, _)| ready.contains(*bit)).map(|(_, event)| event).sum()
        }
    }
}

fn same<T: PartialEq + std::fmt::Debug>(name: &str, expected: T, came: T) -> Answer {
    if expected == came {
        done(0)
    } else {
        Err(format!("{name}: expected {expected:?}, came {came:?}"))
    }
}
