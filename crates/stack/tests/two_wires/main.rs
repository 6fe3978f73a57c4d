//! What changes under connections: routes, and devices.

#[cfg(test)]
mod devices;
#[cfg(test)]
mod net;
#[cfg(test)]
mod routes;
