//! Keys as a whole: which there are, copying, moving and removing them.

use crate::{Context, Error, EventClass, Outcome, args};
use kayvee_keyspace::Found;
use kayvee_resp::Request;

const SAME: Error = Error::text("ERR source and destination objects are the same");

pub fn del(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let mut removed = 0;
    for key in request.from(1) {
        // One whose time has come and which stays, hidden, goes as well.
        if let Some(found) = context.find(key).or_else(|| context.db().find_any(key)) {
            context.remove(key, found);
            removed += 1;
        }
    }
    context.reply.integer(removed);
    Ok(())
}

pub fn exists(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let count = request.from(1).filter(|key| context.peek(key).is_some()).count();
    context.reply.integer(count as i64);
    Ok(())
}

pub fn touch(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let now_ms = context.now_ms();
    let mut touched = 0;
    for key in request.from(1) {
        if let Some(found) = context.peek(key) {
            // This is what the command is for, so `CLIENT NO-TOUCH` does not hold here.
            context.db().touch(found, now_ms);
            touched += 1;
        }
    }
    context.reply.integer(touched);
    Ok(())
}

pub fn type_of(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let name = context.peek(&request[1]).map_or("none", |found| context.db().kind(found).name());
    context.reply.simple(name);
    Ok(())
}

pub fn randomkey(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let (now_ms, index) = (context.now_ms(), context.db_index());
    let Context { store, reply, .. } = context;
    match store.dbs[index].random(&mut store.rng, now_ms) {
        Some(found) => reply.bulk(store.dbs[index].key(found)),
        None => reply.null(),
    }
    Ok(())
}

pub fn rename(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let (from, to) = (&request[1], &request[2]);
    let found = context.find_touched(from).ok_or(Error::NO_SUCH_KEY)?;
    if from != to {
        rename_found(context, found, from, to)?;
    }
    context.reply.ok();
    Ok(())
}

fn rename_found(context: &mut Context<'_>, found: Found, from: &[u8], to: &[u8]) -> Outcome {
    let now_ms = context.now_ms();
    context.db().rename(found, to, now_ms)?;
    context.changed(EventClass::GENERIC, "rename_from", from);
    context.changed(EventClass::GENERIC, "rename_to", to);
    Ok(())
}

pub fn renamenx(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let (from, to) = (&request[1], &request[2]);
    let found = context.find_touched(from).ok_or(Error::NO_SUCH_KEY)?;
    let is_free = context.find(to).is_none();
    if is_free {
        rename_found(context, found, from, to)?;
    }
    context.reply.integer(is_free.into());
    Ok(())
}

/// The number of a database.
fn db_number(context: &Context<'_>, arg: &[u8]) -> Result<usize, Error> {
    let number = usize::try_from(args::int(arg)?).map_err(|_| Error::DB_INDEX)?;
    // A cluster's shard has one only, but knows others by their numbers.
    if number < context.store.options.database_count() { Ok(number) } else { Err(Error::DB_INDEX) }
}

pub fn copy(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let from_db = context.db_index();
    let mut to_db = from_db;
    let mut replaces = false;
    let mut words = request.from(3);
    while let Some(word) = words.next() {
        if args::is(word, "replace") {
            replaces = true;
        } else if args::is(word, "db")
            && let Some(number) = words.next()
        {
            to_db = db_number(context, number)?;
        } else {
            return Err(Error::SYNTAX);
        }
    }
    if to_db != from_db {
        context.store.refuse_in_cluster("Copying to another database is not allowed in cluster mode")?;
    }
    let (from, to) = (&request[1], &request[2]);
    if (from_db, from) == (to_db, to) {
        return Err(SAME);
    }
    let now_ms = context.now_ms();
    let found = context.find_touched(from);
    let found = found.filter(|_| replaces || !context.store.is_there(to_db, to));
    if let Some(found) = found {
        if context.db().bytes_of(found) as u64 > context.store.data_room_bytes() {
            return Err(Error::OUT_OF_MEMORY);
        }
        context.store.write_down_there(to_db, to);
        match context.store.dbs.get_disjoint_mut([from_db, to_db]) {
            Ok([here, there]) => here.copy_to(found, there, to, now_ms)?,
            Err(_) => context.db().copy(found, to, now_ms)?,
        }
        context.store.changed(to_db, to);
        context.store.notify(EventClass::GENERIC, "copy_to", to_db, to);
    }
    context.reply.integer(found.is_some().into());
    Ok(())
}

pub fn move_to_db(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    context.store.refuse_in_cluster("MOVE is not allowed in cluster mode")?;
    let (from_db, to_db) = (context.db_index(), db_number(context, &request[2])?);
    if from_db == to_db {
        return Err(SAME);
    }
    let now_ms = context.now_ms();
    let found = context.find_touched(&request[1]);
    let found = found.filter(|_| !context.store.is_there(to_db, &request[1]));
    if let Some(found) = found {
        // One may be there whose time has come.
        context.store.write_down_there(to_db, &request[1]);
        let [from, to] = context.store.dbs.get_disjoint_mut([from_db, to_db]).expect("both are there and differ");
        from.move_to(found, to, now_ms)?;
        for db in [to_db, from_db] {
            context.store.changed(db, &request[1]);
        }
        for (db, event) in [(from_db, "move_from"), (to_db, "move_to")] {
            context.store.notify(EventClass::GENERIC, event, db, &request[1]);
        }
    }
    context.reply.integer(found.is_some().into());
    Ok(())
}
