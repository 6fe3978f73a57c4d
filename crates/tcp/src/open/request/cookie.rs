//! Connection requests without state: the SYN-ACK is a SYN cookie, and the third segment restores
//! the request.
//!
//! Below: [`crate::open::syn_cookie`] encodes and verifies the number. RFC 4987 §3.6; Linux:
//! cookie_v4_init_sequence, cookie_v4_check.

use pkt::{DropReason, Ecn};

use super::Request;
use crate::{
    base::counters::Counter,
    cx::{Cx, config::TcpConfig},
    open::syn_cookie::{CookieOptions, SynCookies},
    tcb::OpenParams,
    wire::{header::SegmentHeader, option},
};

/// MSS encoded for a peer that announces none.
const MSS_UNKNOWN: u16 = 536;

impl Request {
    /// Answers a SYN with a cookie and keeps no request (RFC 4987 §3.6). The caller uses it when
    /// the SYN queue is full, or for every SYN if `tcp_syncookies` is 2. The SYN-ACK is in
    /// `cx.out`. `codepoint` is the ECN field of the SYN's IP header.
    ///
    /// # Errors
    ///
    /// [`DropReason::NoMemory`]: the peer will retransmit its SYN.
    pub fn send_cookie(
        cx: &mut Cx<'_>,
        params: &OpenParams,
        header: &SegmentHeader,
        cookies: &SynCookies,
        codepoint: Ecn,
    ) -> Result<(), DropReason> {
        let mut request = Self::new(cx, params, header);
        request.take_ecn(cx, params, header, codepoint);
        let mss = request.peer_mss.unwrap_or(MSS_UNKNOWN);
        request.iss = cookies.isn(&request.tuple, request.irs, mss, cx.now);
        if request.timestamps {
            let clock = option::ts_clock(cx.now, 0);
            let value = request.cookie_options().encode(clock);
            // The SYN-ACK carries `value` in place of the clock. `value` is never later than the
            // clock, so the connection's later timestamps pass the peer's PAWS check.
            request.ts_offset = request.ts_offset.wrapping_sub(clock.wrapping_sub(value));
        } else {
            request.forget_options();
        }
        request.answer_syn(cx)?;
        cx.count(Counter::TcpExtSyncookiesSent);
        Ok(())
    }

    /// Restores the request that a cookie stands for, from an ACK that belongs to no connection and
    /// reaches a listener that has sent cookies lately. Returns `None` if the cookie is invalid.
    /// `params` are those of the SYN; their ISS is ignored.
    #[must_use]
    pub fn from_cookie(
        cx: &Cx<'_>,
        params: &OpenParams,
        header: &SegmentHeader,
        cookies: &SynCookies,
    ) -> Option<Self> {
        let request = Self::read_cookie(cx, params, header, cookies);
        cx.count(match request {
            Some(_) => Counter::TcpExtSyncookiesRecv,
            None => Counter::TcpExtSyncookiesFailed,
        });
        request
    }

    fn read_cookie(
        cx: &Cx<'_>,
        params: &OpenParams,
        header: &SegmentHeader,
        cookies: &SynCookies,
    ) -> Option<Self> {
        let (irs, iss) = (header.seq - 1, header.ack - 1);
        let mss = cookies.mss(&params.tuple, irs, iss, cx.now)?;
        let options = match header.options.timestamps {
            Some((_, echo)) => {
                let options = CookieOptions::decode(echo.wrapping_sub(params.ts_offset));
                are_allowed(options, cx.config).then_some(options)?
            }
            None => CookieOptions::default(),
        };
        // The SYN's fields as far as the cookie and the ACK preserve them.
        let mut syn = SegmentHeader { seq: irs, ..SegmentHeader::default() };
        syn.options.mss = Some(mss);
        syn.options.window_scale = options.window_scale;
        syn.options.sack_permitted = options.sack;
        syn.options.timestamps = header.options.timestamps;
        let mut request = Self::new(cx, params, &syn);
        request.iss = iss;
        request.from_cookie = true;
        request.ecn = options.ecn;
        Some(request)
    }

    fn cookie_options(&self) -> CookieOptions {
        CookieOptions { window_scale: self.snd_wscale, sack: self.sack, ecn: self.ecn }
    }

    /// Declines the options: without timestamps the cookie cannot carry them.
    fn forget_options(&mut self) {
        self.snd_wscale = None;
        self.rcv_wscale = 0;
        self.sack = false;
        self.ecn = false;
    }
}

/// Returns whether the settings still allow the options. If a setting was turned off after the
/// cookie was sent, the cookie is invalid.
fn are_allowed(options: CookieOptions, config: &TcpConfig) -> bool {
    config.tcp_timestamps
        && (options.window_scale.is_none() || config.tcp_window_scaling)
        && (!options.sack || config.tcp_sack)
}
