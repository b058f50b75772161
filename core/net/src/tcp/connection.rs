//! A connection's state, and what its application does with it.

use super::{
    congestion::Congestion,
    probe::Probe,
    rack::{Rack, Reordering},
    receive::ReceiveQueue,
    rtt::RoundTrip,
    scoreboard::Scoreboard,
    segment::{HEADER_BYTES, Segment, TIMESTAMP_BYTES},
    seq::Seq,
};
use crate::{
    ends::{Ends, FlowKey},
    ipv6::MIN_MTU,
    pool::{BLOCK_BYTES, FIRST_BLOCKS, MAX_BLOCKS, Pool, SendQueue},
};
use alloc::boxed::Box;
use kayvee_platform::NetworkFigures;

/// RFC 9293 §3.3.2, but for LISTEN, which is a port and no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
    Closed,
}

/// Who cares for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Nobody yet: its handshake is not complete.
    Handshake,
    /// The application.
    Application,
    /// Nobody any more: the application has closed it, and what is left is to end it in good order.
    Nobody,
}

/// Where a connection came from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin<'a> {
    /// A peer's SYN.
    Passive(&'a Segment),
    /// The application.
    Active,
}

/// What a connection is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub flow: FlowKey,
    /// Bytes of the largest packet that the link carries.
    pub mtu: u16,
    /// Its first sequence number (RFC 6528).
    pub iss: Seq,
    /// What its timestamps are ahead of the clock (RFC 7323 §5.4).
    pub timestamp_offset: u32,
    /// Silence after which the peer is probed, 0 for never.
    pub keepalive_ns: u64,
}

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Resources {
    pub pool: Pool,
    pub counters: NetworkFigures,
}

/// Whether the peer waits for an acknowledgment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acknowledge {
    /// It does not.
    No,
    /// With the next data, or when the timer runs out (RFC 9293 §3.8.6.3).
    Soon,
    /// With the next flush.
    Now,
}

/// What is done about lost segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recovery {
    /// None is known to be lost.
    Open,
    /// Some are, by what has arrived behind them; over when this is acknowledged (RFC 6582, RFC 6675).
    Fast(Seq),
    /// All are taken for lost because of a timeout; over when this is acknowledged.
    Timeout(Seq),
}

/// The peer's clock (RFC 7323 §4.3).
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerClock {
    /// TS.Recent.
    pub recent: u32,
    pub recent_ns: u64,
}

/// How long a connection that the application has closed stays while its peer acknowledges nothing ...
pub(super) const LINGER_NS: u64 = 60_000_000_000;
/// ... and however much it does.
const LINGER_MAX_NS: u64 = 600_000_000_000;

/// A time that does not come.
pub(crate) const NEVER_NS: u64 = u64::MAX;

/// The window scale that is offered (RFC 7323 §2.3): windows of up to 8 MiB, in steps of 128 bytes.
pub(super) const OWN_WINDOW_SCALE: u8 = 7;

/// A connection. Without bytes in its buffers it is all there is: a few hundred bytes.
#[derive(Debug)]
pub(crate) struct Connection {
    pub flow: FlowKey,
    pub state: State,
    pub owner: Owner,
    /// When it was opened.
    pub opened_ns: u64,
    /// When a connection that nobody owns is cut off.
    pub(super) linger_until_ns: u64,
    /// What that may be at the most.
    pub(super) linger_end_ns: u64,
    /// Whether it was ended by a reset, a timeout or the loss of the address.
    pub has_failed: bool,

    pub(super) iss: Seq,
    pub(super) una: Seq,
    pub(super) nxt: Seq,
    /// SND.WND, SND.WL1 and SND.WL2 (RFC 9293 §3.3.1).
    pub(super) window: u32,
    pub(super) window_seq: Seq,
    pub(super) window_ack: Seq,
    pub(super) max_window: u32,
    pub(super) window_scale: u8,
    /// Most bytes of data in a segment.
    pub(super) segment_bytes: u32,
    /// Most bytes of data and options in a segment that arrives (RFC 6691 §2).
    pub(super) own_segment_bytes: u16,
    pub(super) tx: SendQueue,
    /// The sequence number of its first byte.
    pub(super) tx_base: Seq,
    /// The application will send no more: a FIN follows the data.
    pub(super) finishing: bool,
    pub(super) handshake_due: bool,
    pub(super) reset_due: bool,
    pub(super) probe_due: bool,
    pub(super) keepalive_due: bool,

    pub(super) rcv_nxt: Seq,
    /// The right edge of the window that was advertised.
    pub(super) rcv_right: Seq,
    pub(super) rcv_scale: u8,
    pub(super) rx: ReceiveQueue,
    /// Where the peer's FIN is, if it came before data that is missing.
    pub(super) peer_fin: Option<Seq>,
    pub(super) end_received: bool,
    pub(super) acknowledge: Acknowledge,
    /// Duplicate acknowledgments to be sent (RFC 5681 §4.2).
    pub(super) duplicates_due: u8,
    /// The last acknowledgment number that was sent.
    pub(super) acknowledged: Seq,
    /// What has come twice, to be told with the next acknowledgment (RFC 2883).
    pub(super) twice: Option<(Seq, Seq)>,

    pub(super) sack: bool,
    pub(super) peer_clock: Option<PeerClock>,
    pub(super) timestamp_offset: u32,

    pub(super) trip: RoundTrip,
    /// A byte whose acknowledgment gives a sample, and when it was sent.
    pub(super) timed: Option<(Seq, u64)>,
    pub(super) congestion: Congestion,
    pub(super) scoreboard: Scoreboard,
    pub(super) recovery: Recovery,
    /// Everything below that the peer does not have is lost ...
    pub(super) lost_below: Seq,
    /// ... and was sent again up to here.
    pub(super) resent_to: Seq,
    /// The next retransmission does not wait for the congestion window (RFC 6675 §5 (4.3)).
    pub(super) resend_now: bool,
    pub(super) duplicates: u32,
    /// There since the peer has reported a hole, until nothing is on its way.
    pub(super) rack: Option<Box<Rack>>,
    pub(super) reordering: Reordering,
    /// When to look for losses by the clock.
    pub(super) look_at_ns: u64,
    pub(super) probe: Probe,
    /// The last byte on its way is a window probe.
    pub(super) is_probing: bool,

    pub(super) retransmit_at_ns: u64,
    pub(super) acknowledge_at_ns: u64,
    pub(super) time_wait_until_ns: u64,
    /// When the last segment came.
    pub(super) heard_ns: u64,
    pub(super) sent_ns: u64,
    /// Since when the peer owes an answer.
    pub(super) unanswered_since_ns: u64,
    /// When the last answer to an unacceptable segment was sent.
    pub(super) challenged_ns: u64,
    pub(super) keepalive_ns: u64,
    /// Keepalive probes since the peer was heard, and when the last one was due, or has left.
    pub(super) keepalives: u8,
    pub(super) asked_ns: u64,

    pub(super) arrived: bool,
    pub(super) wants_room: bool,
    pub(super) end_told: bool,
}

/// What the application has to know of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Accepted,
    Readable,
    Writable,
    EndOfStream,
    Closed,
}

impl Connection {
    pub fn new(setup: Setup, origin: Origin<'_>, now_ns: u64) -> Connection {
        let Setup { flow, mtu, iss, timestamp_offset, keepalive_ns } = setup;
        let own_segment_bytes = mtu - header_bytes(flow);
        let segment_bytes = u32::from(own_segment_bytes);
        let mut connection = Connection {
            flow,
            state: State::SynSent,
            owner: Owner::Application,
            opened_ns: now_ns,
            linger_until_ns: NEVER_NS,
            linger_end_ns: NEVER_NS,
            has_failed: false,
            iss,
            una: iss,
            nxt: iss,
            window: 0,
            window_seq: Seq(0),
            window_ack: Seq(0),
            max_window: 0,
            window_scale: 0,
            segment_bytes,
            own_segment_bytes,
            tx: SendQueue::default(),
            tx_base: iss + 1,
            finishing: false,
            handshake_due: true,
            reset_due: false,
            probe_due: false,
            keepalive_due: false,
            rcv_nxt: Seq(0),
            rcv_right: Seq(0),
            rcv_scale: 0,
            rx: ReceiveQueue::new(own_segment_bytes),
            peer_fin: None,
            end_received: false,
            acknowledge: Acknowledge::No,
            duplicates_due: 0,
            acknowledged: Seq(0),
            twice: None,
            sack: false,
            peer_clock: None,
            timestamp_offset,
            trip: RoundTrip::new(),
            timed: None,
            congestion: Congestion::new(segment_bytes),
            scoreboard: Scoreboard::default(),
            recovery: Recovery::Open,
            lost_below: iss,
            resent_to: iss,
            resend_now: false,
            duplicates: 0,
            rack: None,
            reordering: Reordering::default(),
            look_at_ns: NEVER_NS,
            probe: Probe::default(),
            is_probing: false,
            retransmit_at_ns: NEVER_NS,
            acknowledge_at_ns: NEVER_NS,
            time_wait_until_ns: NEVER_NS,
            heard_ns: now_ns,
            sent_ns: now_ns,
            unanswered_since_ns: NEVER_NS,
            challenged_ns: 0,
            keepalive_ns,
            keepalives: 0,
            asked_ns: now_ns,
            arrived: false,
            wants_room: false,
            end_told: false,
        };
        if let Origin::Passive(syn) = origin {
            connection.state = State::SynReceived;
            connection.owner = Owner::Handshake;
            connection.take_syn(syn, now_ns);
        }
        connection
    }

    /// Takes over what a peer's SYN says (RFC 9293 §3.10.7.2 and §3.7.1, RFC 7323 §2.2 and §3.2, RFC 2018 §2).
    pub(super) fn take_syn(&mut self, syn: &Segment, now_ns: u64) {
        self.rcv_nxt = syn.seq + 1;
        self.rcv_right = self.rcv_nxt;
        self.acknowledged = self.rcv_nxt;
        self.window_seq = syn.seq;
        // The window of a SYN is never scaled (RFC 7323 §2.2).
        self.window = u32::from(syn.window);
        self.max_window = self.window;
        if let Some(scale) = syn.window_scale {
            // RFC 7323 §2.3: more than 14 counts as 14.
            self.window_scale = scale.min(14);
            self.rcv_scale = OWN_WINDOW_SCALE;
        }
        self.sack = syn.sack_permitted;
        self.peer_clock = syn.timestamps.map(|timestamps| PeerClock { recent: timestamps.value, recent_ns: now_ns });
        // RFC 9293 §3.7.1: 536 (with IPv6 1220) if the peer does not say. Less than a few bytes would be no use to anybody.
        let usual = if matches!(self.flow.ends, Ends::V4 { .. }) { 536 } else { 1220 };
        let peer_bytes = syn.max_segment_size.unwrap_or(usual).clamp(64, self.own_segment_bytes);
        self.segment_bytes = self.data_bytes(peer_bytes);
        self.congestion = Congestion::new(self.segment_bytes);
    }

    /// The data of a segment of so many bytes, of which options take their part (RFC 6691 §2).
    fn data_bytes(&self, segment_bytes: u16) -> u32 {
        let options = if self.peer_clock.is_some() { TIMESTAMP_BYTES } else { 0 };
        u32::from(segment_bytes) - options as u32
    }

    /// The way to the peer carries packets of this size only (RFC 1191 §6.4, RFC 8201 §5.2). `quoted` is what came back of
    /// the one that was too large: only who has seen it can know its number (RFC 5927 §7.2).
    pub fn reduce_path_mtu(&mut self, packet_bytes: u16, quoted: Seq) {
        /// Less than this is not believed: nobody has such links, and attackers gain from them.
        const MIN_PACKET_BYTES: u16 = 552;
        let least = if matches!(self.flow.ends, Ends::V4 { .. }) { MIN_PACKET_BYTES } else { MIN_MTU };
        let is_ours = quoted.within(self.una, self.nxt);
        let bytes = self.data_bytes(packet_bytes.max(least) - header_bytes(self.flow));
        if !is_ours || bytes >= self.segment_bytes {
            return;
        }
        self.segment_bytes = bytes;
        self.lost_below = self.nxt;
        self.resent_to = self.una;
        if let Some(rack) = &mut self.rack {
            rack.forget_resent(self.una, &self.scoreboard);
        }
    }

    /// Whether an acknowledgment is for something that was never sent.
    pub fn has_not_sent(&self, acknowledged: Seq) -> bool {
        !acknowledged.after(self.una) || acknowledged.after(self.nxt)
    }

    pub fn is_synchronized(&self) -> bool {
        !matches!(self.state, State::SynSent | State::SynReceived | State::Closed)
    }

    /// The connection has ended, and nothing is left to be sent.
    pub fn is_over(&self) -> bool {
        self.state == State::Closed && !self.reset_due
    }

    /// The next thing that the application has to know.
    #[inline]
    pub fn next_change(&mut self, pool: &Pool) -> Option<Change> {
        match self.owner {
            Owner::Nobody => None,
            Owner::Handshake if !self.is_synchronized() => None,
            Owner::Handshake => {
                self.owner = Owner::Application;
                Some(Change::Accepted)
            }
            Owner::Application if self.has_failed => {
                self.owner = Owner::Nobody;
                Some(Change::Closed)
            }
            Owner::Application => self.next_stream_change(pool),
        }
    }

    /// Whether [`next_change`](Self::next_change) may have something to say.
    #[inline]
    pub fn may_have_changed(&self) -> bool {
        let has_ended = self.end_received && !self.end_told;
        match self.owner {
            Owner::Nobody => false,
            Owner::Handshake => true,
            Owner::Application => self.arrived || self.wants_room || has_ended || self.has_failed,
        }
    }

    #[inline]
    fn next_stream_change(&mut self, pool: &Pool) -> Option<Change> {
        if self.arrived && self.rx.len() > 0 {
            self.arrived = false;
            Some(Change::Readable)
        } else if self.wants_room && self.has_room(pool) {
            self.wants_room = false;
            Some(Change::Writable)
        } else if self.end_received && !self.end_told && self.rx.len() == 0 {
            self.end_told = true;
            Some(Change::EndOfStream)
        } else {
            None
        }
    }

    fn takes_data(&self) -> bool {
        matches!(self.state, State::Established | State::CloseWait) && !self.finishing
    }

    /// Whether half of what its send buffer may take is free, or so much that it is worth a turn.
    pub fn has_room(&self, pool: &Pool) -> bool {
        let capacity = self.send_capacity(pool);
        let least = (capacity / 2).min(FIRST_BLOCKS / 2 * BLOCK_BYTES);
        self.takes_data() && capacity > self.tx.len() && capacity - self.tx.len() >= least
    }

    /// Bytes that its send buffer may take now.
    pub(super) fn send_capacity(&self, pool: &Pool) -> usize {
        pool.allowance(self.tx.held()).min(self.most_send_blocks()) * BLOCK_BYTES
    }

    /// What may be on its way, and as much again that goes when that has arrived.
    #[inline]
    fn most_send_blocks(&self) -> usize {
        let way_bytes = self.congestion.window().min(self.window) as usize;
        (2 * way_bytes / BLOCK_BYTES).clamp(FIRST_BLOCKS, MAX_BLOCKS)
    }

    /// Whether its application waits to be told of room.
    pub fn waits_for_room(&self) -> bool {
        self.wants_room && self.owner == Owner::Application && self.state != State::Closed
    }

    #[inline]
    pub fn readable(&self) -> &[u8] {
        self.rx.readable()
    }

    #[inline]
    pub fn consume(&mut self, count: usize, pool: &mut Pool) {
        self.rx.consume(count, pool);
        self.note_read(count, pool);
        self.offer_window(pool);
    }

    /// Notes that the application has read bytes, just after they have come or later.
    #[inline]
    pub(super) fn note_read(&mut self, count: usize, pool: &mut Pool) {
        if !self.end_received {
            self.rx.note_read(count, self.trip.smoothed_ns(), self.heard_ns, pool);
        }
    }

    /// Whether the end of the stream may have been reached.
    pub fn is_at_end(&self) -> bool {
        self.end_received && self.rx.len() == 0
    }

    /// Queues what fits of `bytes` and returns how much that was.
    #[inline]
    pub fn send(&mut self, bytes: &[u8], pool: &mut Pool) -> usize {
        let sent = if self.takes_data() { self.tx.push(bytes, self.most_send_blocks(), pool) } else { 0 };
        self.wants_room |= sent < bytes.len();
        sent
    }

    /// Copies bytes of the send queue, for a segment.
    #[inline]
    pub fn copy_to(&self, offset: usize, bytes: &mut [u8]) {
        self.tx.copy(offset, bytes);
    }

    /// Ends the sending half behind what is queued (RFC 9293 §3.10.4), which may be before the peer has answered.
    pub fn finish(&mut self) {
        self.finishing = true;
        match self.state {
            State::Established => self.state = State::FinWait1,
            State::CloseWait => self.state = State::LastAck,
            _ => {}
        }
    }

    /// Ends both halves for an application that is done with the connection.
    pub fn close(&mut self, now_ns: u64, pool: &mut Pool) {
        self.finish();
        if self.state == State::SynSent {
            self.state = State::Closed;
        }
        self.owner = Owner::Nobody;
        self.linger_until_ns = now_ns.saturating_add(LINGER_NS);
        self.linger_end_ns = now_ns.saturating_add(LINGER_MAX_NS);
        self.rx.narrow(pool);
        self.discard_received(pool);
    }

    /// Throws away what a peer sends to a connection that nobody reads, so that the peer comes to the end of it.
    pub(super) fn discard_received(&mut self, pool: &mut Pool) {
        self.rx.consume(self.rx.len(), pool);
        self.offer_window(pool);
    }

    /// Resets it (RFC 9293 §3.10.5).
    pub fn abort(&mut self, pool: &mut Pool) {
        let is_known = !matches!(self.state, State::SynSent | State::TimeWait | State::Closed);
        self.end(pool);
        self.reset_due = is_known;
        self.owner = Owner::Nobody;
    }

    /// Ends it because of something that the application has not asked for.
    pub fn fail(&mut self, pool: &mut Pool) {
        self.end(pool);
        self.has_failed = true;
    }

    /// The same, and tells the peer.
    pub fn give_up(&mut self, pool: &mut Pool) {
        self.fail(pool);
        self.reset_due = true;
    }

    /// The number that its peer has acknowledged once it has taken so many bytes more, or all there are; none where there are
    /// none.
    pub fn next_expected(&self, bytes: u32) -> Option<Seq> {
        let end = self.end_of_data();
        let next = self.una + bytes;
        (self.tx.len() > 0).then_some(if next.before(end) { next } else { end })
    }

    /// Whether its peer has acknowledged all before a number.
    pub fn has_acknowledged(&self, number: Seq) -> bool {
        !self.una.before(number)
    }

    /// Ends it, and gives its buffers back.
    pub(super) fn end(&mut self, pool: &mut Pool) {
        self.state = State::Closed;
        self.release_buffers(pool);
    }

    /// Gives up what has come out of order, and returns in how many runs.
    pub fn give_up_runs(&mut self, pool: &mut Pool) -> u64 {
        self.rx.give_up_runs(pool) as u64
    }

    pub fn release_buffers(&mut self, pool: &mut Pool) {
        self.tx.clear(pool);
        self.rx.clear(pool);
        self.scoreboard.clear();
        self.rack = None;
    }

    /// The sequence number of the FIN, once the application will send no more.
    #[inline]
    pub(super) fn end_of_data(&self) -> Seq {
        self.tx_base + self.tx.len() as u32
    }

    #[inline]
    pub(super) fn has_sent_fin(&self) -> bool {
        self.finishing && self.nxt.after(self.end_of_data())
    }
}

/// Headers of a packet without options (RFC 6691 §2).
fn header_bytes(flow: FlowKey) -> u16 {
    (flow.ends.header_bytes() + HEADER_BYTES) as u16
}
