//! Timers do not accumulate: a connection uses a few entries of a core's wheel during its
//! whole lifetime.

#[cfg(test)]
mod tests {
    use std::{io::IoSlice, sync::Arc, time::Duration};

    use sim::{
        World,
        apps::{connect, listen},
    };
    use stack::{
        device::{Impairment, WireConfig},
        socket::Connection,
    };
    use tcp::Keepalive;

    /// More than the live deadlines of one connection and its neighbor entry, and the stale ones of
    /// the last second.
    const TIMERS_MAX: usize = 40;

    fn say(world: &mut World, host: usize, socket: &Connection) {
        let host = Arc::clone(&world.hosts[host]);
        let sent = socket.send(&host, &mut world.cx, &[IoSlice::new(b"hello")]);
        assert_eq!(sent, Ok(5));
    }

    fn hear(world: &mut World, host: usize, socket: &Connection) {
        let host = Arc::clone(&world.hosts[host]);
        while socket.recv(&host, &mut world.cx, &mut [0; 64], false).is_ok_and(|read| read > 0) {}
    }

    /// Both ends send every `pause`, for ten virtual minutes.
    fn converse(pause: Duration, keepalive: bool) {
        let slow = Impairment { delay: Duration::from_millis(15), ..Impairment::default() };
        let wire = WireConfig { forward: slow, backward: slow, ..WireConfig::default() };
        let mut world = World::pair(1, &wire).expect("a valid wire");
        let listener = listen(&mut world, 80);
        let (client, server) = connect(&mut world, &listener);
        if keepalive {
            let host = Arc::clone(&world.hosts[0]);
            client.with_tcb(&host, &mut world.cx, |tcb, cx| {
                tcb.set_keepalive(cx, Some(Keepalive::default()));
            });
        }
        let mut most = 0;
        for _ in 0..Duration::from_secs(600).as_millis() / pause.as_millis() {
            say(&mut world, 0, &client);
            world.pass(pause / 3);
            say(&mut world, 1, &server);
            world.pass(pause * 2 / 3);
            hear(&mut world, 0, &client);
            hear(&mut world, 1, &server);
            let armed = |host: &Arc<stack::host::Host>| host.cores()[0].timers_armed();
            most = most.max(world.hosts.iter().map(armed).max().unwrap_or(0));
        }
        assert!(most <= TIMERS_MAX, "{most} timers are armed for one connection");
    }

    #[test]
    fn a_busy_connection_arms_a_few_timers() {
        converse(Duration::from_millis(75), false);
    }

    #[test]
    fn an_idle_moment_costs_no_keepalive_timer() {
        converse(Duration::from_millis(900), true);
    }
}
