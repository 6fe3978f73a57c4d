//! Devices that are taken down, up and removed while other threads use streams.

#[cfg(test)]
mod tests {
    use std::{
        io::{ErrorKind, Read, Write},
        sync::{Arc, Weak},
        thread,
        time::Duration,
    };

    use quietline::{
        Event, Route, Stack, StackBuilder, TcpListener, TcpStream, Wire, WireConfig,
        device::{Capture, CaptureConfig},
    };

    fn route(text: &str) -> Route {
        text.parse().expect("a route")
    }

    fn wire(name: &str) -> (Arc<Wire>, Arc<Wire>) {
        Wire::pair(&WireConfig { name: name.to_owned(), ..WireConfig::default() }).expect("a wire")
    }

    /// Returns two stacks joined by a red and a blue wire. Each has its own address, 192.0.2.1 or
    /// 192.0.2.2, on a third device that stays. Red is the preferred path.
    fn stacks() -> ([Stack; 2], Weak<Wire>) {
        let ((red0, red1), (blue0, blue1)) = (wire("red"), wire("blue"));
        let watched = Arc::downgrade(&red0);
        let stack = |number: u8, red, blue| {
            let (own, _unused) = wire("own");
            let address = |text: String| text.parse().expect("an address");
            Stack::builder()
                .name(format!("devices{number}"))
                .device(own)
                .address(address(format!("192.0.2.{number}/32")))
                .device(red)
                .address(address(format!("10.0.0.{number}/24")))
                .device(blue)
                .address(address(format!("10.1.0.{number}/24")))
                .build()
                .expect("valid")
        };
        let stacks = [stack(1, red0, blue0), stack(2, red1, blue1)];
        for number in 0..2 {
            set_route(&stacks, number, "10.0.0", 1);
            set_route(&stacks, number, "10.1.0", 2);
        }
        (stacks, watched)
    }

    /// Sets a route of one stack to the other's own address.
    fn set_route(stacks: &[Stack; 2], number: usize, net: &str, metric: u32) {
        let (own, peer) = (number + 1, 2 - number);
        let text = format!("192.0.2.{peer} via {net}.{peer} src 192.0.2.{own} metric {metric}");
        stacks[number].replace_route(&route(&text)).expect("the device is up");
    }

    /// Takes both ends of a wire up or down.
    fn set_up(stacks: &[Stack; 2], color: &str, up: bool) {
        for (end, stack) in stacks.iter().enumerate() {
            stack.set_device_up(&format!("{color}{end}"), up).expect("the device exists");
        }
    }

    fn byte(at: usize) -> u8 {
        (at.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]
    }

    #[test]
    fn streams_continue_when_their_devices_are_removed() {
        const BYTES: usize = 24 << 20;
        let (stacks, red) = stacks();
        let at = "192.0.2.2:80";
        let listener = TcpListener::bind(&stacks[1], at).expect("free");
        let mut out = TcpStream::connect(&stacks[0], at).expect("a route");
        let (mut into, _) = listener.accept().expect("established");
        thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let bytes: Vec<u8> = (0..BYTES).map(byte).collect();
                for part in bytes.chunks(10_000) {
                    out.write_all(part).expect("open");
                }
                out
            });
            let receiver = scope.spawn(|| {
                let mut buf = vec![0; BYTES];
                into.read_exact(&mut buf).expect("open");
                assert!(buf.iter().enumerate().all(|(at, got)| *got == byte(at)), "content");
                into
            });
            for turn in 0..40 {
                let (color, net, metric) =
                    if turn % 2 == 0 { ("red", "10.0.0", 1) } else { ("blue", "10.1.0", 2) };
                set_up(&stacks, color, false);
                thread::sleep(Duration::from_millis(2));
                set_up(&stacks, color, true);
                for number in 0..2 {
                    set_route(&stacks, number, net, metric);
                }
                thread::sleep(Duration::from_millis(2));
            }
            let (mut out, mut into) =
                (sender.join().expect("sent"), receiver.join().expect("read"));
            // The stream is idle, and holds a route entry through red.
            set_up(&stacks, "blue", false);
            out.write_all(b"red").expect("open");
            into.read_exact(&mut [0; 3]).expect("open");
            set_up(&stacks, "blue", true);
            for number in 0..2 {
                set_route(&stacks, number, "10.1.0", 2);
            }
            for (end, stack) in stacks.iter().enumerate() {
                stack.remove_device(&format!("red{end}")).expect("the device exists");
            }
            assert!(
                red.upgrade().is_none(),
                "the device is freed although the stream holds its route entry"
            );
            out.write_all(b"blue").expect("open");
            into.read_exact(&mut [0; 4]).expect("open");
        });
        let error = stacks[0].remove_device("red0").unwrap_err();
        assert_eq!(error.to_string(), "device red0: no such device");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    /// Returns two stacks joined by a wire, at 10.2.0.1 and 10.2.0.2.
    fn pair() -> [Stack; 2] {
        let (left, right) = wire("green");
        [(left, 1), (right, 2)].map(|(device, number)| {
            let address = format!("10.2.0.{number}/24").parse().expect("an address");
            Stack::builder().device(device).address(address).build().expect("valid")
        })
    }

    /// The removal of a device removes its address, and ends every socket that is bound to the
    /// address.
    #[test]
    fn sockets_of_a_lost_address_fail_and_an_event_reports_it() {
        let [near, far] = pair();
        let at: std::net::SocketAddr = "10.2.0.2:80".parse().expect("an address");
        let listener = TcpListener::bind(&far, at).expect("free");
        let anywhere = TcpListener::bind(&far, "0.0.0.0:81").expect("free");
        let mut out = TcpStream::connect(&near, at).expect("a route");
        let (mut into, _) = listener.accept().expect("established");
        out.write_all(b"before").expect("open");
        into.read_exact(&mut [0; 3]).expect("open");
        let kind = |error: std::io::Error| (error.kind(), error.raw_os_error());
        let down = (ErrorKind::NetworkDown, Some(100));
        thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept().map(drop));
            let reading = scope.spawn(|| {
                let mut rest = [0; 3];
                into.read_exact(&mut rest).expect("the data received before");
                assert_eq!(&rest, b"ore");
                into.read(&mut rest)
            });
            thread::sleep(Duration::from_millis(20));
            far.remove_device("green1").expect("the device exists");
            assert_eq!(accepting.join().expect("no panic").map_err(kind), Err(down));
            assert_eq!(reading.join().expect("no panic").map_err(kind), Err(down));
        });
        assert_eq!(into.write(b"after").map_err(kind), Err((ErrorKind::BrokenPipe, Some(32))));
        assert_eq!(listener.accept().map(drop).map_err(kind), Err(down));
        anywhere.set_nonblocking(true).expect("an option");
        let waits = anywhere.accept().map(drop).map_err(|error| error.kind());
        assert_eq!(waits, Err(ErrorKind::WouldBlock), "the listener also has the loopback address");
        let unreachable = TcpStream::connect(&far, "10.2.0.1:80");
        assert_eq!(unreachable.map(drop).map_err(kind).unwrap_err().1, Some(101), "ENETUNREACH");
        let mut events = far.events();
        let gone = Event::DeviceGone { device: "green1".to_owned() };
        assert_eq!(events.try_next(), Some(gone));
        far.shutdown();
        assert_eq!(events.next(), None);
    }

    /// Returns the error text of `build`.
    fn refusal(builder: StackBuilder) -> String {
        let error = builder.build().expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        error.to_string()
    }

    #[test]
    fn unusable_devices_are_refused() {
        let (left, right) = wire("twice");
        let twice = Stack::builder().device(Arc::clone(&left)).device(Arc::clone(&left));
        assert_eq!(refusal(twice), "device twice0: given twice: a stack takes each device once");
        let file = tempfile::NamedTempFile::new().expect("a file");
        let capture = Capture::create(file.path(), &CaptureConfig::default()).expect("a capture");
        let twice = Stack::builder().device(Arc::clone(&left)).device(Arc::clone(&left));
        assert_eq!(
            refusal(twice.capture(capture)),
            "device twice0: given twice: a stack takes each device once"
        );
        let (namesake, _) = wire("twice");
        let named = Stack::builder().device(Arc::clone(&left)).device(namesake);
        assert!(refusal(named).starts_with("device name twice0: "));
        let first = Stack::builder().device(Arc::clone(&left)).build().expect("valid");
        let second = refusal(Stack::builder().device(left));
        assert_eq!(second, "device twice0: expected a device that belongs to no other stack");
        // The other end is unused.
        drop((first, Stack::builder().device(right).build().expect("valid")));
    }

    #[test]
    fn an_mtu_that_holds_no_segment_is_refused() {
        let wire = |mtu| {
            let config = WireConfig { name: "narrow".to_owned(), mtu, ..WireConfig::default() };
            Wire::pair(&config).expect("a wire").0
        };
        let text = refusal(Stack::builder().device(wire(87)));
        assert!(text.starts_with("mtu 87: expected at least 88"), "{text}");
        assert!(Stack::builder().device(wire(88)).build().is_ok());
        let larger = Stack::builder().sysctl("net.ipv4.tcp_min_snd_mss", "536").device(wire(500));
        assert!(refusal(larger).starts_with("mtu 500: expected at least 576"));
    }

    /// RFC 8200 §5.
    #[test]
    fn a_link_that_is_too_narrow_for_ipv6_is_refused() {
        let build = |mtu| {
            let config = WireConfig { name: "narrow".to_owned(), mtu, ..WireConfig::default() };
            let (device, _) = Wire::pair(&config).expect("a wire");
            Stack::builder().device(device).address("fd00::1/64".parse().expect("a prefix"))
        };
        let text = refusal(build(1279));
        assert!(text.starts_with("mtu 1279: expected at least 1280"), "{text}");
        assert!(build(1280).build().is_ok());
        let routed = Stack::builder()
            .route("fd00::/64".parse().expect("a prefix"), "fe80::1".parse().expect("an address"));
        assert!(refusal(routed).starts_with("route via fe80::1: expected a device"));
    }

    #[test]
    fn a_stack_does_not_start_if_another_has_its_address() {
        let (left, right) = wire("same");
        let stack = |device| {
            Stack::builder()
                .device(device)
                .address("10.3.0.1/24".parse().expect("an address"))
                .sysctl("net.quietline.acd_probes", "3")
                .sysctl("net.quietline.acd_interval_ms", "20")
        };
        let first = stack(left).build().expect("no other station has the address");
        let error = stack(right).build().expect_err("the address is taken");
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        assert!(error.to_string().contains("10.3.0.1"), "{error}");
        let ready = first.events().try_next();
        assert!(matches!(ready, Some(Event::AddressReady { .. })), "{ready:?}");
    }
}
