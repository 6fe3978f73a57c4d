//! Structures and constants of the kernel that no dependency provides: bpf(2), transmit metadata of
//! AF_XDP.
//!
//! Above: `program`, `transmit`. Linux: include/uapi/linux/bpf.h, include/uapi/linux/if_xdp.h,
//! include/uapi/linux/if_link.h.
//!
//! Sizes and offsets are asserted at the declarations.

use std::mem::{offset_of, size_of};

pub(super) const BPF_MAP_CREATE: libc::c_int = 0;
pub(super) const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
pub(super) const BPF_PROG_LOAD: libc::c_int = 5;
pub(super) const BPF_LINK_CREATE: libc::c_int = 28;

pub(super) const BPF_MAP_TYPE_XSKMAP: u32 = 17;
pub(super) const BPF_PROG_TYPE_XDP: u32 = 6;
/// Attach type.
pub(super) const BPF_XDP: u32 = 37;

/// The program runs on socket buffers, with every driver.
pub(super) const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
/// The program runs in the driver.
pub(super) const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// Passes the frame to the kernel's stack.
pub(super) const XDP_PASS: i32 = 2;
/// The helper that finds a socket in a map and redirects to it.
pub(super) const BPF_FUNC_REDIRECT_MAP: i32 = 51;
/// Offset of `rx_queue_index` in `struct xdp_md`.
pub(super) const XDP_MD_RX_QUEUE_INDEX: i16 = 16;

/// Bytes of an object's name with its terminating zero.
pub(super) const BPF_OBJ_NAME_LEN: usize = 16;

/// The member of `union bpf_attr` for BPF_MAP_CREATE.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MapCreate {
    pub(super) map_type: u32,
    pub(super) key_size: u32,
    pub(super) value_size: u32,
    pub(super) max_entries: u32,
    pub(super) map_flags: u32,
    pub(super) inner_map_fd: u32,
    pub(super) numa_node: u32,
    pub(super) map_name: [u8; BPF_OBJ_NAME_LEN],
}

const _: () = assert!(size_of::<MapCreate>() == 44 && offset_of!(MapCreate, map_name) == 28);

/// The member of `union bpf_attr` for BPF_MAP_UPDATE_ELEM.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MapUpdate {
    pub(super) map_fd: u32,
    pub(super) padding: u32,
    /// Pointer to the key.
    pub(super) key: u64,
    /// Pointer to the value.
    pub(super) value: u64,
    pub(super) flags: u64,
}

const _: () = assert!(size_of::<MapUpdate>() == 32 && offset_of!(MapUpdate, key) == 8);

/// The member of `union bpf_attr` for BPF_PROG_LOAD.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ProgLoad {
    pub(super) prog_type: u32,
    pub(super) insn_cnt: u32,
    /// Pointer to the instructions.
    pub(super) insns: u64,
    /// Pointer to the license, a zero-terminated text.
    pub(super) license: u64,
    pub(super) log_level: u32,
    pub(super) log_size: u32,
    /// Pointer to the verifier's log.
    pub(super) log_buf: u64,
    pub(super) kern_version: u32,
    pub(super) prog_flags: u32,
    pub(super) prog_name: [u8; BPF_OBJ_NAME_LEN],
    pub(super) prog_ifindex: u32,
    pub(super) expected_attach_type: u32,
}

const _: () = assert!(
    size_of::<ProgLoad>() == 72
        && offset_of!(ProgLoad, insns) == 8
        && offset_of!(ProgLoad, log_buf) == 32
        && offset_of!(ProgLoad, prog_name) == 48
        && offset_of!(ProgLoad, expected_attach_type) == 68
);

/// The member of `union bpf_attr` for BPF_LINK_CREATE.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LinkCreate {
    pub(super) prog_fd: u32,
    pub(super) target_ifindex: u32,
    pub(super) attach_type: u32,
    pub(super) flags: u32,
}

const _: () = assert!(size_of::<LinkCreate>() == 16);

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Insn {
    pub(super) code: u8,
    /// Destination and source register, four bits each.
    pub(super) registers: u8,
    pub(super) offset: i16,
    pub(super) immediate: i32,
}

const _: () = assert!(size_of::<Insn>() == 8 && offset_of!(Insn, immediate) == 4);

impl Insn {
    /// Builds one instruction. The two registers are bit fields, whose order depends on the byte
    /// order of the machine.
    pub(super) const fn new(code: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> Self {
        let registers =
            if cfg!(target_endian = "little") { src << 4 | dst } else { dst << 4 | src };
        Self { code, registers, offset, immediate }
    }
}

/// Flag of the UMEM: chunks have room for metadata in front of a sent frame.
pub(super) const XDP_UMEM_TX_METADATA_LEN: u32 = 1 << 2;
/// Descriptor option: metadata precedes this frame.
pub(super) const XDP_TX_METADATA: u32 = 1 << 1;

/// Bytes in front of every sent frame. `struct xsk_tx_metadata` has 24; the kernel requires a
/// multiple of 8, and 32 keeps the frame aligned for a fast copy.
pub(super) const TX_METADATA_LEN: u32 = 32;

/// Returns the metadata that requests a checksum: `flags` = XDP_TXMD_FLAGS_CHECKSUM, then
/// `csum_start` and `csum_offset`, counted from the frame's first byte.
pub(super) const fn checksum_request(start: u16, offset: u16) -> [u8; 12] {
    const FLAGS: [u8; 8] = 2u64.to_ne_bytes();
    let [f0, f1, f2, f3, f4, f5, f6, f7] = FLAGS;
    let [s0, s1] = start.to_ne_bytes();
    let [o0, o1] = offset.to_ne_bytes();
    [f0, f1, f2, f3, f4, f5, f6, f7, s0, s1, o0, o1]
}

const _: () = assert!(
    offset_of!(libc::xsk_tx_metadata, xsk_tx_metadata_union) == 8
        && offset_of!(libc::xsk_tx_metadata_request, csum_start) == 0
        && offset_of!(libc::xsk_tx_metadata_request, csum_offset) == 2
);
