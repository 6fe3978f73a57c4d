//! Calls that move bytes.
//!
//! Not here: everything else about sockets (`syscall`, `query`).

use std::{io::IoSliceMut, sync::Arc};

use stack::{
    Errno, Readiness,
    host::Host,
    socket::{SendFlags, TcpSocket},
};
use tcp::State;

use super::{Answer, Kind, Outcome, Process, Running, address, done_bytes, fail};
use crate::{
    World,
    script::{
        ast::Arg,
        conn::stream_bytes,
        constants::{
            MSG_DONTWAIT, MSG_FASTOPEN, MSG_MORE, MSG_NOSIGNAL, MSG_OOB, MSG_PEEK, MSG_WAITALL,
        },
    },
};

impl Process {
    pub(super) fn send(
        &mut self,
        world: &mut World,
        host: &Arc<Host>,
        running: &mut Running,
        fd: i64,
        args: &[Arg],
    ) -> Answer {
        let len = size(args.get(2))?;
        let flags = args.get(3).map_or(Ok(0), Arg::number)?;
        known_flags(flags, MSG_DONTWAIT | MSG_MORE | MSG_NOSIGNAL | MSG_OOB | MSG_FASTOPEN)?;
        let waits = !self.file(fd).nonblocking && flags & MSG_DONTWAIT == 0;
        if let Some(answer) = self.send_opening(world, host, running, (fd, waits), args)? {
            return Ok(answer);
        }
        let file = self.file(fd);
        let Kind::Stream(socket) = &file.kind else { return fail(Errno::EPIPE) };
        let bytes = stream_bytes(file.written, len - running.moved);
        let sent = if flags & MSG_OOB != 0 {
            socket.send_oob(host, &mut world.cx, &bytes)
        } else {
            let more = SendFlags::MORE;
            let flags = if flags & MSG_MORE == 0 { SendFlags::empty() } else { more };
            socket.send_with_flags(host, &mut world.cx, &[std::io::IoSlice::new(&bytes)], flags)
        };
        match sent {
            Ok(sent) => {
                file.written = file.written.wrapping_add(u32::try_from(sent).expect("a write"));
                running.moved += sent;
                if waits && running.moved < len {
                    Ok(Outcome::Blocks)
                } else {
                    done_bytes(running.moved)
                }
            }
            Err(Errno::EAGAIN) if waits => Ok(Outcome::Blocks),
            Err(_) if running.moved > 0 => done_bytes(running.moved),
            Err(errno) => fail(errno),
        }
    }

    /// The first write of a connection with Fast Open: what its SYN carries. `MSG_FASTOPEN` connects, too. An answer if the
    /// call ends here or sleeps (Linux: `tcp_sendmsg_fastopen`, `__inet_stream_connect`).
    fn send_opening(
        &mut self,
        world: &mut World,
        host: &Arc<Host>,
        running: &mut Running,
        (fd, waits): (i64, bool),
        args: &[Arg],
    ) -> Result<Option<Outcome>, String> {
        let len = size(args.get(2))?;
        let fast_open = args.get(3).map_or(Ok(0), Arg::number)? & MSG_FASTOPEN != 0;
        let mut opened = running.begun;
        if !running.begun {
            let bytes = stream_bytes(self.file(fd).written, len);
            let sent = match &self.file(fd).kind {
                Kind::Listener(_) if fast_open => Err(Errno::EISCONN),
                Kind::Listener(_) => Ok(None),
                Kind::Stream(socket) => {
                    Ok(socket.send_with_syn(host, &mut world.cx, &[&bytes[..]]))
                }
                Kind::Fresh if fast_open => self.connect_sending(world, host, fd, args, &bytes)?,
                Kind::Fresh => Ok(None),
            };
            match sent {
                Ok(Some(sent)) => {
                    (opened, running.begun, running.moved) = (true, true, sent);
                    let file = self.file(fd);
                    file.written = file.written.wrapping_add(u32::try_from(sent).expect("a write"));
                }
                Ok(None) => {}
                Err(errno) => return Ok(Some(Outcome::Done(Err(errno)))),
            }
        }
        let Kind::Stream(socket) = self.file(fd).kind.clone() else { return Ok(None) };
        let opening = socket.with_tcb(host, &mut world.cx, |tcb, _| tcb.state() == State::SynSent);
        if !opened {
            let already = fast_open && opening;
            // The first call after the handshake learns of it, as `connect` would.
            let late = fast_open && !opening && !std::mem::take(&mut self.file(fd).connecting);
            return Ok(match (already, late) {
                (true, _) => Some(Outcome::Done(Err(Errno::EALREADY))),
                (_, true) => Some(Outcome::Done(Err(Errno::EISCONN))),
                _ => None,
            });
        }
        if opening && waits {
            if running.moved < len {
                socket.with_tcb(host, &mut world.cx, |tcb, _| tcb.expect_write());
            }
            return Ok(Some(Outcome::Blocks));
        }
        if opening {
            return Ok(Some(Outcome::Done(match running.moved {
                0 => Err(Errno::EINPROGRESS),
                moved => Ok(i64::try_from(moved).unwrap_or(i64::MAX)),
            })));
        }
        // A write that the SYN took along has failed when the handshake has.
        let error = socket.take_error(host, &mut world.cx);
        Ok(error.map(|errno| Outcome::Done(Err(errno))))
    }

    fn connect_sending(
        &mut self,
        world: &mut World,
        host: &Arc<Host>,
        fd: i64,
        args: &[Arg],
        bytes: &[u8],
    ) -> Result<Result<Option<usize>, Errno>, String> {
        let remote = address(args.get(4), self.peer)?;
        let file = self.file(fd);
        let options = file.settings.connect_options(file.local);
        let begun = TcpSocket::connect_sending(host, &mut world.cx, remote, &options, &[bytes]);
        Ok(begun.map(|(socket, sent)| {
            self.begin_stream(fd, &socket);
            Some(sent)
        }))
    }

    pub(super) fn recv(
        &mut self,
        world: &mut World,
        host: &Arc<Host>,
        running: &mut Running,
        fd: i64,
        args: &[Arg],
    ) -> Answer {
        let len = size(args.get(2))?;
        let flags = args.get(3).map_or(Ok(0), Arg::number)?;
        known_flags(flags, MSG_DONTWAIT | MSG_OOB | MSG_PEEK | MSG_WAITALL)?;
        let file = self.file(fd);
        let Kind::Stream(socket) = &file.kind else { return fail(Errno::ENOTCONN) };
        let waits = !file.nonblocking && flags & MSG_DONTWAIT == 0;
        let peek = flags & MSG_PEEK != 0;
        if flags & MSG_OOB != 0 {
            return match socket.recv_oob(host, &mut world.cx, peek) {
                Ok(byte) => done_bytes(usize::from(byte.is_some())),
                Err(errno) => fail(errno),
            };
        }
        // The urgent byte is none of the stream's.
        let skips = socket.with_tcb(host, &mut world.cx, |tcb, _| {
            tcb.at_mark() && !tcb.oob_inline() && tcb.readable_bytes() == 0
        });
        let mut buf = vec![0; len - running.moved];
        let got = if waits && !peek {
            let bufs = &mut [IoSliceMut::new(&mut buf)];
            socket.recv_or_wait(host, &mut world.cx, &mut file.reader, bufs)
        } else {
            socket.recv(host, &mut world.cx, &mut buf, peek)
        };
        match got {
            Ok(read) => {
                let before = file.read;
                file.read = file.read.wrapping_add(u32::from(skips && read > 0));
                if buf[..read] != stream_bytes(file.read, read) {
                    return Err(format!("read: wrong bytes at {} of the stream", file.read));
                }
                if peek {
                    file.read = before;
                } else {
                    file.read = file.read.wrapping_add(u32::try_from(read).expect("a read"));
                    running.moved += read;
                }
                let target = if flags & MSG_WAITALL != 0 {
                    len
                } else if waits {
                    len.min(socket.rcvlowat() as usize)
                } else {
                    0
                };
                let failed = socket.readiness().contains(Readiness::ERROR);
                let ends = peek || read == 0 || failed || socket.at_mark(host, &mut world.cx);
                let all = ends || running.moved >= target;
                if all {
                    done_bytes(if peek { read } else { running.moved })
                } else {
                    self.recv(world, host, running, fd, args)
                }
            }
            Err(Errno::EAGAIN) if waits => Ok(Outcome::Blocks),
            Err(_) if running.moved > 0 => done_bytes(running.moved),
            Err(errno) => fail(errno),
        }
    }
}

fn size(arg: Option<&Arg>) -> Result<usize, String> {
    let value = arg.ok_or("a length is missing")?.number()?;
    usize::try_from(value).map_err(|_| format!("{value} is no length"))
}

fn known_flags(flags: i64, known: i64) -> Result<(), String> {
    if flags & !known == 0 {
        Ok(())
    } else {
        Err(format!("flags {:#x}: not known here", flags & !known))
    }
}
