//! `fcntl` and `ioctl`.
//!
//! Linux: fs/fcntl.c, `tcp_ioctl`. Not here: flags of a descriptor (`F_GETFD`, `FIOCLEX`), which
//! are the driver's.

use stack::{Cx, Errno, host::Host};

use crate::{
    abi::{
        F_GETFL, F_SETFL, FIONBIO, FIONREAD, O_NONBLOCK, O_RDWR, SIOCATMARK, SIOCOUTQ, SIOCOUTQNSD,
    },
    socket::{Open as _, Socket, State, is_opening},
};

impl Socket {
    /// `F_GETFL` and `F_SETFL`. `O_NONBLOCK` is the only status flag with an effect.
    ///
    /// # Errors
    /// `EINVAL` for another command.
    pub fn fcntl(&self, command: i32, argument: i32) -> Result<i32, Errno> {
        drop(self.lock().open()?);
        match command {
            F_GETFL => Ok(O_RDWR | if self.is_nonblocking() { O_NONBLOCK } else { 0 }),
            F_SETFL => {
                self.set_nonblocking(argument & O_NONBLOCK != 0);
                Ok(0)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// Requests with an `int`: `argument` is read by `FIONBIO` and written by the others.
    ///
    /// # Errors
    /// `ENOTTY` for an unknown request, `EINVAL` for the queues of a listening socket.
    pub fn ioctl(
        &self,
        host: &Host,
        cx: &mut Cx,
        request: u64,
        argument: &mut i32,
    ) -> Result<(), Errno> {
        let inner = self.lock().open()?;
        match request {
            FIONBIO => {
                self.set_nonblocking(*argument != 0);
                return Ok(());
            }
            FIONREAD | SIOCOUTQ | SIOCOUTQNSD | SIOCATMARK => {}
            _ => return Err(Errno::ENOTTY),
        }
        let bytes = match &inner.state {
            State::Listening(_) if request != SIOCATMARK => return Err(Errno::EINVAL),
            State::Stream(stream, _) => stream.with_tcb(host, cx, |tcb, _| match request {
                SIOCATMARK => usize::from(tcb.at_mark()),
                _ if is_opening(tcb.state()) => 0,
                FIONREAD => tcb.readable_bytes(),
                SIOCOUTQ => tcb.unacked_bytes(),
                _ => tcb.info().notsent_bytes as usize,
            }),
            _ => 0,
        };
        *argument = i32::try_from(bytes).unwrap_or(i32::MAX);
        Ok(())
    }
}
