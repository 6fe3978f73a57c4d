//! Completion of a partial checksum in software, for packets whose device or reader cannot complete
//! it.
//!
//! Above: `tun::transmit` without vnet_hdr, `capture`. Linux: `skb_checksum_help`.
//!
//! A partial checksum field holds the folded sum of the pseudo header. The sum of all bytes from
//! `start` to the end of the packet, the field included, is therefore the sum of the whole
//! checksum.

use pkt::{DropReason, Packet, TxChecksum};

/// Returns the position of the checksum in `packet` and its value in network byte order. `start`
/// and `offset` are as in [`TxChecksum::Partial`]; the packet begins with `link_header_len` bytes
/// of link header. Returns `None` if they do not fit the packet.
pub(super) fn completed_checksum(
    packet: &Packet,
    link_header_len: u16,
    start: u16,
    offset: u16,
) -> Option<(usize, [u8; 2])> {
    let start = usize::from(link_header_len) + usize::from(start);
    let position = start + usize::from(offset);
    if position + 2 > packet.len() {
        return None;
    }
    let value = match packet.checksum(start, packet.len() - start).finish() {
        // Zero in a UDP header means "no checksum" (RFC 768); 0xffff is equivalent for all other
        // protocols.
        0 => 0xffff,
        value => value,
    };
    Some((position, value.to_be_bytes()))
}

/// Completes the checksum of `packet` in place if it is partial.
///
/// # Errors
/// [`DropReason::VnetHeader`] if the packet's metadata does not fit the packet.
pub(super) fn complete_tx_checksum(
    packet: &mut Packet,
    link_header_len: u16,
) -> Result<(), DropReason> {
    let TxChecksum::Partial { start, offset } = packet.meta().tx_checksum else { return Ok(()) };
    let (position, value) =
        completed_checksum(packet, link_header_len, start, offset).ok_or(DropReason::VnetHeader)?;
    // Headers of packets made here are linear already; those of a forwarded packet may not be.
    if !packet.require_linear(position + 2) {
        return Err(DropReason::VnetHeader);
    }
    let field =
        packet.linear_mut().get_mut(position..position + 2).ok_or(DropReason::VnetHeader)?;
    field.copy_from_slice(&value);
    packet.meta_mut().tx_checksum = TxChecksum::Done;
    Ok(())
}
