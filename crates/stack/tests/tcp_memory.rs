//! The TCP memory account: queued data is charged, memory pressure starts and ends, and all charges
//! are returned.

#[cfg(test)]
mod tests {
    use std::{io::IoSlice, net::SocketAddr, sync::Arc, time::Duration};

    use pkt::Instant;
    use stack::{
        Cx, Device, Errno, Memory,
        device::{Wire, WireConfig},
        host::{
            Host,
            config::{DeviceConfig, HostConfig},
        },
        socket::{Connection, Listener},
        sysctl::Sysctls,
    };

    fn host(memory: &Memory, device: Arc<Wire>, address: &str, tcp_mem: &str) -> Arc<Host> {
        let addresses = vec![address.parse().expect("an address with its prefix")];
        let devices = vec![DeviceConfig { device: device as Arc<dyn Device>, addresses }];
        let mut sysctls = Sysctls::default();
        sysctls.set("net.ipv4.tcp_mem", tcp_mem).expect("three numbers");
        let config = HostConfig { devices, cores: 1, sysctls, ..HostConfig::replay(0) };
        Host::new(memory, config).expect("valid")
    }

    fn run(cx: &mut Cx, hosts: [&Arc<Host>; 2], time: Duration) {
        let end = cx.now + time;
        while cx.now < end {
            let next = hosts.map(|host| host.poll(cx)).into_iter().flatten().min();
            cx.now = next.unwrap_or(end).clamp(cx.now + Duration::from_micros(100), end);
        }
    }

    fn send_all(cx: &mut Cx, host: &Host, socket: &Connection) -> usize {
        let chunk = [7; 10_000];
        let mut sent = 0;
        loop {
            match socket.send(host, cx, &[IoSlice::new(&chunk)]) {
                Ok(n) => sent += n,
                Err(Errno::EAGAIN) => return sent,
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    #[test]
    fn slow_readers_cause_memory_pressure_and_reading_ends_it() {
        let memory = Memory::new(64 << 20);
        let (left, right) = Wire::pair(&WireConfig::default()).expect("a valid wire");
        let client = host(&memory, left, "10.0.0.1/24", "1000 2000 3000");
        let server = host(&memory, right, "10.0.0.2/24", "48 64 96");
        let mut cx = Cx::replay(&memory, 1);
        cx.now = Instant::from_secs(1000);
        let to = SocketAddr::new([10, 0, 0, 2].into(), 80);
        let listener = Listener::listen(&server, &mut cx, to, 16).expect("a free port");
        let mut pairs = Vec::new();
        for _ in 0..8 {
            let socket = Connection::connect(&client, &mut cx, None, to).expect("a route");
            run(&mut cx, [&client, &server], Duration::from_millis(5));
            pairs.push((socket, listener.accept().expect("established")));
        }
        assert_eq!(server.tcp_memory_pages(), 0, "idle connections hold nothing");
        for _ in 0..20 {
            for (socket, _) in &pairs {
                send_all(&mut cx, &client, socket);
            }
            run(&mut cx, [&client, &server], Duration::from_millis(50));
            // The third threshold, plus the minimum of each connection and one more packet each.
            let held = server.tcp_memory_pages();
            assert!(held <= 96 + 8 * 20, "{held} pages");
        }
        assert!(server.tcp_memory_pages() > 48);
        let counted = |name| server.counters().get(name);
        assert_eq!(counted("TcpExtTCPMemoryPressures"), Some(1));
        assert!(client.tcp_memory_pages() > 0);
        // All sockets are read: pressure ends, and every byte arrives.
        let mut buf = vec![0; 65_536];
        for _ in 0..400 {
            for (_, reader) in &pairs {
                while reader.recv(&server, &mut cx, &mut buf, false).is_ok_and(|n| n > 0) {}
            }
            run(&mut cx, [&client, &server], Duration::from_millis(50));
        }
        assert_eq!((client.tcp_memory_pages(), server.tcp_memory_pages()), (0, 0));
        assert!(counted("TcpExtTCPMemoryPressuresChrono").is_some_and(|ms| ms > 0));
        // The charge of unread data is returned when its socket closes.
        for (socket, _) in &pairs {
            send_all(&mut cx, &client, socket);
        }
        run(&mut cx, [&client, &server], Duration::from_millis(50));
        assert!(server.tcp_memory_pages() > 0);
        for (socket, reader) in pairs {
            socket.abort(&client, &mut cx);
            reader.close(&server, &mut cx);
        }
        run(&mut cx, [&client, &server], Duration::from_secs(1));
        assert_eq!((client.tcp_memory_pages(), server.tcp_memory_pages()), (0, 0));
    }

    #[test]
    fn the_default_of_tcp_mem_follows_packet_memory() {
        let memory = Memory::new(32 << 20);
        let (left, _right) = Wire::pair(&WireConfig::default()).expect("a valid wire");
        let addresses = vec!["10.0.0.1/24".parse().expect("an address")];
        let devices = vec![DeviceConfig { device: left as Arc<dyn Device>, addresses }];
        let config = HostConfig { devices, cores: 1, ..HostConfig::replay(0) };
        let host = Host::new(&memory, config).expect("valid");
        assert_eq!(host.sysctls().get("net.ipv4.tcp_mem").expect("known"), "3072\t4096\t6144");
    }
}
