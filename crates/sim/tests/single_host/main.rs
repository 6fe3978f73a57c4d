//! The spine of crate stack, one host at a time: link, IP, ICMP, listeners, remnants, cores. Each test looks at the frames
//! that come out for the frames that went in.

#[cfg(test)]
mod arp;
#[cfg(test)]
mod arp_strict;
#[cfg(test)]
mod connect;
#[cfg(test)]
mod core;
#[cfg(test)]
mod fast_open;
#[cfg(test)]
mod icmp;
#[cfg(test)]
mod idle;
#[cfg(test)]
mod ip_id;
#[cfg(test)]
mod ip_input;
#[cfg(test)]
mod listener;
#[cfg(test)]
mod neighbors;
#[cfg(test)]
mod path_mtu;
#[cfg(test)]
mod ports;
#[cfg(test)]
mod rp_filter;
#[cfg(test)]
mod source_limit;
#[cfg(test)]
mod stations;
#[cfg(test)]
mod syn_cookies;
#[cfg(test)]
mod time_wait;
