//! A connection over a long wire starts as fast as the wire allows: no step waits for a timer.

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use sim::{
        World,
        apps::{Pattern, Receiver, Sender, connect, listen},
    };
    use stack::device::{Impairment, WireConfig};

    #[test]
    fn connect_and_first_data_take_four_and_a_half_round_trips() {
        let path = Impairment {
            rate_bps: Some(100_000_000),
            delay: Duration::from_millis(10),
            ..Impairment::default()
        };
        let wire = WireConfig { forward: path, backward: path, ..WireConfig::default() };
        let mut world = World::pair(1, &wire).expect("a valid wire");
        let listener = listen(&mut world, 80);
        let (client, server) = connect(&mut world, &listener);
        // ARP request and reply, SYN, SYN-ACK, ACK.
        assert!(
            world.elapsed() < Duration::from_millis(55),
            "connected after {:?}",
            world.elapsed()
        );
        let mut sender = Sender::new(0, client, Pattern(1), 1000);
        let mut receiver = Receiver::new(1, Arc::clone(&server), Pattern(1), 1000);
        let limit = Duration::from_secs(10);
        let done = world.run(limit, |world| {
            sender.step(world);
            receiver.step(world);
            receiver.received() == 1000
        });
        assert_eq!(done, Ok(()));
        assert!(world.elapsed() < Duration::from_millis(70), "data after {:?}", world.elapsed());
    }
}
