//! Checks that datagrams, also those through a packet port, allocate no memory of the system's
//! allocator in the steady state: packets come from packet memory, and routes, neighbors and
//! sockets exist.

#[cfg(test)]
#[path = "support/allocations.rs"]
mod allocations;

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, sync::Arc};

    use pkt::Instant;
    use quietline::{
        Stack, UdpSocket,
        device::{PacketPort, PortConfig},
    };
    use stack::{
        Cx, Memory,
        device::{Wire, WireConfig},
        host::{
            Host,
            config::{DeviceConfig, HostConfig},
        },
        socket::{
            DatagramSocket,
            datagram::{ReceiveMessage, SendControl, SendMessage},
            options::SocketSettings,
        },
    };

    use super::allocations;

    const START: Instant = Instant::from_secs(1000);
    const BATCH: usize = 16;

    /// Two hosts, joined by a wire, and a socket of each.
    struct Bench {
        cx: Cx,
        hosts: Vec<Arc<Host>>,
        sockets: Vec<Arc<DatagramSocket>>,
        ends: [SocketAddr; 2],
    }

    impl Bench {
        /// Makes hosts with the addresses `net` 1 and 2. The sockets are bound to `any`.
        fn new(net: &str, prefix: u8, any: &str) -> Self {
            let memory = Memory::new(16 << 20);
            let mut cx = Cx::replay(&memory, 1);
            cx.now = START;
            let (left, right) = Wire::pair(&WireConfig::default()).expect("a valid wire");
            let (mut hosts, mut sockets) = (Vec::new(), Vec::new());
            for (number, device) in (1..).zip([left, right]) {
                let config = HostConfig {
                    devices: vec![DeviceConfig {
                        device,
                        addresses: vec![
                            format!("{net}{number}/{prefix}").parse().expect("a prefix"),
                        ],
                    }],
                    cores: 1,
                    ..HostConfig::replay(number)
                };
                let host = Host::new(&memory, config).expect("a valid configuration");
                let local = SocketAddr::new(any.parse().expect("an address"), 53);
                let settings = SocketSettings::default();
                let socket = DatagramSocket::bind(&host, &mut cx, local, &settings);
                sockets.push(socket.expect("a free port"));
                hosts.push(host);
            }
            let end =
                |number| SocketAddr::new(format!("{net}{number}").parse().expect("an address"), 53);
            Self { cx, hosts, sockets, ends: [end(1), end(2)] }
        }

        fn settle(&mut self) {
            while self
                .hosts
                .iter()
                .any(|host| host.poll(&mut self.cx).is_some_and(|next| next <= self.cx.now))
            {
            }
        }

        /// Sends a batch from the first host, and answers it. `to` is false on connected sockets.
        fn exchange(&mut self, to: bool, control: SendControl) {
            let payload = [7; 900];
            let mut bufs = [[0; 1000]; BATCH];
            for from in 0..2 {
                let peer = to.then_some(self.ends[1 - from]);
                let message = SendMessage { payload: &payload, to: peer, control };
                let socket = &self.sockets[from];
                let sent =
                    socket.send_batch(&self.hosts[from], &mut self.cx, &[message; BATCH / 4]);
                assert_eq!(sent, Ok(BATCH / 4));
                self.settle();
                let mut messages = bufs.each_mut().map(|buf| ReceiveMessage::new(buf));
                let (host, socket) = (&self.hosts[1 - from], &self.sockets[1 - from]);
                let received = socket.recv_batch(host, &mut self.cx, &mut messages);
                let expected = if control.segment.is_some() { BATCH } else { BATCH / 4 };
                assert_eq!(received, Ok(expected));
            }
        }

        /// Returns the number of allocations of 100 exchanges, after a few that may allocate.
        fn allocations(&mut self, to: bool, control: SendControl) -> usize {
            for _ in 0..20 {
                self.exchange(to, control);
            }
            let before = allocations::of_this_thread();
            for _ in 0..100 {
                self.exchange(to, control);
            }
            allocations::of_this_thread() - before
        }
    }

    #[test]
    fn datagrams_allocate_no_memory_in_the_steady_state() {
        for (net, prefix, any) in
            [("10.0.0.", 24, "0.0.0.0"), ("fd00::", 64, "::"), ("10.0.0.", 24, "::")]
        {
            let mut bench = Bench::new(net, prefix, any);
            let segments = SendControl { segment: Some(225), ..SendControl::default() };
            for connected in [false, true] {
                if connected {
                    for (number, socket) in bench.sockets.iter().enumerate() {
                        let peer = bench.ends[1 - number];
                        socket.connect(&bench.hosts[number], &mut bench.cx, peer).expect("a route");
                    }
                }
                for control in [SendControl::default(), segments] {
                    let count = bench.allocations(!connected, control);
                    assert_eq!(count, 0, "{net} on {any}, connected {connected}, {control:?}");
                }
            }
            for (number, socket) in bench.sockets.iter().enumerate() {
                socket.close(&bench.hosts[number], &mut bench.cx);
            }
        }
    }

    /// An IPv4 packet from 10.0.0.2 to 10.0.0.1, with a UDP header from port 7 to port 7 without
    /// checksum.
    fn datagram(payload: &[u8]) -> Vec<u8> {
        let len = |header: usize| u16::try_from(header + payload.len()).expect("short");
        let mut bytes = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1];
        bytes[2..4].copy_from_slice(&len(28).to_be_bytes());
        let sum = pkt::Sum::of(&bytes).finish();
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        bytes.extend([0, 7, 0, 7]);
        bytes.extend(len(8).to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn packets_through_a_port_allocate_no_memory_in_the_steady_state() {
        let (device, port) = PacketPort::ip(&PortConfig::default()).expect("a port");
        let address = "10.0.0.1/24".parse().expect("a prefix");
        let stack = Stack::builder().device(device).address(address).manual().build();
        let stack = stack.expect("a stack");
        let socket = UdpSocket::bind(&stack, "10.0.0.1:7").expect("free");
        let packets = [(); BATCH].map(|()| datagram(&[7; 1000]));
        let mut buffer = [0; 1500];
        let mut exchange = || {
            assert_eq!(port.inject(&packets).expect("open"), BATCH);
            for _ in 0..BATCH {
                let (len, from) = socket.recv_from(&mut buffer).expect("a datagram");
                socket.send_to(&buffer[..len], from).expect("room");
            }
            let mut bytes = 0;
            let drained = port.drain(64, |frame| {
                bytes += frame.slices().map(<[u8]>::len).sum::<usize>();
                Ok::<_, ()>(())
            });
            assert_eq!((drained, bytes), (Ok(BATCH), BATCH * 1028));
        };
        (0..20).for_each(|_| exchange());
        let before = allocations::of_this_thread();
        (0..100).for_each(|_| exchange());
        assert_eq!(allocations::of_this_thread() - before, 0);
    }
}
