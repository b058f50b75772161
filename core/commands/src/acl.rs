//! Users and what they may do.
//!
//! A user has passwords and one or more sets of rules ([`Selector`](selector::Selector)); a request may run if one of them
//! allows the command, all its keys and all its channels.

use crate::{
    Close, Context, Error, Origin, Outcome, Store, args,
    options::Options,
    table::{self, Categories, Command, Flags, Group},
};
use alloc::{format, string::String, vec::Vec};
use kayvee_resp::Request;
use sha2::{Digest, Sha256};

mod refusals;
mod selector;
mod user;

#[cfg(test)]
mod tests;

pub use selector::Denial;
use user::User;

/// What all rows share.
const ROW: Command = Command { flags: ANYBODY, group: Group::Server, ..Command::ROW };
const ANYBODY: Flags = Flags::NOSCRIPT.union(Flags::LOADING).union(Flags::STALE);
const ADMIN: Flags = ANYBODY.union(Flags::ADMIN);

pub static COMMANDS: &[Command] =
    &[Command { name: "acl", arity: -2, flags: Flags::NONE, subcommands: SUBCOMMANDS, ..ROW }];

static SUBCOMMANDS: &[Command] = &[
    Command { name: "cat", arity: -2, handler: Some(cat), ..ROW },
    Command { name: "deluser", arity: -3, flags: ADMIN, handler: Some(deluser), ..ROW },
    Command { name: "dryrun", arity: -4, flags: ADMIN, handler: Some(dryrun), ..ROW },
    Command { name: "genpass", arity: -2, handler: Some(genpass), ..ROW },
    Command { name: "getuser", arity: 3, flags: ADMIN, handler: Some(getuser), ..ROW },
    ROW.help(help),
    Command { name: "list", arity: 2, flags: ADMIN, handler: Some(list), ..ROW },
    Command { name: "load", arity: 2, flags: ADMIN, handler: Some(load), ..ROW },
    Command { name: "log", arity: -2, flags: ADMIN, handler: Some(refusals::log), ..ROW },
    Command { name: "save", arity: 2, flags: ADMIN, handler: Some(save), ..ROW },
    Command { name: "setuser", arity: -3, flags: ADMIN, handler: Some(setuser), ..ROW },
    Command { name: "users", arity: 2, flags: ADMIN, handler: Some(users), ..ROW },
    Command { name: "whoami", arity: 2, handler: Some(whoami), ..ROW },
];

const NO_FILE: Error = Error::text(
    "ERR This Redis instance is not configured to use an ACL file. You may want to specify users via the ACL SETUSER command and then issue a CONFIG REWRITE (assuming you have a Redis configuration file set) in order to store users in the Redis configuration.",
);

/// The default user's place.
pub const DEFAULT: u32 = 0;

/// All users, and what was refused.
pub struct Acl {
    /// By place; the default user's is the first.
    users: Vec<Option<User>>,
    log: refusals::Log,
    passwords_made: u64,
}

impl Default for Acl {
    fn default() -> Acl {
        Acl { users: Vec::from([Some(User::default_user())]), log: refusals::Log::default(), passwords_made: 0 }
    }
}

impl Acl {
    /// The place of the user of this name.
    fn find(&self, name: &[u8]) -> Option<u32> {
        self.users.iter().position(|user| user.as_ref().is_some_and(|user| *user.name == *name)).map(|at| at as u32)
    }

    pub(crate) fn get(&self, place: u32) -> Option<&User> {
        self.users.get(place as usize).and_then(Option::as_ref)
    }

    fn named(&self, name: &[u8]) -> Option<&User> {
        self.find(name).and_then(|place| self.get(place))
    }

    /// All users, in the order of their names.
    fn sorted(&self) -> Vec<&User> {
        let mut users: Vec<&User> = Vec::new();
        for user in self.users.iter().flatten() {
            users.insert(users.partition_point(|other| other.name < user.name), user);
        }
        users
    }

    /// Puts a user in the place of the one of its name, or in a free one.
    fn put(&mut self, user: User) {
        match self.find(&user.name) {
            Some(place) => self.users[place as usize] = Some(user),
            None => match self.users.iter_mut().find(|place| place.is_none()) {
                Some(place) => *place = Some(user),
                None => self.users.push(Some(user)),
            },
        }
    }

    /// Whether clients that have not said who they are may do nothing.
    pub fn needs_login(&self) -> bool {
        !self.get(DEFAULT).is_some_and(|user| user.is_on && user.any_password)
    }

    /// Whether any password will do for the default user.
    pub fn default_needs_no_password(&self) -> bool {
        self.get(DEFAULT).is_some_and(|user| user.any_password)
    }

    /// Who comes with this name and password, or is the default user without any where that needs none.
    pub(crate) fn identify(&self, credentials: Option<(&[u8], &[u8])>) -> Option<&User> {
        let named = credentials.and_then(|(name, password)| self.named(name).filter(|user| user.accepts(password)));
        named.or_else(|| self.get(DEFAULT).filter(|_| !self.needs_login()))
    }

    /// Whether there is a user of this name.
    pub(crate) fn has_user(&self, name: &[u8]) -> bool {
        self.find(name).is_some()
    }

    /// The rules of all users, as a configuration file has them.
    pub fn definitions(&self) -> Vec<Vec<Vec<u8>>> {
        self.sorted().into_iter().map(|user| Vec::from([user.name.to_vec(), user.text()])).collect()
    }
}

/// Makes a user of a definition: its name and its rules.
fn defined(user: User, rules: &[Vec<u8>], all_channels: bool) -> Result<User, String> {
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let rules = user::join_selectors(rules)
        .map_err(|start| format!("Unmatched parenthesis in acl selector starting at '{}'.", shown(start)))?;
    let mut user = user;
    for rule in rules {
        user.apply(&rule, all_channels)
            .map_err(|error| format!("Error in ACL SETUSER modifier '{}': {}", shown(&rule), error.text()))?;
    }
    Ok(user)
}

/// Checks a user's definition in a configuration file.
pub fn check_definition(words: &[Vec<u8>]) -> Result<(), String> {
    match words.split_first() {
        Some((name, rules)) => defined(User::new(name, false), rules, false).map(drop),
        None => Err("a user has a name".into()),
    }
}

fn is_name(name: &[u8]) -> bool {
    !name.iter().any(|b| b.is_ascii_whitespace() || *b == 0)
}

/// Reads the users of a file. Tells of all that is wrong with it.
fn read_users(path: &str, text: &[u8], all_channels: bool) -> Result<Vec<User>, String> {
    let mut users: Vec<User> = Vec::new();
    let mut errors = String::new();
    for (number, line) in (1..).zip(text.split(|&b| b == b'\n')) {
        let line = line.trim_ascii();
        let words: Vec<Vec<u8>> =
            line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).map(<[u8]>::to_vec).collect();
        let shown = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let problem = match words.as_slice() {
            [] => continue,
            [word, ..] if word.starts_with(b"#") => continue,
            [keyword, name, rules @ ..] if keyword == b"user" => {
                if users.iter().any(|user| *user.name == **name) {
                    format!("Duplicate user '{}' found. ", shown(name))
                } else {
                    match defined(User::new(name, all_channels), rules, all_channels) {
                        Ok(user) => {
                            users.push(user);
                            continue;
                        }
                        Err(error) => format!("{error}. "),
                    }
                }
            }
            _ => "line should start with user keyword. ".into(),
        };
        errors += &format!("{path}:{number}: {problem}");
    }
    if errors.is_empty() {
        return Ok(users);
    }
    Err(errors + "WARNING: ACL errors detected, no change to the previously active ACL rules was performed")
}

impl Store {
    /// Takes the users that the options define. Tells what is wrong with them.
    pub(crate) fn load_users(&mut self) -> Result<(), String> {
        let Options { users, aclfile, acl_pubsub_default_all: all_channels, .. } = &self.options;
        let all_channels = *all_channels;
        if !users.is_empty() && !aclfile.is_empty() {
            return Err(
                "users are defined in the configuration file and in an ACL file (aclfile): use one of them".into()
            );
        }
        for definition in users.clone() {
            let Some((name, rules)) = definition.split_first() else { continue };
            // As in Redis, a definition of the default user begins with nothing, too.
            self.acl.put(defined(User::new(name, all_channels), rules, all_channels)?);
        }
        let password = self.options.requirepass.clone();
        if !password.is_empty() {
            self.set_default_password(&password);
        }
        if self.options.aclfile.is_empty() { Ok(()) } else { self.load_file() }
    }

    /// Changes the default user's password, as `requirepass` does.
    pub(crate) fn set_default_password(&mut self, password: &[u8]) {
        let Some(user) = self.acl.users[DEFAULT as usize].as_mut() else { return };
        let rule = [b">", password].concat();
        let rules: [&[u8]; 2] = if password.is_empty() { [b"nopass", b""] } else { [b"resetpass", &rule] };
        for rule in rules {
            // These rules are right.
            let _ = user.apply(rule, false);
        }
    }

    fn load_file(&mut self) -> Result<(), String> {
        let path = self.options.aclfile.clone();
        let text = self
            .environment
            .host
            .read_file(&path)
            .map_err(|why| format!("Error loading ACLs, opening file '{path}': {why}"))?;
        let users = read_users(&path, &text, self.options.acl_pubsub_default_all)?;
        let default = users.iter().find(|user| *user.name == *b"default").cloned();
        self.acl.users.truncate(1);
        self.acl.users[DEFAULT as usize] = Some(default.unwrap_or_else(User::default_user));
        users.into_iter().for_each(|user| self.acl.put(user));
        Ok(())
    }

    /// Ends the connections of clients for which this holds.
    fn end_connections(&mut self, is_it: impl Fn(&crate::Session) -> bool) {
        let slots = (0u32..).zip(&self.sessions);
        let ended: Vec<u32> = slots.filter(|(_, s)| s.as_deref().is_some_and(&is_it)).map(|(slot, _)| slot).collect();
        for slot in ended {
            let how = if self.running == Some(slot) { Close::AfterOutput } else { Close::Now };
            if let Some(session) = self.sessions[slot as usize].as_deref_mut() {
                session.close = Some(how);
                session.log_in(DEFAULT, b"default");
                session.authenticated = false;
            }
            self.touch(slot);
        }
    }

    /// Whether a user may listen to all that a client listens to.
    fn may_go_on_listening(user: &User, session: &crate::Session) -> bool {
        use crate::pubsub::Scope;
        [(Scope::Channel, false), (Scope::Pattern, true), (Scope::Shard, false)].into_iter().all(
            |(scope, is_pattern)| {
                let mut names = session.subscriptions.names(scope);
                names.all(|name| user.all_selectors().any(|selector| selector.allows_channel(name, is_pattern)))
            },
        )
    }
}

impl Context<'_> {
    /// Checks that the client may run a request.
    #[inline(always)]
    pub(crate) fn check_permission(
        &mut self,
        container: &'static Command,
        command: &'static Command,
        request: Request<'_>,
    ) -> Result<(), Error> {
        let place = self.session().user;
        match self.store.acl.get(place) {
            Some(user) if user.is_unbounded() => Ok(()),
            Some(user) => match user.check(container, command, request) {
                Ok(()) => Ok(()),
                Err(denial) => Err(self.deny(&denial, container, command, request)),
            },
            None => Err(Error::NO_AUTH),
        }
    }

    #[cold]
    fn deny(
        &mut self,
        denial: &Denial,
        container: &'static Command,
        command: &'static Command,
        request: Request<'_>,
    ) -> Error {
        let name = if core::ptr::eq(container, command) {
            String::from(command.name)
        } else {
            format!("{}|{}", container.name, command.name)
        };
        self.log_denial(denial, request, &name);
        match (self.origin, denial) {
            (Origin::Transaction, Denial::Command) => {
                changed_since("no permission to execute the command or subcommand")
            }
            (Origin::Transaction, Denial::Key(_)) => changed_since("no permission to touch the specified keys"),
            (Origin::Transaction, Denial::Channel(_)) => {
                changed_since("no permission to access one of the channels used as arguments to the command")
            }
            (Origin::Script, Denial::Command) => {
                Error::text("ERR The user executing the script can't run this command or subcommand")
            }
            (Origin::Script, Denial::Key(_)) => Error::text(
                "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
            ),
            (Origin::Script, Denial::Channel(_)) => {
                Error::text("ERR The user executing the script can't publish to the channel mentioned in the command")
            }
            (_, Denial::Command) => format!("NOPERM this user has no permissions to run the '{name}' command").into(),
            (_, Denial::Key(_)) => {
                Error::text("NOPERM this user has no permissions to access one of the keys used as arguments")
            }
            (_, Denial::Channel(_)) => {
                Error::text("NOPERM this user has no permissions to access one of the channels used as arguments")
            }
        }
    }

    /// Whether the client may run a request; `None` for one of an unknown command. It is not noted if it may not.
    pub(crate) fn may_run(&mut self, request: Request<'_>) -> Option<bool> {
        let container = self.store.commands.find(request.get(0)?)?;
        let command = self.store.command_of(request)?;
        let place = self.session().user;
        Some(self.store.acl.get(place).is_some_and(|user| user.check(container, command, request).is_ok()))
    }

    /// Whether the client may read any key at all with the command of a request, as patterns of `SORT` may name any.
    pub(crate) fn may_read_all_keys(&mut self, request: Request<'_>) -> bool {
        let place = self.session().user;
        let Some(command) = self.store.command_of(request) else { return false };
        self.store.acl.get(place).is_some_and(|user| {
            user.all_selectors()
                .any(|selector| selector.reads_all_keys() && selector.check(command, command, request).is_ok())
        })
    }

    /// Lets the client in as a user, whose password this is.
    pub(crate) fn log_in(&mut self, name: &[u8], password: &[u8], request: Request<'_>) -> Outcome {
        let place = self.store.acl.find(name);
        match place.filter(|&place| self.store.acl.get(place).is_some_and(|user| user.accepts(password))) {
            Some(place) => {
                self.session().log_in(place, name);
                Ok(())
            }
            None => {
                self.log_failed_login(name, request);
                Err(Error::text("WRONGPASS invalid username-password pair or user is disabled."))
            }
        }
    }
}

fn changed_since(reason: &str) -> Error {
    format!(
        "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command is no longer allowed for the following reason: {reason}"
    )
    .into()
}

fn cat(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let reply = &mut context.reply;
    let name = match request.len() {
        2 => {
            let names = Categories::all_names();
            reply.array(names.clone().count());
            names.for_each(|name| reply.bulk(&name.as_bytes()[1..]));
            return Ok(());
        }
        3 => &request[2],
        _ => return Err(crate::server::unknown_use(request, "ACL")),
    };
    let unknown = || Error::showing("ERR Unknown category '", name, "'");
    let category = selector::find_category(&[b"@", name].concat()).ok_or_else(unknown)?;
    let start = reply.len();
    let mut count = 0;
    for command in table::all() {
        if command.all_categories().contains(category) {
            reply.bulk(command.name.as_bytes());
            count += 1;
        }
        for sub in command.subcommands.iter().filter(|sub| sub.all_categories().contains(category)) {
            reply.bulk(format!("{}|{}", command.name, sub.name).as_bytes());
            count += 1;
        }
    }
    let end = reply.len();
    reply.array(count);
    reply.move_before(start, end);
    Ok(())
}

fn deluser(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    if request.from(2).any(|name| name == b"default") {
        return Err(Error::text("ERR The 'default' user cannot be removed"));
    }
    let mut removed = 0;
    for name in request.from(2) {
        if let Some(place) = context.store.acl.find(name) {
            context.store.acl.users[place as usize] = None;
            context.store.end_connections(|session| session.user == place);
            removed += 1;
        }
    }
    context.reply.integer(removed);
    Ok(())
}

fn dryrun(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let no_user = || Error::showing("ERR User '", &request[2], "' not found");
    let user = context.store.acl.named(&request[2]).ok_or_else(no_user)?;
    let inner = request.skip(3);
    let Some((container, command)) = context.store.commands.find(&inner[0]).zip(context.store.command_of(inner)) else {
        return Err(Error::showing("ERR Command '", &inner[0], "' not found"));
    };
    let is_sub = !core::ptr::eq(container, command);
    let name = if is_sub { format!("{}|{}", container.name, command.name) } else { container.name.into() };
    if !command.accepts(inner.len()) {
        return Err(args::wrong_arity(&name));
    }
    let denied =
        |what: &str, object: &[u8], kind: &str| [what.as_bytes(), b" '", object, b"' ", kind.as_bytes()].concat();
    const ACCESS: &str = "This user has no permissions to access the";
    match user.check(container, command, inner) {
        Ok(()) => context.reply.ok(),
        Err(Denial::Command) => {
            let text = denied("This user has no permissions to run the", name.as_bytes(), "command");
            context.reply.bulk(&text);
        }
        Err(Denial::Key(at)) => context.reply.bulk(&denied(ACCESS, &inner[at], "key")),
        Err(Denial::Channel(at)) => context.reply.bulk(&denied(ACCESS, &inner[at], "channel")),
    }
    Ok(())
}

fn genpass(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    const WRONG: Error = Error::text(
        "ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to 4096",
    );
    let bits = match request.len() {
        2 => 256,
        3 => args::integer(&request[2])?,
        _ => return Err(crate::server::unknown_use(request, "ACL")),
    };
    if !(1..=4096).contains(&bits) {
        return Err(WRONG);
    }
    let digits = (bits as usize).div_ceil(4);
    let mut password = Vec::new();
    while password.len() < digits {
        let Store { acl, environment, .. } = &mut *context.store;
        acl.passwords_made += 1;
        // The seed is secret, and what is made of it does not give it away.
        let parts = Sha256::new().chain_update(environment.seed).chain_update(b"password");
        let block = parts.chain_update(acl.passwords_made.to_le_bytes()).finalize();
        password.extend(user::hexadecimal(&block));
    }
    context.reply.bulk(&password[..digits]);
    Ok(())
}

fn getuser(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let Context { store, reply, .. } = context;
    let Some(user) = store.acl.named(&request[2]) else {
        reply.null();
        return Ok(());
    };
    reply.map(6);
    reply.bulk(b"flags");
    reply.set(user.flags().count());
    user.flags().for_each(|flag| reply.bulk(flag.as_bytes()));
    reply.bulk(b"passwords");
    reply.array(user.passwords().len());
    user.passwords().iter().for_each(|hash| reply.bulk(hash));
    show_selector(reply, &user.root);
    reply.bulk(b"selectors");
    reply.array(user.selectors.len());
    for selector in &user.selectors {
        reply.map(3);
        show_selector(reply, selector);
    }
    Ok(())
}

fn show_selector(reply: &mut kayvee_resp::Writer<'_>, selector: &selector::Selector) {
    let fields = [
        ("commands", selector.commands_text().into_bytes()),
        ("keys", selector.keys_text()),
        ("channels", selector.channels_text()),
    ];
    for (name, text) in fields {
        reply.bulk(name.as_bytes());
        reply.bulk(&text);
    }
}

fn list(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let Context { store, reply, .. } = context;
    let users = store.acl.sorted();
    reply.array(users.len());
    for user in users {
        reply.bulk(&[b"user ", &*user.name, b" ", &user.text()].concat());
    }
    Ok(())
}

fn users(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let Context { store, reply, .. } = context;
    let users = store.acl.sorted();
    reply.array(users.len());
    users.iter().for_each(|user| reply.bulk(&user.name));
    Ok(())
}

fn whoami(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let name = context.session().user_name.clone();
    context.reply.bulk(&name);
    Ok(())
}

fn setuser(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let name = &request[2];
    if !is_name(name) {
        return Err(Error::text("ERR Usernames can't contain spaces or null characters"));
    }
    let all_channels = context.store.options.acl_pubsub_default_all;
    let mut rules = Vec::new();
    for word in request.from(3) {
        args::push(&mut rules, args::copied(word)?)?;
    }
    let user = match context.store.acl.named(name) {
        Some(user) => user.clone(),
        None => User::new(name, all_channels),
    };
    let user = defined(user, &rules, all_channels).map_err(|error| Error::from(format!("ERR {error}")))?;
    context.store.acl.put(user.clone());
    // Whoever listens to what is no longer allowed has to go.
    if let Some(place) = context.store.acl.find(name) {
        context.store.end_connections(|session| {
            session.user == place && session.is_subscriber() && !Store::may_go_on_listening(&user, session)
        });
    }
    context.reply.ok();
    Ok(())
}

fn load(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    if context.store.options.aclfile.is_empty() {
        return Err(NO_FILE);
    }
    context.store.load_file().map_err(|error| Error::from(format!("ERR {error}")))?;
    // As in Redis, all users are new ones, except for the default user.
    context.store.end_connections(|session| session.user != DEFAULT);
    context.reply.ok();
    Ok(())
}

fn save(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let path = context.store.options.aclfile.clone();
    if path.is_empty() {
        return Err(NO_FILE);
    }
    let mut text = Vec::new();
    for user in context.store.acl.sorted() {
        text.extend([b"user ", &*user.name, b" ", &user.text(), b"\n"].concat());
    }
    if let Err(why) = context.store.environment.host.write_file(&path, &text) {
        log::warn!("writing the users to {path}: {why}");
        return Err(Error::text(
            "ERR There was an error trying to save the ACLs. Please check the server logs for more information",
        ));
    }
    context.reply.ok();
    Ok(())
}

fn help(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    crate::server::help(context, "ACL", SUBCOMMANDS)
}
