//! Pair of devices that receive each other's frames, created by the factory of a suite.

use std::{any::Any, fmt, net::Ipv4Addr};

use crate::Attachment;

/// Two connected devices: frames that one sends, the other receives. The suite drops them after
/// each check; the factory keeps no reference to them.
pub struct Pair {
    pub(super) left: Attachment,
    /// `None` for a device that receives its own frames.
    pub(super) right: Option<Attachment>,
    pub(super) addresses: [Ipv4Addr; 2],
    pub(super) unplug: Option<Box<dyn FnOnce() + Send>>,
    pub(super) pump: Option<Box<dyn FnMut() + Send>>,
    pub(super) _kept: Vec<Box<dyn Any>>,
}

impl Pair {
    /// Connects two devices. The links and anything else between them must deliver every frame.
    #[must_use]
    pub fn new(left: impl Into<Attachment>, right: impl Into<Attachment>) -> Self {
        Self {
            left: left.into(),
            right: Some(right.into()),
            addresses: [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)],
            unplug: None,
            pump: None,
            _kept: Vec::new(),
        }
    }

    /// Wraps one device that receives its own frames. Checks that need two stacks do not apply to
    /// it.
    #[must_use]
    pub fn looped(device: impl Into<Attachment>) -> Self {
        let device = device.into();
        Self { right: None, ..Self::new(device.clone(), device) }
    }

    /// Sets the IPv4 addresses of the left and the right stack, for devices with routers between
    /// them. Default: 192.0.2.1 and 192.0.2.2.
    #[must_use]
    pub fn addresses(mut self, left: Ipv4Addr, right: Ipv4Addr) -> Self {
        self.addresses = [left, right];
        self
    }

    /// Adds a way to make the left device disappear, as when its interface is deleted. Without it,
    /// `a_device_that_is_gone_is_removed` does not apply.
    #[must_use]
    pub fn unplug(mut self, unplug: impl FnOnce() + Send + 'static) -> Self {
        self.unplug = Some(Box::new(unplug));
        self
    }

    /// Adds a function that moves all frames on their way between the devices. Checks that call the
    /// devices directly call it before each poll, so that frames between two devices with a thread
    /// of the application in the middle do not arrive later than the check expects.
    #[must_use]
    pub fn pump(mut self, pump: impl FnMut() + Send + 'static) -> Self {
        self.pump = Some(Box::new(pump));
        self
    }

    /// Keeps a value as long as the pair, such as the device that connects both.
    #[must_use]
    pub fn keep(mut self, value: impl Any) -> Self {
        self._kept.push(Box::new(value));
        self
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair")
            .field("left", &self.left)
            .field("right", &self.right)
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}
