//! What `INFO` and `ROLE` say of replication.

use super::{SECOND_NS, master::State};
use crate::{Context, Outcome, Session, Store, info::line, text::Text};
use alloc::{format, string::String, vec::Vec};
use kayvee_resp::Request;

/// Where a replica says that it is.
pub(super) fn address_of(session: &Session) -> (&str, u16) {
    let announced = session.announced.as_deref();
    let told = announced.map(|announced| &announced.address[..]).filter(|address| !address.is_empty());
    // Of IPv6 the address is in brackets.
    let remote = session.remote.rsplit_once(':').map_or("", |(ip, _)| ip.trim_matches(['[', ']']));
    (told.unwrap_or(remote), announced.map_or(0, |announced| announced.port))
}

pub fn role(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let offset = context.store.effects.offset() as i64;
    if let Some(link) = &context.store.replication.link {
        let reply = &mut context.reply;
        reply.array(5);
        reply.bulk(b"slave");
        reply.bulk(link.host.as_bytes());
        reply.integer(link.port.into());
        reply.bulk(link.state_name().as_bytes());
        reply.integer(if link.is_up() { offset } else { -1 });
        return Ok(());
    }
    let store = &*context.store;
    let replicas: Vec<(String, u16, u64)> = store
        .each_replica()
        .filter(|(_, replica)| replica.is_online())
        .filter_map(|(slot, replica)| {
            let (ip, port) = address_of(store.sessions[slot as usize].as_deref()?);
            Some((ip.into(), port, replica.acknowledged))
        })
        .collect();
    let reply = &mut context.reply;
    reply.array(3);
    reply.bulk(b"master");
    reply.integer(offset);
    reply.array(replicas.len());
    for (ip, port, offset) in replicas {
        reply.array(3);
        reply.bulk(ip.as_bytes());
        reply.bulk(format!("{port}").as_bytes());
        reply.bulk(format!("{offset}").as_bytes());
    }
    Ok(())
}

/// The section `replication`.
pub fn write_info(store: &Store, out: &mut Text) {
    let replication = &store.replication;
    let now_ns = store.now.monotonic_ns;
    let seconds_since = |at_ns: u64| now_ns.saturating_sub(at_ns) / SECOND_NS;
    let offset = store.effects.offset();
    line(out, "role", if replication.link.is_some() { "slave" } else { "master" });
    if let Some(link) = &replication.link {
        line(out, "master_host", &link.host);
        line(out, "master_port", link.port);
        line(out, "master_link_status", if link.is_up() { "up" } else { "down" });
        let silent_s = if link.slot.is_some() { seconds_since(link.heard_ns) as i64 } else { -1 };
        line(out, "master_last_io_seconds_ago", silent_s);
        line(out, "master_sync_in_progress", u8::from(link.is_syncing()));
        // What has come while writes are paused is read, and has no effect yet.
        let reader = link.slot.filter(|_| link.is_up()).and_then(|slot| store.sessions[slot as usize].as_deref());
        line(out, "slave_read_repl_offset", offset + reader.map_or(0, |session| session.pending.query_bytes as u64));
        line(out, "slave_repl_offset", offset);
        if !link.is_up() {
            line(out, "master_link_down_since_seconds", seconds_since(link.down_since_ns));
        }
        line(out, "slave_priority", store.option("replica-priority"));
        line(out, "slave_read_only", u8::from(store.options.replica_read_only));
        line(out, "replica_announced", u8::from(store.option("replica-announced") == "yes"));
    }
    line(out, "connected_slaves", store.replicas.len());
    let lag_s = store.options.min_replicas_max_lag.into();
    if store.options.min_replicas_to_write > 0 && lag_s > 0 {
        line(out, "min_slaves_good_slaves", store.good_replicas(lag_s));
    }
    for (number, (slot, replica)) in store.each_replica().enumerate() {
        let Some(session) = store.sessions[slot as usize].as_deref() else { continue };
        let (ip, port) = address_of(session);
        let state = match replica.state {
            // As in Redis without a disk between: the dump is sent while it is made.
            State::Waits | State::Copies => "wait_bgsave",
            State::Loads => "send_bulk",
            State::Online if replica.dump_bytes > 0 => "send_bulk",
            State::Online => "online",
        };
        let lag_s = if replica.state == State::Online { seconds_since(replica.progress_ns) } else { 0 };
        let value = format!("ip={ip},port={port},state={state},offset={},lag={lag_s}", replica.acknowledged);
        line(out, &format!("slave{number}"), value);
    }
    let failover = replication.failover.as_ref().map(|failover| failover.is_in_progress);
    let state = match failover {
        None => "no-failover",
        Some(false) => "waiting-for-sync",
        Some(true) => "failover-in-progress",
    };
    line(out, "master_failover_state", state);
    line(out, "master_replid", &replication.id);
    let former = Some(&replication.former_id).filter(|_| replication.former_until.is_some());
    line(out, "master_replid2", former.map_or_else(|| "0".repeat(40), String::clone));
    line(out, "master_repl_offset", offset);
    line(out, "second_repl_offset", replication.former_until.map_or(-1, |until| until as i64 + 1));
    let backlog = replication.backlog.as_ref();
    line(out, "repl_backlog_active", u8::from(backlog.is_some()));
    line(out, "repl_backlog_size", store.option("repl-backlog-size"));
    line(out, "repl_backlog_first_byte_offset", backlog.map_or(0, |backlog| backlog.start() + 1));
    line(out, "repl_backlog_histlen", backlog.map_or(0, |backlog| backlog.len()));
}
