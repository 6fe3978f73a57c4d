//! Recycling of packets between two hosts. Each host has a context for the application and one for
//! polling.

#[cfg(test)]
mod rig;

#[cfg(test)]
mod accounts;
#[cfg(test)]
mod caches;
#[cfg(test)]
mod differential;
#[cfg(test)]
mod requests;
