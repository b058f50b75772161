//! Random members.

use super::Members;
use crate::{Context, Error, Outcome, args, order, random};
use alloc::vec::Vec;
use kayvee_keyspace::Kind;
use kayvee_resp::Request;

pub fn zrandmember(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let Some(count) = request.get(2) else { return one(context, &request[1]) };
    let count = random::count(count)?;
    let with_scores = match request.get(3) {
        None => false,
        Some(word) if args::is(word, "withscores") && request.len() == 4 => true,
        Some(_) => return Err(Error::SYNTAX),
    };
    if with_scores && count.unsigned_abs() > i64::MAX as u64 / 2 {
        return Err(Error::OUT_OF_RANGE);
    }
    let Some(found) = context.read(&request[1], Kind::SortedSet)? else {
        context.reply.array(0);
        return Ok(());
    };
    let index = context.db_index();
    let Context { store, reply, .. } = context;
    let zset = store.dbs[index].sorted_set(found);
    let mut members = Members { reply, with_scores };
    if count < 0 {
        let count = count.unsigned_abs();
        members.begin(count as usize);
        return random::repeat(count, |_| {
            let rank = store.rng.usize(..zset.len());
            zset.get(rank).into_iter().for_each(|(member, score)| members.write(member, score));
            members.reply.len()
        });
    }
    let count = (count as usize).min(zset.len());
    members.begin(count);
    if count == zset.len() {
        zset.for_all(|member, score| members.write(member, score));
        return Ok(());
    }
    for rank in distinct(zset.len(), count, &mut store.rng)? {
        zset.get(rank).into_iter().for_each(|(member, score)| members.write(member, score));
    }
    Ok(())
}

fn one(context: &mut Context<'_>, key: &[u8]) -> Outcome {
    let found = context.read(key, Kind::SortedSet)?;
    let index = context.db_index();
    let Context { store, reply, .. } = context;
    match found.map(|found| store.dbs[index].sorted_set(found)) {
        Some(zset) => zset.get(store.rng.usize(..zset.len())).into_iter().for_each(|(member, _)| reply.bulk(member)),
        None => reply.null(),
    }
    Ok(())
}

/// So many different ranks below `len`, in order.
fn distinct(len: usize, count: usize, rng: &mut fastrand::Rng) -> Result<Vec<usize>, Error> {
    let mut ranks = Vec::new();
    ranks.try_reserve_exact(count).map_err(|_| Error::OUT_OF_MEMORY)?;
    if count > len / 3 {
        // Each rank with the chance that makes as many as are needed.
        for rank in 0..len {
            if rng.usize(..len - rank) < count - ranks.len() {
                ranks.push(rank);
            }
        }
        return Ok(ranks);
    }
    while ranks.len() < count {
        for _ in ranks.len()..count {
            ranks.push(rng.usize(..len));
        }
        let order = order::by_key(ranks.len(), |at| ranks[at])?;
        let mut sorted = Vec::new();
        sorted.try_reserve_exact(count).map_err(|_| Error::OUT_OF_MEMORY)?;
        sorted.extend(order.map(|at| ranks[at]));
        sorted.dedup();
        ranks = sorted;
    }
    Ok(ranks)
}
