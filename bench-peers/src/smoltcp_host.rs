//! One smoltcp host: an interface, its sockets and a clock.
//!
//! The configuration follows the throughput suggestions of smoltcp's documentation: 1 MiB buffers,
//! no delayed ACK, default window scaling.
//!
//! Not here: the devices.

use std::time::Instant as Clock;

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::Device;
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr, Ipv4Address};

/// Size of each socket buffer, in bytes.
pub const BUFFER_BYTES: usize = 1 << 20;

/// An interface with its sockets.
#[allow(missing_debug_implementations, reason = "Interface has no Debug")]
pub struct Host {
    /// The interface.
    pub interface: Interface,
    /// Sockets of the interface.
    pub sockets: SocketSet<'static>,
    epoch: Clock,
}

impl Host {
    /// Creates a host with one IPv4 address. The last byte of its hardware address is that of the
    /// IPv4 address.
    pub fn new(device: &mut impl Device, address: Ipv4Address, prefix: u8, epoch: Clock) -> Self {
        let hardware = EthernetAddress([2, 0, 0, 0, 0, address.octets()[3]]);
        let mut config = Config::new(HardwareAddress::Ethernet(hardware));
        config.random_seed = u64::from(address.octets()[3]);
        let mut interface = Interface::new(config, device, Instant::ZERO);
        interface.update_ip_addrs(|list| {
            // One address fits into the empty list of fixed capacity.
            let _fits = list.push(IpCidr::new(address.into(), prefix));
        });
        Self { interface, sockets: SocketSet::new(Vec::new()), epoch }
    }

    /// Returns the time to pass to the stack.
    pub fn now(&self) -> Instant {
        let micros = i64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(i64::MAX);
        Instant::from_micros(micros)
    }

    /// Adds a socket with buffers of `buffer_bytes` bytes.
    pub fn add_socket(&mut self, buffer_bytes: usize) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; buffer_bytes]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_ack_delay(None);
        socket.set_nagle_enabled(false);
        self.sockets.add(socket)
    }

    /// Polls the interface once.
    pub fn poll(&mut self, device: &mut impl Device) {
        let now = self.now();
        self.interface.poll(now, device, &mut self.sockets);
    }

    /// Returns a socket.
    pub fn tcp(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }
}
