//! Transmit queues selected by core (XPS), over a wire with several queues.

#[cfg(test)]
mod tests {
    use std::{io::IoSlice, sync::Arc, time::Duration};

    use sim::{
        World,
        apps::{connect, listen},
    };
    use stack::{
        Errno,
        base::counters::Counter,
        device::{Impairment, Wire, WireConfig},
        host::config::{DeviceConfig, HostConfig},
        socket::{Connection, Listener},
    };

    const QUEUES: u16 = 4;

    /// Two hosts of four cores, with four queues between them of 10 Mbit/s each. Each queue has a
    /// discipline, which counts.
    struct Bench {
        world: World,
        listener: Arc<Listener>,
    }

    impl Bench {
        fn new(settings: &[(&str, &str)]) -> Self {
            let forward = Impairment {
                rate_bps: Some(10_000_000),
                ring_packets: Some(8),
                ..Impairment::default()
            };
            let wire = WireConfig { queues: QUEUES, forward, ..WireConfig::default() };
            let (near, far) = Wire::pair(&wire).expect("a valid wire");
            let mut world = World::new(7);
            for (index, end) in [near, far].into_iter().enumerate() {
                let addresses =
                    vec![format!("10.0.0.{}/24", index + 1).parse().expect("an address")];
                let devices = vec![DeviceConfig { device: end, addresses }];
                let config = HostConfig { devices, cores: QUEUES, ..HostConfig::replay(0) };
                world.add_host(config).expect("valid");
            }
            let listener = listen(&mut world, 80);
            let bench = Self { world, listener };
            bench.world.set(0, settings);
            bench
        }

        fn set(&self, name: &str, value: &str) {
            self.world.set(0, &[(name, value)]);
        }

        /// Sets the mask of a transmit queue.
        fn map(&self, queue: u16, cores: &str) {
            let name = format!("net.quietline.dev.{}.tx-{queue}.xps_cpus", self.device());
            self.set(&name, cores);
        }

        fn device(&self) -> String {
            let host = &self.world.hosts[0];
            let mut cx = stack::Cx::replay(self.world.memory(), 1);
            cx.now = self.world.cx.now;
            host.tx_queue_stats(&mut cx).pop().expect("a row").device
        }

        /// Returns the number of packets that each queue of the wire has sent.
        fn sent(&mut self) -> Vec<u64> {
            let (host, device) = (Arc::clone(&self.world.hosts[0]), self.device());
            let rows = host.tx_queue_stats(&mut self.world.cx).into_iter();
            rows.filter(|row| row.device == device).map(|row| row.stats.packets).collect()
        }

        fn send(&mut self, socket: &Connection, bytes: usize) {
            let (host, data) = (Arc::clone(&self.world.hosts[0]), vec![7; bytes]);
            let sent = socket.send(&host, &mut self.world.cx, &[IoSlice::new(&data)]);
            assert_eq!(sent, Ok(bytes));
        }

        fn read(&mut self, socket: &Connection) -> usize {
            let (host, mut buffer) = (Arc::clone(&self.world.hosts[1]), vec![0; 1 << 16]);
            let mut all = 0;
            loop {
                match socket.recv(&host, &mut self.world.cx, &mut buffer, false) {
                    Ok(read @ 1..) => all += read,
                    Ok(_) | Err(Errno::EAGAIN) => return all,
                    Err(error) => panic!("{error}"),
                }
            }
        }

        /// Returns the queues that `bytes` of `socket` alone leave by.
        fn queues_of(
            &mut self,
            (client, server): &(Arc<Connection>, Arc<Connection>),
        ) -> Vec<usize> {
            let before = self.sent();
            self.send(client, 5000);
            self.world.pass(Duration::from_millis(100));
            assert_eq!(self.read(server), 5000);
            self.world.pass(Duration::from_millis(300));
            let after = self.sent();
            // A probe of the neighbor may be among them.
            (0..after.len()).filter(|queue| after[*queue] >= before[*queue] + 4).collect()
        }

        fn count(&self, counter: Counter) -> u64 {
            self.world.hosts[0].counters().stack(counter)
        }
    }

    /// Without a mask a core uses the queue of its own number, whose completions it processes.
    #[test]
    fn a_connection_sends_by_the_queue_of_its_core() {
        let mut bench = Bench::new(&[]);
        let mut seen = [false; QUEUES as usize];
        for _ in 0..32 {
            let ends = connect(&mut bench.world, &bench.listener);
            let core = usize::from(ends.0.core().0);
            assert_eq!(bench.queues_of(&ends), [core]);
            seen[core] = true;
        }
        assert_eq!(seen, [true; 4], "32 connections are spread");
        assert_eq!(bench.count(Counter::TxQueueChanges), 0);
    }

    /// `xps_cpus`: a queue serves the cores of its mask. If a core has several queues, the flow's
    /// hash selects one; a core in no mask uses the queue of its number.
    #[test]
    fn masks_select_the_cores_of_a_queue() {
        let mut bench = Bench::new(&[]);
        bench.map(0, "2");
        bench.map(1, "1");
        bench.map(2, "4");
        bench.map(3, "4");
        let mut of_core_2 = [false; QUEUES as usize];
        for _ in 0..48 {
            let ends = connect(&mut bench.world, &bench.listener);
            let queues = bench.queues_of(&ends);
            match ends.0.core().0 {
                0 => assert_eq!(queues, [1]),
                1 => assert_eq!(queues, [0]),
                2 => {
                    assert_eq!(queues.len(), 1);
                    of_core_2[queues[0]] = true;
                }
                _ => assert_eq!(queues, [3]),
            }
        }
        assert_eq!(of_core_2, [false, false, true, true], "flows are spread over both");
        bench.set("net.quietline.dev.default.xps_cpus", "0");
        let ends = connect(&mut bench.world, &bench.listener);
        assert_eq!(bench.queues_of(&ends), [usize::from(ends.0.core().0)]);
    }

    /// `ooo_okay`: while packets of a flow are in its old queue the flow stays there, so that no
    /// packet overtakes another.
    #[test]
    fn a_flow_changes_its_queue_when_nothing_of_it_is_in_the_old_one() {
        let mut bench = Bench::new(&[("net.quietline.tsq_limit", "off")]);
        let ends = connect(&mut bench.world, &bench.listener);
        let old = usize::from(ends.0.core().0);
        let new = (old + 1) % usize::from(QUEUES);
        assert_eq!(bench.queues_of(&ends), [old]);
        let before = bench.sent();
        // Some 8 ms of the old queue.
        bench.send(&ends.0, 10_000);
        let mask = format!("{:x}", 1 << old);
        bench.map(u16::try_from(new).expect("few"), &mask);
        bench.send(&ends.0, 10_000);
        assert!(bench.count(Counter::TxQueueKept) > 0);
        assert_eq!(bench.count(Counter::TxQueueChanges), 0);
        bench.world.pass(Duration::from_millis(100));
        assert_eq!(bench.read(&ends.1), 20_000);
        let after = bench.sent();
        assert!(after[old] > before[old] && after[new] == before[new], "{before:?} {after:?}");
        // Nothing is queued below any more.
        assert_eq!(bench.queues_of(&ends), [new]);
        assert_eq!(bench.count(Counter::TxQueueChanges), 1);
        let reordered = bench.world.hosts[1].counters().tcp(tcp::Counter::TcpExtTCPOFOQueue);
        assert_eq!(reordered, 0);
    }
}
