//! Devices that are taken down, up and away under streams of other threads.

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        sync::{Arc, Weak},
        thread,
        time::Duration,
    };

    use quietline::{Route, Stack, TcpListener, TcpStream, Wire, WireConfig};

    fn route(text: &str) -> Route {
        text.parse().expect("a route")
    }

    fn wire(name: &str) -> (Arc<Wire>, Arc<Wire>) {
        Wire::pair(&WireConfig { name: name.to_owned(), ..WireConfig::default() }).expect("a wire")
    }

    /// Two stacks joined by a red and a blue wire, each with an address of its own on a device that stays: 192.0.2.1 and
    /// 192.0.2.2. Red is the better way.
    fn stacks() -> ([Stack; 2], Weak<Wire>) {
        let ((red0, red1), (blue0, blue1)) = (wire("red"), wire("blue"));
        let watched = Arc::downgrade(&red0);
        let stack = |number: u8, red, blue| {
            let (own, _nobody) = wire("own");
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
            lead(&stacks, number, "10.0.0", 1);
            lead(&stacks, number, "10.1.0", 2);
        }
        (stacks, watched)
    }

    /// A route of one stack to the other's own address.
    fn lead(stacks: &[Stack; 2], number: usize, net: &str, metric: u32) {
        let (own, peer) = (number + 1, 2 - number);
        let text = format!("192.0.2.{peer} via {net}.{peer} src 192.0.2.{own} metric {metric}");
        stacks[number].replace_route(&route(&text)).expect("its device is up");
    }

    /// Both ends of a wire at once.
    fn set_up(stacks: &[Stack; 2], color: &str, up: bool) {
        for (end, stack) in stacks.iter().enumerate() {
            stack.set_device_up(&format!("{color}{end}"), up).expect("it is there");
        }
    }

    fn byte(at: usize) -> u8 {
        (at.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]
    }

    #[test]
    fn streams_survive_their_devices() {
        const BYTES: usize = 24 << 20;
        let (stacks, red) = stacks();
        let at = "192.0.2.2:80".parse().expect("an address");
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
                    lead(&stacks, number, net, metric);
                }
                thread::sleep(Duration::from_millis(2));
            }
            let (mut out, mut into) =
                (sender.join().expect("sent"), receiver.join().expect("read"));
            // The stream is idle, and holds an entry that leads by red.
            set_up(&stacks, "blue", false);
            out.write_all(b"red").expect("open");
            into.read_exact(&mut [0; 3]).expect("open");
            set_up(&stacks, "blue", true);
            for number in 0..2 {
                lead(&stacks, number, "10.1.0", 2);
            }
            for (end, stack) in stacks.iter().enumerate() {
                stack.remove_device(&format!("red{end}")).expect("it is there");
            }
            assert!(red.upgrade().is_none(), "freed, though the stream holds an entry of it");
            out.write_all(b"blue").expect("open");
            into.read_exact(&mut [0; 4]).expect("open");
        });
        let error = stacks[0].remove_device("red0").unwrap_err();
        assert_eq!(error.to_string(), "device: red0: the name of a device of this stack");
    }
}
