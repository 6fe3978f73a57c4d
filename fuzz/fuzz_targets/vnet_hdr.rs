//! The offload header of a tap, a tun or a packet socket, in front of any frame, and the header of
//! any packet that is sent.
//!
//! An accepted header becomes metadata that points inside the frame and describes all of it; a
//! refused header changes nothing. A header that this stack writes is accepted and read with the
//! same values.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pkt::{DropReason, Gso, GsoKind, Packet, Pool, RxChecksum, TxChecksum};
use quietline::device::vnet_hdr::VnetHdr;
use quietline_fuzz::{Input, with_pool};

/// Offset of the checksum in the TCP header.
const TCP_CSUM_OFFSET: u16 = 16;

/// Maximum number of frame bytes from the input, and of zeros behind them: a superframe of at most
/// 64 KB.
const BYTES_MAX: usize = 16 << 10;
const PADDING_MAX: usize = 40 << 10;

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let how = input.next_u8();
    let link_header_len = if how & 1 == 0 { 14 } else { 0 };
    let header = VnetHdr::from_bytes(input.array());
    assert_eq!(VnetHdr::from_bytes(header.to_bytes()), header);
    let owed = (input.next_u16(), input.next_u16());
    let gso = gso(how, input.next_u16());
    let padding = if how & 2 == 0 { 0 } else { usize::from(input.next_u16()) };
    with_pool(|pool| {
        let mut frame = frame(pool, input.0, padding.min(PADDING_MAX), how & 4 != 0);
        read(header, &mut frame, link_header_len);
        *frame.meta_mut() = pkt::PacketMeta::default();
        frame.meta_mut().gso = gso;
        if how & 8 == 0 {
            let (start, offset) = owed;
            frame.meta_mut().tx_checksum = TxChecksum::Partial { start, offset };
        }
        write(&mut frame, link_header_len);
        pool.free(frame);
    });
});

fn gso(how: u8, size: u16) -> Gso {
    let kind = match how >> 4 & 3 {
        0 => GsoKind::None,
        1 => GsoKind::TcpV6,
        _ => GsoKind::TcpV4,
    };
    Gso { kind, ecn: how & 64 != 0, fixed_id: false, size, segs: 2 }
}

/// Makes the frame as a device receives it, or with all of it in pages.
fn frame(pool: &mut Pool, bytes: &[u8], padding: usize, paged: bool) -> Packet {
    let bytes = &bytes[..bytes.len().min(BYTES_MAX)];
    let whole = [bytes, &vec![0; padding]].concat();
    if paged {
        return pool.alloc_from(&whole).expect("room for a frame");
    }
    let mut slot = pool.rx_slot(whole.len()).expect("memory for a frame");
    slot.write(&whole);
    slot.finish(pool, whole.len())
}

fn read(header: VnetHdr, frame: &mut Packet, link_header_len: u16) {
    let before = *frame.meta();
    match header.apply_to(frame, link_header_len) {
        Err(reason) => {
            assert_eq!(reason, DropReason::VnetHeader);
            assert_eq!(*frame.meta(), before);
        }
        Ok(()) => check(frame, link_header_len),
    }
}

/// Checks that the metadata describes bytes inside the frame, and all of them.
fn check(frame: &Packet, link_header_len: u16) {
    let meta = frame.meta();
    let RxChecksum::Partial { start, offset } = meta.rx_checksum else {
        assert_eq!(meta.gso.kind, GsoKind::None, "a superframe always has a partial checksum");
        return;
    };
    let tcp = usize::from(link_header_len) + usize::from(start);
    assert!(tcp + usize::from(offset) + 2 <= frame.len());
    let Gso { kind, size, segs, .. } = meta.gso;
    if kind == GsoKind::None {
        return;
    }
    let version = byte(frame, usize::from(link_header_len)) >> 4;
    assert_eq!(version, if kind == GsoKind::TcpV4 { 4 } else { 6 });
    assert_eq!(offset, TCP_CSUM_OFFSET);
    let payload = frame.len() - (tcp + usize::from(byte(frame, tcp + 12) >> 4) * 4);
    let (size, segs) = (usize::from(size), usize::from(segs));
    assert!(segs > 0 && payload <= size * segs && (segs == 1 || payload > size * (segs - 1)));
}

/// Returns a byte of the frame; 0 behind its end.
fn byte(frame: &Packet, at: usize) -> u8 {
    let mut byte = [0];
    frame.copy_to(at, &mut byte);
    byte[0]
}

fn write(frame: &mut Packet, link_header_len: u16) {
    let meta = *frame.meta();
    let header = match VnetHdr::of(frame, link_header_len) {
        Ok(header) => header,
        Err(reason) => return assert_eq!(reason, DropReason::VnetHeader),
    };
    let TxChecksum::Partial { start, offset } = meta.tx_checksum else {
        return assert_eq!(header, VnetHdr::default());
    };
    let first = byte(frame, usize::from(link_header_len));
    let version = if meta.gso.kind == GsoKind::TcpV6 { 6 } else { 4 };
    if header.gso_type != 0 && (first >> 4 != version || offset != TCP_CSUM_OFFSET) {
        // The stack makes no such superframe.
        return;
    }
    let header = VnetHdr::from_bytes(header.to_bytes());
    assert_eq!(header.apply_to(frame, link_header_len), Ok(()), "a header written by this stack");
    check(frame, link_header_len);
    assert_eq!(frame.meta().rx_checksum, RxChecksum::Partial { start, offset });
    let read = frame.meta().gso;
    if read.kind != GsoKind::None {
        assert_eq!((read.kind, read.ecn, read.size), (meta.gso.kind, meta.gso.ecn, meta.gso.size));
    }
}
