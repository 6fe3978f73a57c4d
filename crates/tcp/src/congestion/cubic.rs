//! CUBIC: the window is a cubic function of the time since the last loss.
//!
//! RFC 9438; Linux: tcp_cubic.c.
//!
//! The window quickly returns to its value at the loss (W_max), stays near it for a while, then
//! grows ever faster. Growth depends on time and not on the round-trip time. If Reno would grow
//! faster (short round trips, small windows), the window grows as Reno's does.
//!
//! All arithmetic is in integers, in bytes and milliseconds.

use core::time::Duration;

use pkt::Instant;

use super::AckSample;
use super::window::Window;

/// β_cubic = 0.7 (RFC 9438 §4.6).
const BETA: (u32, u32) = (7, 10);

/// α_cubic = 3 × (1 − β) / (1 + β) = 9 / 17 (RFC 9438 §4.3): with it the average window equals
/// Reno's.
const ALPHA: (u64, u64) = (9, 17);

/// C = 0.4 segments/s³ (RFC 9438 §5.1), in the units used here: 4 segments / 10¹⁰ ms³.
const C: (u128, u128) = (4, 10_000_000_000);

/// Upper bound of times in the cubic function, so that cubes do not overflow: 1,000 s.
const TIME_MS_MAX: u64 = 1_000_000;

/// State of CUBIC. Names as in RFC 9438 §4.1.
#[derive(Clone, Debug, Default)]
pub(super) struct Cubic {
    /// Start of this stage of congestion avoidance; `None` before its first acknowledgment.
    epoch: Option<Instant>,
    /// Time of the last processed acknowledgment or pause. `pause` excludes the time since then
    /// from the curve.
    last: Instant,
    /// K: time from the epoch until the window is at `origin` again.
    k_ms: u64,
    /// Plateau of the cubic function: W_max, or the window at the start of the epoch if that is
    /// larger.
    origin: u32,
    /// W_max: the window at the last loss, or less (fast convergence); 0 before the first loss.
    w_max: u32,
    /// cwnd_prior: the window before the last reduction.
    cwnd_prior: u32,
    /// W_est: the window that Reno would have.
    w_est: u64,
    /// Remainders of the two divisions by the window.
    est_rest: u64,
    rest: u64,
    /// Latest round-trip time.
    rtt: Duration,
}

impl Cubic {
    /// Grows the window in congestion avoidance (RFC 9438 §4.2–4.5).
    pub(super) fn avoid(&mut self, window: &mut Window, acked: u32, sample: &AckSample) {
        let epoch = match self.epoch {
            Some(epoch) => epoch,
            None => self.begin(window, sample.now),
        };
        self.last = sample.now;
        self.rtt = sample.rtt.unwrap_or(self.rtt);
        let t = sample.now - epoch;
        let cwnd = u64::from(window.cwnd);
        self.follow_reno(window, acked);
        if self.curve(t, window.mss) < self.w_est {
            // §4.3: the Reno-friendly region.
            let est = u32::try_from(self.w_est).unwrap_or(u32::MAX);
            window.set_cwnd(window.cwnd.max(est));
            return;
        }
        // §4.4 and §4.5: grow towards the value of the curve one round trip later, and by at most
        // half a window.
        let target = self.curve(t + self.rtt, window.mss).clamp(cwnd, cwnd + cwnd / 2);
        self.rest += (target - cwnd) * u64::from(acked);
        let growth = self.rest / cwnd;
        self.rest %= cwnd;
        window.set_cwnd(u32::try_from(cwnd + growth).unwrap_or(u32::MAX));
    }

    /// Begins a stage of congestion avoidance, on its first acknowledgment.
    fn begin(&mut self, window: &Window, now: Instant) -> Instant {
        self.epoch = Some(now);
        self.origin = self.w_max.max(window.cwnd);
        let below = u64::from(self.origin - window.cwnd);
        // K = cbrt(below / C): in ms, 1 / C is 2.5 × 10⁹ per segment.
        self.k_ms = cube_root(below * 2_500_000_000 / u64::from(window.mss));
        self.w_est = u64::from(window.cwnd);
        (self.est_rest, self.rest) = (0, 0);
        now
    }

    /// Grows W_est as Reno's window, but more slowly until W_est reaches the window before the
    /// reduction (§4.3, equation 4).
    fn follow_reno(&mut self, window: &Window, acked: u32) {
        let (numerator, divisor) =
            if self.w_est < u64::from(self.cwnd_prior) { ALPHA } else { (1, 1) };
        self.est_rest += u64::from(acked) * u64::from(window.mss) * numerator;
        let divisor = divisor * u64::from(window.cwnd);
        self.w_est += self.est_rest / divisor;
        self.est_rest %= divisor;
    }

    /// Returns W_cubic(t), equation 1, in bytes.
    fn curve(&self, t: Duration, mss: u32) -> u64 {
        let t = u64::try_from(t.as_millis()).unwrap_or(TIME_MS_MAX);
        let distance = u128::from(t.abs_diff(self.k_ms).min(TIME_MS_MAX));
        let offset = distance.pow(3) * u128::from(mss) * C.0 / C.1;
        let offset = u64::try_from(offset).unwrap_or(u64::MAX);
        let origin = u64::from(self.origin);
        if t < self.k_ms { origin.saturating_sub(offset) } else { origin.saturating_add(offset) }
    }

    /// Handles a loss: returns the new `ssthresh` (§4.6), and sets W_max with fast convergence
    /// (§4.7).
    ///
    /// Differs from RFC 9438 §4.6, which reduces FlightSize: as in Linux the window is reduced,
    /// because an unused window is already shrunk by `validation`, and data reported by SACK has
    /// left the flight without being lost.
    pub(super) fn on_loss(&mut self, window: &Window) -> u32 {
        let cwnd = window.cwnd;
        self.cwnd_prior = cwnd;
        self.w_max = if cwnd < self.w_max {
            // The window is smaller than at the last loss, so another flow needs bandwidth: release
            // more of it.
            share(cwnd, BETA.1 + BETA.0, 2 * BETA.1)
        } else {
            cwnd
        };
        self.epoch = None;
        share(cwnd, BETA.0, BETA.1)
    }

    /// Handles a timeout: a new stage begins after slow start (§4.8).
    pub(super) fn on_rto(&mut self) {
        self.epoch = None;
    }

    /// Stops the time of the curve while the window is not used (§5.8).
    pub(super) fn pause(&mut self, now: Instant) {
        if let Some(epoch) = &mut self.epoch {
            *epoch += now - self.last;
            self.last = now;
        }
    }
}

/// Returns `bytes` × `numerator` / `divisor`.
fn share(bytes: u32, numerator: u32, divisor: u32) -> u32 {
    u32::try_from(u64::from(bytes) * u64::from(numerator) / u64::from(divisor)).unwrap_or(bytes)
}

/// Returns the largest number whose cube is not above `n`, computed bit by bit. Called once per
/// stage of congestion avoidance.
fn cube_root(n: u64) -> u64 {
    // The root of a 64-bit number has at most 22 bits; a cube of 22 bits needs 66, hence `u128`.
    let mut root = 0u64;
    for bit in (0..22).rev() {
        let try_root = root | 1 << bit;
        if u128::from(try_root).pow(3) <= u128::from(n) {
            root = try_root;
        }
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::seq::SeqNum;

    const MSS: u32 = 1000;

    fn at(ms: u64) -> AckSample {
        AckSample {
            now: Instant::from_millis(1000 + ms),
            acked_bytes: MSS,
            rtt: Some(Duration::from_millis(100)),
            held_min_rtt: None,
            train_max: None,
            watches_delay: true,
            snd_una: SeqNum(0),
            snd_nxt: SeqNum(0),
        }
    }

    fn window(segments: u32) -> Window {
        Window { cwnd: segments * MSS, ssthresh: segments * MSS, mss: MSS, cwnd_max: 1 << 30 }
    }

    #[test]
    fn cube_roots_are_rounded_down() {
        for (n, root) in [(0, 0), (7, 1), (8, 2), (26, 2), (27, 3), (999_999, 99), (1_000_000, 100)]
        {
            assert_eq!(cube_root(n), root);
        }
        assert_eq!(cube_root(u64::MAX), 2_642_245);
    }

    #[test]
    fn a_loss_removes_three_tenths_of_the_window_and_a_second_loss_lowers_w_max() {
        let mut cubic = Cubic::default();
        assert_eq!(cubic.on_loss(&window(100)), 70 * MSS);
        assert_eq!(cubic.w_max, 100 * MSS);
        assert_eq!(cubic.on_loss(&window(80)), 56 * MSS);
        assert_eq!(cubic.w_max, 68 * MSS);
    }

    /// RFC 9438 §4.2: K = cbrt(W_max × (1 − β) / C) is cbrt(300 / 0.4) = 9.086 s for 1,000
    /// segments.
    #[test]
    fn the_window_returns_to_w_max_after_k() {
        let mut cubic = Cubic::default();
        let mut window = window(1000);
        window.cwnd = cubic.on_loss(&window);
        cubic.avoid(&mut window, 0, &at(0));
        assert_eq!(cubic.k_ms, 9085);
        let mut half = 0;
        for ms in (0..9085).step_by(10) {
            // A window of 700 to 1,000 segments in 100 ms: about 85 segments in 10 ms.
            cubic.avoid(&mut window, 85 * MSS, &at(ms));
            if ms == 4540 {
                half = window.cwnd;
            }
        }
        assert!(
            (950 * MSS..1001 * MSS).contains(&half),
            "the curve is not concave: most of the growth does not come early"
        );
        assert!((990 * MSS..1005 * MSS).contains(&window.cwnd), "the window is {}", window.cwnd);
    }

    #[test]
    fn the_window_grows_as_renos_on_short_round_trips() {
        let mut cubic = Cubic::default();
        let mut window = window(10);
        window.cwnd = cubic.on_loss(&window);
        for ms in 0..100 {
            let sample = AckSample { rtt: Some(Duration::from_millis(1)), ..at(ms) };
            let acked = window.cwnd;
            cubic.avoid(&mut window, acked, &sample);
        }
        // In a hundred round trips the window grows by nearly a segment each; the cubic curve would
        // gain less than one in total.
        assert!((90 * MSS..110 * MSS).contains(&window.cwnd), "the window is {}", window.cwnd);
    }

    #[test]
    fn time_in_which_the_window_is_unused_does_not_advance_the_curve() {
        let (mut used, mut idle) = (Cubic::default(), Cubic::default());
        let mut windows = [window(100), window(100)];
        for (cubic, window) in [&mut used, &mut idle].into_iter().zip(&mut windows) {
            window.cwnd = cubic.on_loss(window);
            cubic.avoid(window, MSS, &at(0));
        }
        idle.pause(Instant::from_millis(1000 + 60_000));
        used.avoid(&mut windows[0], 50 * MSS, &at(1000));
        idle.avoid(&mut windows[1], 50 * MSS, &at(61_000));
        assert_eq!(windows[0].cwnd, windows[1].cwnd);
    }
}
