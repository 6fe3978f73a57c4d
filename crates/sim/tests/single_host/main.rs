//! One host opposite a peer made of bytes: link, IP, ICMP, listeners, TIME-WAIT, cores. Each test
//! checks the frames that the host sends for the frames it receives.

#[cfg(test)]
mod addresses;
#[cfg(test)]
mod arp;
#[cfg(test)]
mod arp_strict;
#[cfg(test)]
mod attacks;
#[cfg(test)]
mod autoconf;
#[cfg(test)]
mod connect;
#[cfg(test)]
mod core;
#[cfg(test)]
mod fast_open;
#[cfg(test)]
mod flows;
#[cfg(test)]
mod flows_udp;
#[cfg(test)]
mod fragments;
#[cfg(test)]
mod icmp;
#[cfg(test)]
mod idle;
#[cfg(test)]
mod ip_id;
#[cfg(test)]
mod ip_input;
#[cfg(test)]
mod ipv6;
#[cfg(test)]
mod ipv6_counters;
#[cfg(test)]
mod ipv6_fields;
#[cfg(test)]
mod listener;
#[cfg(test)]
mod neighbors;
#[cfg(test)]
mod path_mtu;
#[cfg(test)]
mod ping;
#[cfg(test)]
mod ports;
#[cfg(test)]
mod redirects;
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
#[cfg(test)]
mod udp;
#[cfg(test)]
mod udp6;
#[cfg(test)]
mod udp6_groups;
#[cfg(test)]
mod udp_errors;
#[cfg(test)]
mod udp_groups;
#[cfg(test)]
mod udp_sources;
