//! Sending without a copy: buffers that are sent and written repeatedly, files, writes with
//! `MSG_MORE`.

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{ErrorKind, Read, Write},
        net::SocketAddr,
        thread,
        time::Duration,
    };

    use quietline::{SendBuffer, SendFlags, Stack, TcpListener, TcpStream, Wire, WireConfig};

    const SERVER: &str = "10.0.0.2";
    const LEN: usize = 300_000;

    fn connected() -> (Stack, TcpStream, TcpStream) {
        let (left, right) = Wire::pair(&WireConfig::default()).unwrap();
        let client = Stack::builder().device(left).address("10.0.0.1/24".parse().unwrap());
        let server =
            Stack::builder().device(right).address(format!("{SERVER}/24").parse().unwrap());
        let (client, server) = (client.build().unwrap(), server.build().unwrap());
        let at = SocketAddr::new(SERVER.parse().unwrap(), 0);
        let listener = TcpListener::bind(&server, at).unwrap();
        let stream = TcpStream::connect(&client, listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        (client, stream, accepted)
    }

    fn bytes(salt: usize) -> Vec<u8> {
        (0..LEN).map(|at| u8::try_from((at * 7 + salt) % 251).unwrap()).collect()
    }

    fn send_all(stream: &TcpStream, buffer: &SendBuffer) {
        let mut sent = 0;
        while sent < buffer.len() {
            sent += stream.send_buffer(buffer, sent..buffer.len(), SendFlags::empty()).unwrap();
        }
    }

    fn read_len(stream: &mut TcpStream) -> Vec<u8> {
        let mut got = vec![0; LEN];
        stream.read_exact(&mut got).unwrap();
        got
    }

    #[test]
    fn a_buffer_is_sent_twice_and_then_written_again() {
        let (client, stream, mut peer) = connected();
        let mut buffer = SendBuffer::new(&client, LEN).unwrap();
        buffer.write_at(0, &bytes(0)).unwrap();
        let reader = thread::spawn(move || [(); 3].map(|()| read_len(&mut peer)));
        send_all(&stream, &buffer);
        send_all(&stream, &buffer);
        buffer.wait_idle(Some(Duration::from_secs(30))).unwrap();
        buffer.write_at(0, &bytes(1)).unwrap();
        send_all(&stream, &buffer);
        let [first, second, third] = reader.join().unwrap();
        assert!(
            first == bytes(0) && second == bytes(0),
            "the data sent is the data written before"
        );
        assert!(third == bytes(1));
        buffer.wait_idle(Some(Duration::from_secs(30))).unwrap();
    }

    /// The peer is a stack of this process and has not read: its receive queue holds the same
    /// pages.
    #[test]
    fn a_buffer_in_flight_cannot_be_written() {
        let (client, stream, mut peer) = connected();
        let mut buffer = SendBuffer::new(&client, 1000).unwrap();
        stream.send_buffer(&buffer, 0..1000, SendFlags::empty()).unwrap();
        assert!(!buffer.is_idle());
        assert_eq!(buffer.write_at(0, b"no").unwrap_err().kind(), ErrorKind::WouldBlock);
        let early = buffer.wait_idle(Some(Duration::from_millis(5))).unwrap_err();
        assert_eq!(early.kind(), ErrorKind::TimedOut);
        let busy = stream.send_buffer(&buffer, 0..1, SendFlags::empty()).unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::ResourceBusy);
        let mut got = [1; 1000];
        peer.read_exact(&mut got).unwrap();
        buffer.wait_idle(None).unwrap();
        assert!(buffer.is_idle());
        buffer.write_at(998, b"ok").unwrap();
        stream.send_buffer(&buffer, 998..1000, SendFlags::empty()).unwrap();
        peer.read_exact(&mut got[..2]).unwrap();
        assert_eq!(&got[..2], b"ok");
    }

    #[test]
    fn bad_ranges_are_refused() {
        let (client, stream, _peer) = connected();
        let mut buffer = SendBuffer::new(&client, 10).unwrap();
        for error in [
            SendBuffer::new(&client, 0).unwrap_err(),
            stream.send_buffer(&buffer, 0..11, SendFlags::empty()).unwrap_err(),
            #[expect(clippy::reversed_empty_ranges, reason = "this is the bad input")]
            stream.send_buffer(&buffer, 5..4, SendFlags::empty()).unwrap_err(),
            buffer.write_at(9, b"no").unwrap_err(),
            buffer.write_at(usize::MAX, b"no").unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn a_file_is_sent_from_an_offset_to_its_end() {
        let (_client, stream, mut peer) = connected();
        let path = std::env::temp_dir().join(format!("quietline-send-file-{}", std::process::id()));
        File::create(&path).unwrap().write_all(&bytes(0)).unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let reader = thread::spawn(move || {
            let mut got = Vec::new();
            peer.read_to_end(&mut got).unwrap();
            got
        });
        // More than the file has, a part of it, and nothing beyond its end.
        assert_eq!(stream.send_file(&file, 1000, u64::MAX).unwrap(), LEN as u64 - 1000);
        assert_eq!(stream.send_file(&file, 0, 1000).unwrap(), 1000);
        assert_eq!(stream.send_file(&file, LEN as u64, 1).unwrap(), 0);
        drop(stream);
        let mut expected = bytes(0)[1000..].to_vec();
        expected.extend_from_slice(&bytes(0)[..1000]);
        assert!(reader.join().unwrap() == expected);
    }

    /// A pipe cannot be read at an offset.
    #[test]
    fn a_file_without_offsets_is_an_error() {
        let (_client, stream, _peer) = connected();
        let (reader, _writer) = std::io::pipe().unwrap();
        let pipe = File::from(std::os::fd::OwnedFd::from(reader));
        assert_eq!(stream.send_file(&pipe, 0, 1).unwrap_err().kind(), ErrorKind::NotSeekable);
    }

    #[test]
    fn a_write_with_more_shares_a_segment_with_the_next() {
        let (_client, stream, mut peer) = connected();
        for (flags, segments) in [(SendFlags::empty(), 2), (SendFlags::MORE, 1)] {
            let before = stream.tcp_info().unwrap().data_segs_out;
            stream.set_nodelay(true).unwrap();
            stream.send_with_flags(b"head", flags).unwrap();
            stream.send_with_flags(b"body", SendFlags::empty()).unwrap();
            let mut got = [0; 8];
            peer.read_exact(&mut got).unwrap();
            assert_eq!(&got, b"headbody");
            assert_eq!(stream.tcp_info().unwrap().data_segs_out - before, segments);
        }
    }
}
