//! `FAILOVER`: a replica takes the place of this store, and nothing that was written is lost.
//!
//! ```text
//! clients that write wait ──► a replica has every effect ──► PSYNC … FAILOVER, to it ──► it is the master, this its replica
//! ```

use super::status::address_of;
use crate::{
    Context, Error, Outcome, Pause, Store,
    args::{self, is},
};
use alloc::{boxed::Box, string::String};
use kayvee_resp::Request;

/// A change of places that is under way.
pub(super) struct Failover {
    /// The replica that is to be the master; the first one that has everything, if `None`.
    target: Option<(String, u16)>,
    /// When it is given up, in monotonic nanoseconds, or is done though the replica has not got everything.
    until_ns: Option<u64>,
    is_forced: bool,
    /// Whether the replica is asked to be the master.
    pub(super) is_in_progress: bool,
}

/// What a client has asked for.
#[derive(Default)]
struct Order {
    target: Option<(String, i64)>,
    timeout_ns: Option<u64>,
    is_forced: bool,
    aborts: bool,
}

fn parse(request: Request<'_>) -> Result<Order, Error> {
    const BAD_TIMEOUT: Error = Error::text("ERR FAILOVER timeout must be greater than 0");
    let mut order = Order::default();
    let mut at = 1;
    while at < request.len() {
        let rest = request.len() - at - 1;
        match &request[at] {
            word if is(word, "timeout") && rest >= 1 && order.timeout_ns.is_none() => {
                let ms = u64::try_from(args::integer(&request[at + 1])?).ok().filter(|ms| *ms > 0);
                order.timeout_ns = Some(ms.ok_or(BAD_TIMEOUT)?.saturating_mul(1_000_000));
                at += 2;
            }
            word if is(word, "abort") && request.len() == 2 => {
                order.aborts = true;
                at += 1;
            }
            word if is(word, "to") && rest >= 2 && order.target.is_none() => {
                let port = args::integer(&request[at + 2])?;
                order.target = Some((String::from_utf8_lossy(&request[at + 1]).into_owned(), port));
                at += 3;
            }
            word if is(word, "force") && !order.is_forced => {
                order.is_forced = true;
                at += 1;
            }
            _ => return Err(Error::SYNTAX),
        }
    }
    Ok(order)
}

pub(super) fn failover(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let order = parse(request)?;
    let store = &mut *context.store;
    store.refuse_in_cluster("FAILOVER not allowed in cluster mode. Use CLUSTER FAILOVER command instead.")?;
    if store.fails_over() {
        if !order.aborts {
            return Err(Error::text("ERR FAILOVER already in progress."));
        }
        store.abort_failover("Failover manually aborted");
        context.reply.ok();
        return Ok(());
    }
    let refusal = match () {
        () if order.aborts => Some("ERR No failover in progress."),
        () if store.replication.has_master() => Some("ERR FAILOVER is not valid when server is a replica."),
        () if store.replicas.is_empty() => Some("ERR FAILOVER requires connected replicas."),
        () if order.is_forced && (order.timeout_ns.is_none() || order.target.is_none()) => {
            Some("ERR FAILOVER with force option requires both a timeout and target HOST and IP.")
        }
        () => None,
    };
    if let Some(refusal) = refusal {
        return Err(Error::text(refusal));
    }
    let target = match order.target {
        None => None,
        Some((host, port)) => {
            const NO_REPLICA: Error = Error::text("ERR FAILOVER target HOST and PORT is not a replica.");
            let port = u16::try_from(port).map_err(|_| NO_REPLICA)?;
            let slot = store.replica_at(&host, port).ok_or(NO_REPLICA)?;
            if !store.each_replica().any(|(at, replica)| at == slot && replica.is_online()) {
                return Err(Error::text("ERR FAILOVER target replica is not online."));
            }
            Some((host, port))
        }
    };
    match &target {
        Some((host, port)) => log::info!("FAILOVER requested to {host}:{port}."),
        None => log::info!("FAILOVER requested."),
    }
    let until_ns = order.timeout_ns.map(|timeout| store.now.monotonic_ns.saturating_add(timeout));
    let failover = Failover { target, until_ns, is_forced: order.is_forced, is_in_progress: false };
    store.replication.failover = Some(Box::new(failover));
    store.apply_expiry_rule();
    context.reply.ok();
    Ok(())
}

impl Store {
    /// Whether a replica is to take the place of this store: clients that write wait meanwhile.
    #[inline]
    pub fn fails_over(&self) -> bool {
        self.replication.failover.is_some()
    }

    /// What clients may not do for now.
    #[inline]
    pub fn pause_in_force(&self) -> Option<Pause> {
        let pause = self.pause.filter(|pause| pause.until_ns > self.now.monotonic_ns);
        pause.or(self.holds_writes.then_some(Pause { until_ns: u64::MAX, writes_only: true }))
    }

    fn replica_at(&self, host: &str, port: u16) -> Option<u32> {
        let is_it = |slot: u32| {
            let session = self.sessions[slot as usize].as_deref();
            session.map(address_of).is_some_and(|(ip, its_port)| its_port == port && ip.eq_ignore_ascii_case(host))
        };
        self.each_replica().map(|(slot, _)| slot).find(|slot| is_it(*slot))
    }

    /// Has the replica take over that has every effect, or gives that up when its time is over.
    pub(super) fn tick_failover(&mut self) {
        if !self.fails_over() || self.scripting.is_busy() {
            return;
        }
        // What has happened in this turn may be no whole unit yet.
        self.end_unit();
        let offset = self.effects.offset();
        let Some(failover) = self.replication.failover.as_deref().filter(|failover| !failover.is_in_progress) else {
            return;
        };
        if failover.until_ns.is_some_and(|until_ns| until_ns <= self.now.monotonic_ns) {
            return match failover.target.clone().filter(|_| failover.is_forced) {
                Some((host, port)) => {
                    log::info!("Failover to {host}:{port} time out exceeded, failing over.");
                    self.change_places(host, port);
                }
                None => self.abort_failover("Replica never caught up before timeout"),
            };
        }
        let wanted = failover.target.as_ref().and_then(|(host, port)| self.replica_at(host, *port));
        let has_all = |slot: u32, replica: &super::Replica| {
            (failover.target.is_none() || wanted == Some(slot)) && replica.is_online() && replica.acknowledged == offset
        };
        let ready = self.each_replica().find(|(slot, replica)| has_all(*slot, replica)).map(|(slot, _)| slot);
        let Some(session) = ready.and_then(|slot| self.sessions[slot as usize].as_deref()) else { return };
        let (host, port) = match &failover.target {
            Some((host, port)) => (host.clone(), *port),
            None => {
                let (ip, port) = address_of(session);
                (ip.into(), port)
            }
        };
        log::info!("Failover target {host}:{port} is synced, failing over.");
        self.change_places(host, port);
    }

    fn change_places(&mut self, host: String, port: u16) {
        if let Some(failover) = &mut self.replication.failover {
            failover.is_in_progress = true;
        }
        self.follow(host, port);
    }

    /// When a failover has to be looked at, in monotonic nanoseconds.
    pub(super) fn failover_ends_ns(&self) -> Option<u64> {
        self.replication.failover.as_ref().filter(|failover| !failover.is_in_progress)?.until_ns
    }

    /// Whether a replica is asked to be the master of this store.
    pub(super) fn asks_to_take_over(&self) -> bool {
        self.replication.failover.as_ref().is_some_and(|failover| failover.is_in_progress)
    }

    /// Gives a failover up: this store goes on as the master.
    pub(super) fn abort_failover(&mut self, why: &str) {
        let Some(failover) = &self.replication.failover else { return };
        log::info!("Aborting failover: {why}");
        if failover.is_in_progress {
            self.stand_alone();
        }
        self.end_failover();
    }

    /// Lets clients write again.
    pub(super) fn end_failover(&mut self) {
        if self.replication.failover.take().is_some() {
            self.apply_expiry_rule();
            self.releases_held = true;
        }
    }
}
