//! The laboratory's experiment about small queues on a queue of the kernel (`quietline lab tsq
//! --real IF`): a veth pair with `tbf`, kernel services on the far end.
//!
//! Not here: figures. The queue by the kernel's own count is in `queue`.

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    use anyhow::{Context as _, Result, ensure};
    use netns_tests::bottleneck::limit;
    use netns_tests::{KERNEL, Lab, STACK, Veth};
    use quietline_lab::experiment::{Observation, Setup};
    use quietline_lab::experiments::tsq::real::{Real, experiment};

    const SINK: u16 = 9;
    const ECHO: u16 = 7;

    /// Time after which a service looks whether it shall end.
    const PAUSE: Duration = Duration::from_millis(5);

    /// Number of runs of which one must be good: in the others the machine may keep the far end
    /// from running.
    const ROUNDS: usize = 4;

    /// Reads until the peer has ended or `ended` is set, and passes on what it reads.
    fn converse(mut stream: TcpStream, ended: &AtomicBool, echoes: bool) -> Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PAUSE))?;
        let mut buffer = vec![0; 1 << 20];
        while !ended.load(Ordering::Relaxed) {
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) if echoes => stream.write_all(&buffer[..count])?,
                Ok(_) => {}
                Err(error)
                    if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {}
                // A host that ends resets its connections.
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Serves each connection in a thread of its own: the reset of an earlier one may be lost.
    fn serve(port: u16, ended: &AtomicBool, echoes: bool) -> Result<()> {
        let listener = TcpListener::bind((KERNEL, port)).context("a service's port")?;
        listener.set_nonblocking(true)?;
        thread::scope(|scope| {
            while !ended.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => drop(scope.spawn(move || converse(stream, ended, echoes))),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(PAUSE),
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(())
        })
    }

    /// One run of an arm with one sender, on quietline's end of the link.
    fn observe(veth: &Veth, arm: &str, seed: u64) -> Result<Observation> {
        let real = Real {
            interface: Veth::OURS.to_owned(),
            address: format!("{STACK}/24"),
            peer: KERNEL.parse()?,
            sink: SINK,
            echo: ECHO,
        };
        let arm = arm.to_owned();
        veth.ours.enter(move || {
            let experiment = experiment(&real, true);
            let arm = experiment.arms.iter().find(|own| own.name == arm).context("an arm")?;
            let (warm_up, measure) = (Duration::ZERO, Duration::ZERO);
            let setup = Setup { condition: 0, arm, seed, warm_up, measure };
            (experiment.trial)(&setup).map_err(|error| anyhow::anyhow!("{}: {error}", arm.name))
        })
    }

    /// Metrics of the experiment by place.
    const BELOW_P99: usize = 1;
    const WAIT: usize = 2;
    const OTHERS_WAIT: usize = 4;
    const RTT: usize = 5;
    const THROUGHPUT: usize = 8;

    /// Times per bulk packet that a sender was stopped.
    fn throttled(observed: &Observation) -> f64 {
        let own = observed.counters.iter().find(|(name, _)| *name == "TsqThrottled");
        own.map_or(0.0, |(_, value)| *value)
    }

    #[test]
    fn the_experiment_sees_a_short_queue_with_a_limit_and_a_long_one_without() -> Result<()> {
        let test = "the_experiment_sees_a_short_queue_with_a_limit_and_a_long_one_without";
        let Some(lab) = Lab::open(test, &["tc"])? else { return Ok(()) };
        let veth = Veth::open(&lab.namespace)?;
        limit(&veth, "100mbit")?;
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            let services = [(SINK, false), (ECHO, true)].map(|(port, echoes)| {
                let (namespace, ended) = (&lab.namespace, &ended);
                scope.spawn(move || namespace.enter(|| serve(port, ended, echoes)))
            });
            let observed = rounds(&veth);
            ended.store(true, Ordering::Relaxed);
            for service in services {
                service.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            observed
        })
    }

    fn rounds(veth: &Veth) -> Result<()> {
        for round in 1.. {
            let [long, short] = ["off", "static131072_ge"].map(|arm| observe(veth, arm, round));
            let (long, short) = (long?, short?);
            ensure!(throttled(&long) < 1e-9 && throttled(&short) > 0.01, "{long:?}, {short:?}");
            // With the long queue, the other connection sends a packet in 120 ms.
            let fewest = long.series.iter().chain(&short.series).map(|own| own.points.len()).min();
            let (long, short) = (long.metrics, short.metrics);
            println!("off: {long:?}\nstatic131072_ge: {short:?}");
            // The limit and the packet that exceeds it, in KB of packet memory.
            ensure!(short[BELOW_P99] < 131.1 + 80.0, "{} KB below TCP", short[BELOW_P99]);
            // A round trip includes the time in the queue; the metrics are those of few packets.
            let is_good = fewest.is_some_and(|points| points >= 5)
                && long[BELOW_P99] > 500.0
                && [WAIT, OTHERS_WAIT, RTT].iter().all(|&own| long[own] > 4.0 * short[own])
                && long[RTT] > 0.8 * long[OTHERS_WAIT]
                && short[THROUGHPUT] > 60.0;
            if is_good {
                return Ok(());
            }
            ensure!(round < ROUNDS as u64, "off: {long:?}, limited: {short:?}, {fewest:?} points");
        }
        Ok(())
    }
}
