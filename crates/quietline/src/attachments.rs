//! The devices of a running stack as the stack's workers see them, and the end of those whose interface is gone.
//!
//! Below: [`PollFd::is_gone`](crate::PollFd::is_gone), which the devices learn from the kernel. Above: the workers and
//! [`Stack::poll`](crate::Stack::poll), which look between two turns: within one a device cannot be taken away.

use std::sync::{Mutex, PoisonError};

use stack::{Cx, host::Host};

use crate::builder::Attachment;

/// Keeps the descriptors that the workers sleep on open; `None` for a device that was taken away.
#[derive(Debug)]
pub(crate) struct Attachments(Mutex<Vec<Option<Attachment>>>);

impl Attachments {
    pub(crate) fn new(attachments: Vec<Attachment>) -> Self {
        Self(Mutex::new(attachments.into_iter().map(Some).collect()))
    }

    /// Forgets the device with this index, which the host has taken away. The host's device 0 is loopback.
    pub(crate) fn forget(&self, index: u32) {
        let mut attachments = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        attachments[index as usize - 1] = None;
    }

    /// Takes the devices away whose interface is gone; true if there was one. Called between two turns.
    pub(crate) fn remove_gone(&self, host: &Host, cx: &mut Cx) -> bool {
        let gone: Vec<u32> = {
            let attachments = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let is_gone = |attachment: &Option<Attachment>| {
                attachment.as_ref().is_some_and(Attachment::is_gone)
            };
            (1..)
                .zip(&*attachments)
                .filter(|(_, own)| is_gone(own))
                .map(|(index, _)| index)
                .collect()
        };
        for &index in &gone {
            // ENODEV: another worker has been quicker.
            let _ = host.remove_device(cx, index);
            self.forget(index);
        }
        !gone.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use stack::cx::event::Event;

    use super::*;
    use crate::Stack;
    use crate::device::namespace::{in_namespace, run, skip};
    use crate::device::{AfPacket, AfPacketConfig, AfXdp, AfXdpConfig, XdpMode};

    /// Deletes the interface of a stack without workers, whose application polls it and never sleeps on a descriptor.
    fn manual_stack_loses(attachment: impl Into<Attachment>) {
        const PATIENCE: Duration = Duration::from_secs(10);
        let address = "10.77.0.2/24".parse().expect("an address");
        let stack = Stack::builder().device(attachment).address(address).manual();
        let stack = stack.build().expect("valid");
        let mut events = stack.events();
        let _ = stack.poll();
        run("ip link del right0");
        let deadline = Instant::now() + PATIENCE;
        let gone = Event::DeviceGone { device: "left0".to_owned() };
        while events.try_next() != Some(gone.clone()) {
            assert!(Instant::now() < deadline, "unnoticed");
            let _ = stack.poll();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn make_pair() {
        run("ip link add left0 type veth peer name right0");
        run("ip link set left0 up");
        run("ip link set right0 up");
    }

    #[test]
    fn a_manual_stack_that_polls_loses_its_af_packet_device() {
        in_namespace(|| {
            make_pair();
            let device = AfPacket::open(&AfPacketConfig::new("left0")).expect("privileges");
            manual_stack_loses(device);
        });
    }

    #[test]
    fn a_manual_stack_that_polls_loses_its_af_xdp_device() {
        in_namespace(|| {
            make_pair();
            let config = AfXdpConfig { mode: XdpMode::Generic, ..AfXdpConfig::new("left0") };
            match AfXdp::open(&config) {
                Err(error) if error.errno() == libc::EAFNOSUPPORT => skip(&error.to_string()),
                device => manual_stack_loses(device.expect("privileges")),
            }
        });
    }
}
