//! Calls that move bytes. Every byte is a function of its place in the stream, and is compared.
//!
//! Not here: all other calls (`syscall`, `query`).

use std::{
    io::{IoSlice, IoSliceMut},
    sync::Arc,
};

use posix::{
    Answer as Stepped, GiveUp, Received, Recv, Send, Step,
    abi::{MSG_FASTOPEN, MSG_OOB, MSG_PEEK},
};
use stack::{Cx, Errno, host::Host};

use super::{Answer, File, Process, Progress, Running, address, fail, number_or, outcome};
use crate::{
    World,
    script::{ast::Arg, conn::stream_bytes},
};

impl Process {
    pub(super) fn begin_send(&self, file: &File, args: &[Arg]) -> Result<Progress, String> {
        let flags = number_or(args.get(3), 0)?;
        let to = match args.get(4) {
            Some(to) if flags & MSG_FASTOPEN != 0 => {
                Some(self.family.of_process(address(Some(to), self.peer)?))
            }
            _ => None,
        };
        let bytes = stream_bytes(file.written, size(args.get(2))?);
        Ok(Progress::Send { call: Send::new(flags, to), bytes, start: file.written })
    }

    pub(super) fn step_send(
        &mut self,
        args: &[Arg],
        (call, bytes, start): (&mut Send, &[u8], u32),
        host: &Arc<Host>,
        cx: &mut Cx,
    ) -> Result<Stepped<usize>, String> {
        let socket = Arc::clone(&self.file(args)?.socket);
        let step = call.step(&socket, host, cx, &[IoSlice::new(bytes)]);
        self.file(args)?.written = start.wrapping_add(length(call.sent()));
        self.note_begun(&socket);
        Ok(step)
    }

    pub(super) fn step_recv(
        &mut self,
        world: &mut World,
        host: &Arc<Host>,
        running: &mut Running,
    ) -> Answer {
        let file = self.file(&running.call.args)?;
        let Progress::Recv { call, buf, start, .. } = &mut running.progress else {
            return Err(String::from("a call that receives nothing"));
        };
        // The urgent byte has a place in the stream, and a read skips it.
        let skips = call.received() == 0
            && file.socket.stream().is_some_and(|stream| {
                stream.with_tcb(host, &mut world.cx, |tcb, _| {
                    tcb.at_mark() && !tcb.oob_inline() && tcb.readable_bytes() == 0
                })
            });
        let bufs = &mut [IoSliceMut::new(buf)];
        let step = call.step(&file.socket, host, &mut world.cx, bufs);
        if skips && call.received() > 0 {
            *start = start.wrapping_add(1);
        }
        file.compare(running)?;
        Ok(outcome(step, count))
    }

    /// Ends a call whose time is over.
    pub(super) fn give_up_recv(
        &mut self,
        world: &mut World,
        host: &Arc<Host>,
        running: &mut Running,
    ) -> Answer {
        let file = self.file(&running.call.args)?;
        let Progress::Recv { call, buf, .. } = &mut running.progress else {
            return fail(Errno::EAGAIN);
        };
        let bufs = &mut [IoSliceMut::new(buf)];
        let received = call.give_up(&file.socket, host, &mut world.cx, bufs, GiveUp::TimedOut);
        file.compare(running)?;
        Ok(outcome(received.map(Step::Ready), count))
    }
}

/// Begins a call that receives; without `flags` it is read(2).
pub(super) fn begin_recv(
    file: &File,
    args: &[Arg],
    flags: Option<i32>,
) -> Result<Progress, String> {
    let buf = vec![0; size(args.get(2))?];
    let call = flags.map_or_else(Recv::read, Recv::new);
    Ok(Progress::Recv { call, buf, start: file.read, flags: flags.unwrap_or(0) })
}

impl File {
    /// Compares the received bytes with those that their place demands, and notes how far the
    /// process has read.
    fn compare(&mut self, running: &Running) -> Result<(), String> {
        let Progress::Recv { call, buf, start, flags } = &running.progress else { return Ok(()) };
        let received = call.received();
        if flags & MSG_OOB != 0 {
            return Ok(());
        }
        if buf[..received] != stream_bytes(*start, received) {
            return Err(format!("read: wrong bytes at {start} of the stream"));
        }
        if flags & MSG_PEEK == 0 {
            self.read = start.wrapping_add(length(received));
        }
        Ok(())
    }
}

fn count(received: Received) -> i64 {
    i64::try_from(received.bytes).unwrap_or(i64::MAX)
}

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("fewer bytes than sequence numbers")
}

fn size(arg: Option<&Arg>) -> Result<usize, String> {
    let value = arg.ok_or("a length is missing")?.number()?;
    usize::try_from(value).map_err(|_| format!("{value} is not a length"))
}
