//! Control messages that come with a frame from a packet socket without a ring.
//!
//! Any bytes are read up to their end and no further. Messages in the kernel's format are read with
//! the values written.

#![no_main]

use std::cell::RefCell;
use std::ffi::c_int;

use libfuzzer_sys::fuzz_target;
use pkt::{DropReason, Pool};
use quietline::device::af_packet::fuzzing::{CONTROL_BYTES, Calls, Found};
use quietline_fuzz::{Input, with_pool};

/// Kinds of messages, as Linux numbers them.
const PACKET_AUXDATA: c_int = 8;
const SO_RXQ_OVFL: c_int = 40;

thread_local! {
    /// The count of dropped frames continues from run to run, as it does from frame to frame.
    static CALLS: RefCell<Calls> = RefCell::default();
}

/// Values of the well-formed messages.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    /// Status, length and tag of the last `PACKET_AUXDATA`.
    auxdata: Option<(u32, u32, u16)>,
    /// Number of messages with the count of dropped frames.
    counts: u32,
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let how = input.next_u8();
    let header = (how & 2 != 0).then(|| input.array());
    let frame = vec![0x45; usize::from(input.next_u16()) % 2000];
    with_pool(|pool| {
        let packet = pool.alloc_from(&frame).expect("room for a frame");
        CALLS.with_borrow_mut(|calls| {
            if how & 1 == 0 {
                let found = calls.take(&input.array(), header, packet);
                calls.take_losing();
                free(found, pool);
            } else {
                let (control, said) = messages(&mut input);
                let again = pool.alloc_from(&frame).expect("room for a frame");
                let found = calls.take(&control, None, packet);
                check(&found, said, frame.len());
                calls.take_losing();
                free(found, pool);
                free(calls.take(&control, header, again), pool);
                let losing = calls.take_losing();
                assert!(!losing || said.counts > 1, "the count has not changed");
            }
        });
    });
});

fn free(found: Found, pool: &mut Pool) {
    match found {
        Found::Good(packet) | Found::Bad(_, packet) => pool.free(packet),
        other => panic!("a frame without its packet: {other:?}"),
    };
}

/// Makes one message for each of the next bytes, as many as fit. The last message of a kind is
/// valid.
fn messages(input: &mut Input<'_>) -> ([u8; CONTROL_BYTES], Said) {
    let mut said = Said::default();
    let mut bytes = Vec::new();
    while let Some(kind) = input.byte() {
        let before = bytes.len();
        match kind % 3 {
            0 => {
                let (status, len, tag) = (input.next_u32(), input.next_u32(), input.next_u16());
                let mut data = [0; 20];
                data[..4].copy_from_slice(&status.to_ne_bytes());
                data[4..8].copy_from_slice(&len.to_ne_bytes());
                data[16..18].copy_from_slice(&tag.to_ne_bytes());
                push(&mut bytes, libc::SOL_PACKET, PACKET_AUXDATA, &data);
            }
            1 => {
                let dropped = input.next_u32();
                push(&mut bytes, libc::SOL_SOCKET, SO_RXQ_OVFL, &dropped.to_ne_bytes());
            }
            _ => {
                let (level, kind) =
                    (c_int::from(input.next_u8()) + 1000, c_int::from(input.next_u8()));
                let count = usize::from(input.next_u8() % 24);
                push(&mut bytes, level, kind, input.bytes(count));
            }
        }
        if bytes.len() > CONTROL_BYTES {
            bytes.truncate(before);
            break;
        }
        let data = &bytes[before + 16..];
        let word = |at: usize| u32::from_ne_bytes(*data[at..].first_chunk().expect("a word"));
        match kind % 3 {
            0 => said.auxdata = Some((word(0), word(4), (word(16) & 0xffff) as u16)),
            1 => said.counts += 1,
            _ => {}
        }
    }
    bytes.resize(CONTROL_BYTES, 0);
    (bytes.try_into().expect("as many bytes as there is room for"), said)
}

/// Appends a `struct cmsghdr` and the data, padded to a multiple of eight bytes.
fn push(bytes: &mut Vec<u8>, level: c_int, kind: c_int, data: &[u8]) {
    bytes.extend((16 + data.len()).to_ne_bytes());
    bytes.extend(level.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
}

fn check(found: &Found, said: Said, here: usize) {
    let (status, len, tag) = said.auxdata.unwrap_or((0, u32::try_from(here).unwrap_or(0), 0));
    let tagged = status & libc::TP_STATUS_VLAN_VALID != 0 && tag & 0xfff != 0;
    let expected = if here < len as usize {
        Some(DropReason::DeviceRxTruncated)
    } else if len < 14 {
        Some(DropReason::PacketTooShort)
    } else {
        tagged.then_some(DropReason::EthernetType)
    };
    match (found, expected) {
        (Found::Good(_), None) => {}
        (Found::Bad(reason, _), Some(expected)) => assert_eq!(*reason, expected),
        other => panic!("{other:?}: {said:?}"),
    }
}
