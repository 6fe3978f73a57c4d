//! Routes as `ip route` shows them: taken by [`Stack::add_route`](crate::Stack::add_route) and
//! listed by [`Stack::routes`](crate::Stack::routes).

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use stack::{
    base::{config_error::ConfigError, ids::DeviceIndex},
    route::fib::{HopSpec, NO_DEVICE, RouteEntry, RouteSpec},
};

pub use stack::transmit::dst::RouteKind;
pub use tcp::PathMetrics as RouteMetrics;

/// A route. Its text is the syntax of `ip route`:
///
/// ```
/// use quietline::Route;
///
/// let route: Route = "10.9.0.0/16 via 10.0.0.254 dev tap0 metric 20 mtu 1400".parse().unwrap();
/// assert_eq!(route.dev.as_deref(), Some("tap0"));
/// assert_eq!(route, Route::to("10.9.0.0/16".parse().unwrap())
///     .via("10.0.0.254".parse().unwrap()).dev("tap0").metric(20).mtu(1400));
/// assert_eq!(route.to_string(), "10.9.0.0/16 via 10.0.0.254 dev tap0 metric 20 mtu 1400");
/// assert!("default blackhole".parse::<Route>().is_err());
///
/// let two = "default initcwnd 20 nexthop via 10.0.0.254 weight 2 nexthop via 10.1.0.254 weight 1";
/// let route: Route = two.parse().unwrap();
/// assert_eq!((route.metrics.initcwnd, route.nexthops[0].weight), (20, 2));
/// assert_eq!(route.to_string(), two);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination addresses.
    pub prefix: IpNet,
    /// Treatment of packets to these destinations. `Unicast`, `Blackhole`, `Unreachable` and
    /// `Prohibit` can be added; the other kinds follow from addresses and are only listed.
    pub kind: RouteKind,
    /// Next hop: a neighbor. `None` if the destinations are directly on the link.
    pub via: Option<IpAddr>,
    /// Name of the device. May be omitted if `via` determines it.
    pub dev: Option<String>,
    /// Source address of packets that have none yet: an address of the stack. If omitted, the
    /// stack's address in the network of the next hop.
    pub src: Option<IpAddr>,
    /// Maximum packet size in bytes, if it is smaller than the device's.
    pub mtu: Option<u32>,
    /// Whether `mtu` is final: ICMP reports do not change it, and packets leave without DF
    /// (`mtu lock`).
    pub mtu_locked: bool,
    /// Priority among routes to the same prefix: the smallest metric wins.
    pub metric: u32,
    /// Metrics that concern TCP.
    pub metrics: RouteMetrics,
    /// Next hops of a route with several, instead of `via` and `dev`. A flow uses one of them
    /// (`net.ipv4.fib_multipath_hash_policy`); those whose device is down are not used.
    pub nexthops: Vec<NextHop>,
}

/// One of several next hops of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// Next hop: a neighbor. `None` if the destinations are directly on the link.
    pub via: Option<IpAddr>,
    /// Name of the device. May be omitted if `via` determines it.
    pub dev: Option<String>,
    /// Share of the flows, relative to the weights of the other next hops: 1 to 256.
    pub weight: u16,
}

impl Route {
    /// Returns a route to `prefix`, to be completed by [`via`](Self::via), [`dev`](Self::dev) or
    /// both.
    #[must_use]
    pub fn to(prefix: IpNet) -> Self {
        Self {
            prefix,
            kind: RouteKind::Unicast,
            via: None,
            dev: None,
            src: None,
            mtu: None,
            mtu_locked: false,
            metric: 0,
            metrics: RouteMetrics::default(),
            nexthops: Vec::new(),
        }
    }

    /// Returns a route that drops packets to `prefix`: silently (`Blackhole`), or with an error for
    /// the sender (`Unreachable`, `Prohibit`).
    #[must_use]
    pub fn dropping(prefix: IpNet, kind: RouteKind) -> Self {
        Self { kind, ..Self::to(prefix) }
    }

    /// Sets the next hop.
    #[must_use]
    pub const fn via(mut self, next_hop: IpAddr) -> Self {
        self.via = Some(next_hop);
        self
    }

    /// Sets the device.
    #[must_use]
    pub fn dev(mut self, name: impl Into<String>) -> Self {
        self.dev = Some(name.into());
        self
    }

    /// Sets the source address.
    #[must_use]
    pub const fn src(mut self, source: IpAddr) -> Self {
        self.src = Some(source);
        self
    }

    /// Sets the maximum packet size, in bytes.
    #[must_use]
    pub const fn mtu(mut self, bytes: u32) -> Self {
        self.mtu = Some(bytes);
        self
    }

    /// Sets the metric.
    #[must_use]
    pub const fn metric(mut self, metric: u32) -> Self {
        self.metric = metric;
        self
    }

    /// Converts the route to the stack's form; `index` returns the index of a device by name.
    pub(crate) fn spec(
        &self,
        index: impl Fn(&str) -> Option<DeviceIndex>,
    ) -> Result<RouteSpec, ConfigError> {
        let find = |name: &Option<String>| {
            let Some(name) = name else { return Ok(None) };
            let missing = || ConfigError::missing("route dev", name, "no such device");
            index(name).map(Some).ok_or_else(missing)
        };
        let hop = |hop: &NextHop| -> Result<HopSpec, ConfigError> {
            Ok(HopSpec { via: hop.via, device: find(&hop.dev)?, weight: hop.weight })
        };
        let (device, hops) = (find(&self.dev)?, self.nexthops.iter().map(hop));
        let hops = hops.collect::<Result<_, ConfigError>>()?;
        let Self { prefix, kind, via, src: prefsrc, mtu, mtu_locked, metric, metrics, .. } = *self;
        let spec = RouteSpec { mtu, mtu_locked, metric, metrics, ..RouteSpec::of(prefix, kind) };
        Ok(RouteSpec { via, device, prefsrc, hops, ..spec })
    }

    /// Builds a listed route; `name` returns the name of a device by index.
    pub(crate) fn listed(entry: RouteEntry, name: impl Fn(DeviceIndex) -> String) -> Self {
        let RouteEntry {
            prefix,
            kind,
            via,
            device,
            prefsrc: src,
            mtu,
            mtu_locked,
            metric,
            metrics,
            hops,
        } = entry;
        let dev = (device != NO_DEVICE).then(|| name(device));
        let nexthops = hops
            .iter()
            .map(|hop| NextHop { via: hop.via, dev: Some(name(hop.device)), weight: hop.weight })
            .collect();
        Self { prefix, kind, via, dev, src, mtu, mtu_locked, metric, metrics, nexthops }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.word())?;
        if self.prefix.prefix_len() == 0 {
            f.write_str("default")?;
        } else if self.prefix.prefix_len() == self.prefix.max_prefix_len() {
            write!(f, "{}", self.prefix.addr())?;
        } else {
            write!(f, "{}", self.prefix)?;
        }
        let mut field = |name: &str, value: Option<&dyn fmt::Display>| match value {
            Some(value) => write!(f, " {name} {value}"),
            None => Ok(()),
        };
        field("via", self.via.as_ref().map(|via| via as _))?;
        field("dev", self.dev.as_ref().map(|dev| dev as _))?;
        field("src", self.src.as_ref().map(|src| src as _))?;
        field("metric", (self.metric != 0).then_some(&self.metric as _))?;
        let mtu = if self.mtu_locked { "mtu lock" } else { "mtu" };
        field(mtu, self.mtu.as_ref().map(|mtu| mtu as _))?;
        write!(f, "{}", self.metrics)?;
        self.nexthops.iter().try_for_each(|hop| write!(f, "{hop}"))
    }
}

impl fmt::Display for NextHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(" nexthop")?;
        if let Some(via) = self.via {
            write!(f, " via {via}")?;
        }
        if let Some(dev) = &self.dev {
            write!(f, " dev {dev}")?;
        }
        write!(f, " weight {}", self.weight)
    }
}

impl FromStr for Route {
    type Err = ConfigError;

    /// Parses `[blackhole|unreachable|prohibit] PREFIX OPTIONS`, where `PREFIX` may be `default` or
    /// a single address. `OPTIONS` are `[via ADDRESS] [dev NAME] [src ADDRESS] [metric N]
    /// [mtu [lock] BYTES] [window BYTES] [rtt MILLISECONDS[ms]] [advmss BYTES] [initcwnd N]
    /// [initrwnd N] [quickack 0|1] [congctl NAME]`, then any number of `nexthop [via ADDRESS]
    /// [dev NAME] [weight N]`. `default` has the address family of the next hop, or IPv4 without
    /// one.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let refuse = |allowed: &str| ConfigError::new("route", text, allowed);
        let mut words = text.split_whitespace().peekable();
        let kind = match words.peek() {
            Some(&"blackhole") => RouteKind::Blackhole,
            Some(&"unreachable") => RouteKind::Unreachable,
            Some(&"prohibit") => RouteKind::Prohibit,
            _ => RouteKind::Unicast,
        };
        if kind != RouteKind::Unicast {
            words.next();
        }
        let prefix = words.next().ok_or_else(|| refuse("a prefix or `default`"))?;
        let mut route = Self::dropping(IpNet::V4(Ipv4Net::default()), kind);
        if prefix != "default" {
            let address = prefix.parse::<IpAddr>().map(IpNet::from);
            route.prefix = prefix.parse().or(address).map_err(|_| refuse("a prefix first"))?;
        }
        while let Some(name) = words.next() {
            if name == "nexthop" {
                route.nexthops.push(NextHop { via: None, dev: None, weight: 1 });
                continue;
            }
            if name == "mtu" {
                route.mtu_locked = words.next_if_eq(&"lock").is_some();
            }
            let value = words.next().ok_or_else(|| refuse("a value for each name"))?;
            set(&mut route, name, value).map_err(refuse)?;
        }
        let via = route.via.or_else(|| route.nexthops.iter().find_map(|hop| hop.via));
        if prefix == "default" && via.is_some_and(|via| via.is_ipv6()) {
            route.prefix = IpNet::V6(Ipv6Net::default());
        }
        Ok(route)
    }
}

/// Sets an option of a route, or of its last `nexthop`. An error says what is allowed.
fn set(route: &mut Route, name: &str, value: &str) -> Result<(), &'static str> {
    fn number<T: FromStr>(value: &str) -> Result<T, &'static str> {
        value.parse().map_err(|_| "a number")
    }
    let address = || value.parse().map_err(|_| "an IP address");
    if let Some(hop) = route.nexthops.last_mut() {
        match name {
            "via" => hop.via = Some(address()?),
            "dev" => hop.dev = Some(value.to_owned()),
            "weight" => hop.weight = number(value)?,
            _ => return Err("`via`, `dev` and `weight` after `nexthop`"),
        }
        return Ok(());
    }
    let metrics = &mut route.metrics;
    match name {
        "via" => route.via = Some(address()?),
        "dev" => route.dev = Some(value.to_owned()),
        "src" => route.src = Some(address()?),
        "mtu" => route.mtu = Some(number(value)?),
        "metric" => route.metric = number(value)?,
        "window" => metrics.window = number(value)?,
        "rtt" => metrics.rtt_ms = number(value.strip_suffix("ms").unwrap_or(value))?,
        "advmss" => metrics.advmss = number(value)?,
        "initcwnd" => metrics.initcwnd = number(value)?,
        "initrwnd" => metrics.initrwnd = number(value)?,
        "quickack" => metrics.quickack = number::<u8>(value)? != 0,
        "congctl" => {
            let algorithm = value.parse().map_err(|_| "a congestion control after `congctl`")?;
            metrics.congctl = Some(algorithm);
        }
        _ => {
            return Err("options of `ip route`: `via`, `dev`, `src`, `metric`, `mtu`, `window`, \
            `rtt`, `advmss`, `initcwnd`, `initrwnd`, `quickack`, `congctl` and `nexthop`");
        }
    }
    Ok(())
}
