//! Routes that change during a run, and devices that go down and up, on two wires between two
//! hosts: every byte arrives, every cached path agrees with the routes (DST4), and when the
//! connection has ended only the tables hold entries (DST3, PQ7).
//!
//! `SEED=n cargo test -p quietline-sim --test routes` replays one seed; `SEEDS=n` runs that many.

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, sync::Arc, time::Duration};

    use sim::{
        World,
        apps::{Pattern, Receiver, Sender},
    };
    use stack::{
        Readiness,
        base::ids::DeviceIndex,
        device::{Impairment, Wire, WireConfig},
        host::config::{DeviceConfig, HostConfig},
        route::fib::{HopSpec, RouteSpec},
        socket::{Connection, Listener},
        transmit::dst::RouteKind,
    };

    /// Bytes in each direction.
    const LENGTH: u64 = 400_000;

    /// Longest time between two changes.
    const CHANGE_US_MAX: u32 = 40_000;

    fn seeds() -> std::ops::Range<u64> {
        if let Some(seed) = std::env::var("SEED").ok().and_then(|text| text.parse().ok()) {
            return seed..seed + 1;
        }
        let count = std::env::var("SEEDS").ok().and_then(|text| text.parse().ok());
        0..count.unwrap_or(40)
    }

    fn impairment(rng: &mut tcp::Rng) -> Impairment {
        Impairment {
            rate_bps: Some(20_000_000 * u64::from(1 + rng.below(10))),
            delay: Duration::from_micros(u64::from(rng.below(3000))),
            loss: f64::from(rng.below(20)) / 1000.0,
            ..Impairment::default()
        }
    }

    /// Hosts 0 and 1, joined by two wires: 10.0.0.0/24 and 10.1.0.0/24. Each also has an address of
    /// its own, 192.0.2.1 and 192.0.2.2, that the other reaches by a route.
    fn world(seed: u64) -> World {
        let mut rng = tcp::Rng::new(seed);
        let mut world = World::new(seed);
        let mut wire = |name: &str, seed| {
            let (forward, backward) = (impairment(&mut rng), impairment(&mut rng));
            let mtu = [1500, 1500, 1280, 9000][rng.below(4) as usize];
            let name = name.to_owned();
            let config = WireConfig { name, forward, backward, seed, mtu, ..WireConfig::default() };
            Wire::pair(&config).expect("valid")
        };
        let [(left0, right0), (left1, right1)] = [wire("red", seed), wire("blue", !seed)];
        for (number, ends) in [(1, [left0, left1]), (2, [right0, right1])] {
            let address = |text: String| text.parse().expect("an address");
            let own = address(format!("192.0.2.{number}/32"));
            let devices = (0..)
                .zip(ends)
                .map(|(net, device)| DeviceConfig {
                    device,
                    addresses: [address(format!("10.{net}.0.{number}/24"))]
                        .into_iter()
                        .chain((net == 0).then_some(own))
                        .collect(),
                })
                .collect();
            let config = HostConfig { devices, cores: 1, ..HostConfig::replay(0) };
            world.add_host(config).expect("valid");
        }
        for host in 0..2 {
            world.hosts[host].add_route(&to_peer(host, 0)).expect("a route");
        }
        world
    }

    /// Returns the route of `host` to the address of the other, over one of the two wires.
    fn to_peer(host: usize, wire: u32) -> RouteSpec {
        let (prefix, via) =
            (format!("192.0.2.{}/32", 2 - host), format!("10.{wire}.0.{}", 2 - host));
        let source = format!("192.0.2.{}", host + 1).parse().expect("an address");
        RouteSpec {
            prefsrc: Some(source),
            ..RouteSpec::via(prefix.parse().expect("a prefix"), via.parse().expect("one"))
        }
    }

    /// Returns the route of `host` to the address of the other, over both wires.
    fn over_both(host: usize, weights: [u32; 2]) -> RouteSpec {
        let hop = |wire: u32| HopSpec {
            via: to_peer(host, wire).via,
            device: None,
            weight: u16::try_from(weights[wire as usize]).expect("small"),
        };
        RouteSpec { via: None, hops: vec![hop(0), hop(1)], ..to_peer(host, 0) }
    }

    /// Makes one change to the routes of one host; a refused change has no effect.
    fn change(world: &mut World) {
        let number = world.cx.rng.below(2) as usize;
        let wire = world.cx.rng.below(2);
        let to = to_peer(number, wire);
        let host = Arc::clone(&world.hosts[number]);
        match world.cx.rng.below(16) {
            // Refused while the wire is down.
            0..5 => drop(host.replace_route(&to)),
            5 | 6 => {
                let mtu = 600 + world.cx.rng.below(800);
                drop(host.replace_route(&RouteSpec { mtu: Some(mtu), ..to }));
            }
            7 => drop(host.add_route(&RouteSpec { metric: 1 + wire, ..to })),
            8 => drop(host.delete_route(&to)),
            9 => drop(host.delete_route(&RouteSpec { metric: 1 + wire, ..to })),
            10 => {
                let hole = RouteSpec::of(to.prefix, RouteKind::Blackhole);
                host.replace_route(&hole).expect("a route");
            }
            11 => host.invalidate_routes(),
            // Both wires; refused while one is down.
            14 => drop(host.replace_route(&over_both(number, [1 + wire, 2]))),
            15 => {
                let prohibited = RouteSpec::of(to.prefix, RouteKind::Prohibit);
                host.replace_route(&prohibited).expect("a route");
            }
            up => {
                let changed = host.set_device_up(&mut world.cx, DeviceIndex(1 + wire), up == 12);
                changed.expect("it is there");
            }
        }
    }

    fn connect(world: &mut World) -> (Arc<Connection>, Arc<Connection>, Arc<Listener>) {
        let (client, server) = (Arc::clone(&world.hosts[0]), Arc::clone(&world.hosts[1]));
        let at = SocketAddr::new([192, 0, 2, 2].into(), 80);
        let listener = Listener::listen(&server, &mut world.cx, at, 8).expect("a free port");
        let socket = Connection::connect(&client, &mut world.cx, None, at).expect("a route");
        let mut accepted = None;
        let connected = world.run(Duration::from_secs(100), |_| {
            accepted = accepted.take().or_else(|| listener.accept().ok());
            accepted.is_some() && socket.readiness().contains(Readiness::WRITE)
        });
        assert_eq!(connected, Ok(()));
        (socket, accepted.expect("just seen"), listener)
    }

    fn play(seed: u64) -> u64 {
        let mut world = world(seed);
        let (client, server, listener) = connect(&mut world);
        let (up, down) = (Pattern(seed), Pattern(!seed));
        let mut senders = [
            Sender::new(0, Arc::clone(&client), up, LENGTH),
            Sender::new(1, Arc::clone(&server), down, LENGTH),
        ];
        let mut receivers = [
            Receiver::new(1, Arc::clone(&server), up, 8192),
            Receiver::new(0, Arc::clone(&client), down, 8192),
        ];
        let mut next = world.cx.now;
        let mut changes = 0;
        let done = world.run(Duration::from_secs(1000), |world| {
            // Changes stop after some time; otherwise a run could starve, because every other
            // change breaks the path.
            while next <= world.cx.now && changes < 400 {
                next += Duration::from_micros(u64::from(world.cx.rng.below(CHANGE_US_MAX)));
                change(world);
                changes += 1;
                if changes == 400 {
                    for host in 0..2 {
                        restore_path(world, host);
                    }
                }
            }
            for host in world.hosts.clone() {
                host.check(&mut world.cx, |_, _| {});
            }
            let mut all = true;
            senders.iter_mut().for_each(|sender| all &= sender.step(world));
            receivers.iter_mut().for_each(|receiver| all &= receiver.step(world));
            all
        });
        assert_eq!(done, Ok(()), "seed {seed}: {changes} changes");
        let moved = (0..2)
            .map(|host| world.hosts[host].counters())
            .map(|counters| counters.get("RxDstInvalidated").expect("a counter"));
        let moved = moved.sum();
        for host in 0..2 {
            restore_path(&mut world, host);
        }
        client.abort(&Arc::clone(&world.hosts[0]), &mut world.cx);
        server.abort(&Arc::clone(&world.hosts[1]), &mut world.cx);
        listener.close(&Arc::clone(&world.hosts[1]), &mut world.cx);
        drop((client, server, senders, receivers));
        world.pass(Duration::from_secs(200));
        assert_eq!(world.packets_alive(), 0, "seed {seed}");
        for host in &world.hosts {
            assert!(host.dst_entries().iter().all(|entry| entry.refs == 1), "seed {seed}");
        }
        moved
    }

    fn restore_path(world: &mut World, number: usize) {
        let host = Arc::clone(&world.hosts[number]);
        for device in [DeviceIndex(1), DeviceIndex(2)] {
            host.set_device_up(&mut world.cx, device, true).expect("it is there");
        }
        host.replace_route(&to_peer(number, 1)).expect("a route");
    }

    #[test]
    fn streams_survive_every_change_of_routes() {
        let moved: u64 = seeds().map(play).sum();
        assert!(moved > 0, "no connection changed its route");
    }
}
