//! Calls that read and set: options, flags, numbers of bytes, readiness.

use std::{sync::Arc, time::Duration};

use posix::{PollEntry, Socket};
use stack::{
    host::Host,
    socket::options::{OptionValue, SocketOption},
};

use super::{Answer, Outcome, Process, done, done_bytes, done_if, fail, int, number_or};
use crate::{World, script::ast::Arg};

pub(super) fn setsockopt(
    socket: &Socket,
    world: &mut World,
    host: &Arc<Host>,
    args: &[Arg],
) -> Answer {
    let [_, _, name, value, ..] = args else { return Err(String::from("too few arguments")) };
    let (option, value) = (option(name.name()?)?, value_of(value)?);
    done_if(socket.set_option(host, &mut world.cx, option, &value))
}

pub(super) fn getsockopt(
    socket: &Socket,
    world: &mut World,
    host: &Arc<Host>,
    args: &[Arg],
) -> Answer {
    let [_, _, name, expected, ..] = args else { return Err(String::from("too few arguments")) };
    let (option, expected) = (option(name.name()?)?, value_of(expected)?);
    match socket.option(host, &mut world.cx, option) {
        Ok(value) => same(option.name(), expected, value),
        Err(errno) => fail(errno),
    }
}

pub(super) fn fcntl(socket: &Socket, args: &[Arg]) -> Answer {
    let command = int(args.get(1), "fcntl needs a command")?;
    let result = socket.fcntl(command, number_or(args.get(2), 0)?);
    Ok(Outcome::Done(result.map(i64::from)))
}

/// `ioctl(4, SIOCINQ, [500])`: the number is the one that the call writes, or that `FIONBIO` reads.
pub(super) fn ioctl(socket: &Socket, world: &mut World, host: &Arc<Host>, args: &[Arg]) -> Answer {
    let [_, request, expected] = args else { return Err(String::from("ioctl takes three")) };
    let number = request.number()?;
    let number = u64::try_from(number).map_err(|_| format!("{number} is not a request"))?;
    let expected = int(Some(expected), "")?;
    let mut argument = expected;
    match socket.ioctl(host, &mut world.cx, number, &mut argument) {
        Ok(()) => same(&format!("ioctl {number:#x}"), expected, argument),
        Err(errno) => fail(errno),
    }
}

impl Process {
    /// `poll([{fd=4, events=POLLIN, revents=POLLIN}], 1, 1000)`. `is_over`: the time is over.
    pub(super) fn poll(&self, args: &[Arg], is_over: bool) -> Answer {
        let [Arg::List(list), _, _] = args else { return Err(String::from("poll takes three")) };
        let mut entries = list.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
        let count = posix::poll(&mut entries, |fd| {
            self.files.get(&i64::from(fd)).map(|file| file.socket.poll_events())
        });
        if count == 0 && !is_over {
            return Ok(Outcome::Blocks);
        }
        for (expected, entry) in list.iter().zip(&entries) {
            let (expected, came) = (expected.field("revents")?.number()?, entry.revents);
            if expected != i64::from(came) {
                return Err(format!("poll: expected revents {expected:#x}, came {came:#x}"));
            }
        }
        done_bytes(count)
    }
}

fn entry(fields: &Arg) -> Result<PollEntry, String> {
    let events = fields.field("events")?.number()?;
    let events = i16::try_from(events).map_err(|_| format!("{events:#x} are not events"))?;
    Ok(PollEntry { fd: int(Some(fields.field("fd")?), "")?, events, revents: 0 })
}

/// The option of a name.
fn option(name: &str) -> Result<SocketOption, String> {
    let found = SocketOption::from_name(name);
    found.ok_or_else(|| format!("the stack has no socket option {name}"))
}

/// The value of an option: `[1]`, `"reno"` or `{onoff=1, linger=5}`.
fn value_of(arg: &Arg) -> Result<OptionValue, String> {
    Ok(match arg {
        Arg::Text(name) => OptionValue::Name(name.clone()),
        Arg::Fields(_) => {
            let on = arg.field("onoff")?.number()? != 0;
            let seconds = u64::try_from(arg.field("linger")?.number()?)
                .map_err(|_| String::from("a negative linger time"))?;
            OptionValue::Linger(on.then(|| Duration::from_secs(seconds)))
        }
        number => OptionValue::Int(int(Some(number), "")?),
    })
}

fn same<T: PartialEq + std::fmt::Debug>(name: &str, expected: T, came: T) -> Answer {
    if expected == came {
        done(0)
    } else {
        Err(format!("{name}: expected {expected:?}, came {came:?}"))
    }
}
