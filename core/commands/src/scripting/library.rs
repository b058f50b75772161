//! Libraries of functions: their text, and what it registers.

use super::{
    ScriptFlags, api, convert,
    eval::set_flag,
    run::{self, raised},
};
use crate::{Error, Store};
use alloc::{boxed::Box, collections::BTreeMap, string::String, vec::Vec};
use kayvee_lua::{Machine, Raise, TableRef, Value};

/// A function of a library.
pub struct Function {
    pub name: Vec<u8>,
    pub description: Option<Vec<u8>>,
    pub flag_names: Vec<&'static str>,
    pub flags: ScriptFlags,
    /// The function itself, kept in the machine under this number.
    pub pin: usize,
}

/// A library, under its name.
pub struct Library {
    pub text: Vec<u8>,
    pub functions: Vec<Function>,
}

/// All libraries.
#[derive(Default)]
pub struct Libraries {
    pub machine: Option<Box<Machine>>,
    pub by_name: BTreeMap<Vec<u8>, Library>,
}

const FLAG_NAMES: [&str; 5] = ["no-writes", "allow-oom", "allow-stale", "no-cluster", "allow-cross-slot-keys"];

impl Libraries {
    /// How many libraries there are, and functions in them.
    pub fn counts(&self) -> (usize, usize) {
        (self.by_name.len(), self.by_name.values().map(|library| library.functions.len()).sum())
    }

    /// A function by its name, in any case.
    pub fn find(&self, name: &[u8]) -> Option<&Function> {
        let mut functions = self.by_name.values().flat_map(|library| &library.functions);
        functions.find(|function| function.name.eq_ignore_ascii_case(name))
    }

    /// Forgets a library; tells whether it was there.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let Some(library) = self.by_name.remove(name) else { return false };
        if let Some(machine) = &mut self.machine {
            library.functions.iter().for_each(|function| machine.unpin(function.pin));
        }
        true
    }

    pub fn clear(&mut self) {
        *self = Libraries::default();
    }
}

/// Whether a name of a library or function is made of the characters that it may have.
fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_')
}

const WRONG_NAME: &str = "ERR Library names can only contain letters, numbers, or underscores(_) and must be at least one \
                          character long";

/// Reads the first line of a library. Returns its name and where the text itself begins.
pub fn read_shebang(text: &[u8]) -> Result<(Vec<u8>, usize), Error> {
    if !text.starts_with(b"#!") {
        return Err(Error::text("ERR Missing library metadata"));
    }
    let invalid = || Error::text("ERR Invalid library metadata");
    let end = text.iter().position(|b| *b == b'\n').ok_or_else(invalid)?;
    let words = kayvee_resp::split_words(&text[..end]).map_err(|_| invalid())?;
    let mut words = words.iter().map(|word| -> &[u8] { word });
    let engine: Vec<u8> = words.next().ok_or_else(invalid)?.to_vec();
    let mut name = None;
    for word in words {
        let Some((_, value)) = word.split_at_checked(5).filter(|(option, _)| option.eq_ignore_ascii_case(b"name="))
        else {
            return Err(Error::showing("ERR Invalid metadata value given: ", word, ""));
        };
        if name.replace(value.to_vec()).is_some() {
            return Err(Error::text("ERR Invalid metadata value, name argument was given multiple times"));
        }
    }
    let name = name.ok_or(Error::text("ERR Library name was not given"))?;
    if !is_name(&name) {
        return Err(Error::text(WRONG_NAME));
    }
    if !engine[2..].eq_ignore_ascii_case(b"lua") {
        return Err(Error::showing("ERR Engine '", &engine[2..], "' not found"));
    }
    Ok((name, end))
}

/// The metatable of the functions' global variables. `__index` leads to what they see: all, or while a library is loaded
/// what it may use then.
const ENVIRONMENT_PIN: usize = 0;
const ENVIRONMENT_META_PIN: usize = 1;
const LOADING_PIN: usize = 2;

impl Store {
    /// The machine for functions, which is made when the first library comes.
    pub(super) fn function_machine(&mut self) -> Result<Box<Machine>, Error> {
        match self.scripting.libraries.machine.take() {
            Some(machine) => Ok(machine),
            None => {
                let mut machine = self.new_machine()?;
                prepare(&mut machine).map_err(|_| Error::OUT_OF_MEMORY)?;
                Ok(machine)
            }
        }
    }

    /// Makes a library of a text, and returns its name. Nothing changes if that fails.
    pub(crate) fn load_library(&mut self, text: &[u8], replace: bool) -> Result<Vec<u8>, Error> {
        let (name, start) = read_shebang(text)?;
        if self.scripting.libraries.by_name.contains_key(&name) && !replace {
            return Err(Error::showing("ERR Library '", &name, "' already exists"));
        }
        let mut machine = self.function_machine()?;
        machine.heap.set_limit_bytes(machine.heap.used_bytes().saturating_add(self.script_heap_bytes()));
        let registered = self.register(&mut machine, &text[start..]);
        machine.reset();
        let result = registered.and_then(|functions| self.check_functions(functions, &name, &mut machine));
        self.scripting.libraries.machine = Some(machine);
        let functions = result?;
        self.scripting.libraries.remove(&name);
        self.scripting.libraries.by_name.insert(name.clone(), Library { text: text.to_vec(), functions });
        Ok(name)
    }

    /// Runs a library's text and returns the functions that it registers.
    fn register(&mut self, machine: &mut Machine, text: &[u8]) -> Result<Vec<Function>, Error> {
        let (Value::Table(environment), Value::Table(meta)) =
            (machine.pinned(ENVIRONMENT_PIN), machine.pinned(ENVIRONMENT_META_PIN))
        else {
            return Err(Error::OUT_OF_MEMORY);
        };
        let function = machine.compile(text, b"@user_function", environment).map_err(|raise| {
            let text = machine.error_text(raise);
            super::compile_error("ERR Error compiling function: ", &text)
        })?;
        let loading = machine.pinned(LOADING_PIN);
        let globals = Value::Table(machine.globals());
        machine.heap.set_str(meta, "__index", loading).map_err(|_| Error::OUT_OF_MEMORY)?;
        let mut functions: Vec<Function> = Vec::new();
        let result = run::load(self, machine, Value::Function(function), |machine, number| {
            if number != api::REGISTER_FUNCTION {
                return api::call_while_loading(machine, number);
            }
            match register_function(machine, &functions) {
                Ok(function) => {
                    functions.push(function);
                    machine.answer(None);
                }
                Err(raise) => machine.refuse(raise),
            }
        });
        machine.heap.set_str(meta, "__index", globals).map_err(|_| Error::OUT_OF_MEMORY)?;
        match result {
            Ok(()) => Ok(functions),
            Err(text) => {
                functions.iter().for_each(|function| machine.unpin(function.pin));
                Err(super::compile_error("ERR Error registering functions: ", &text))
            }
        }
    }

    /// Refuses functions of a library whose names others' have.
    fn check_functions(
        &self,
        functions: Vec<Function>,
        library: &[u8],
        machine: &mut Machine,
    ) -> Result<Vec<Function>, Error> {
        let others = self.scripting.libraries.by_name.iter().filter(|(name, _)| *name != library);
        let others: Vec<&Function> = others.flat_map(|(_, library)| &library.functions).collect();
        let taken = functions
            .iter()
            .find(|function| others.iter().any(|other| other.name.eq_ignore_ascii_case(&function.name)));
        let error = match taken {
            Some(function) => Error::showing("ERR Function ", &function.name, " already exists"),
            None if functions.is_empty() => Error::text("ERR No functions registered"),
            None => return Ok(functions),
        };
        functions.iter().for_each(|function| machine.unpin(function.pin));
        Err(error)
    }
}

fn prepare(machine: &mut Machine) -> Result<(), Raise> {
    api::install(machine)?;
    let globals = machine.globals();
    let environment = machine.heap.table(0, 0)?;
    let meta = convert::wrapped(machine, "__index", Value::Table(globals))?;
    machine.heap.set_metatable(environment, meta);
    machine.protect(environment);
    let loading = machine.heap.table(0, 1)?;
    let api = api::loading_api(machine)?;
    machine.heap.set_str(loading, "redis", Value::Table(api))?;
    api::guard(machine, loading)?;
    machine.protect(loading);
    for (pin, table) in [(ENVIRONMENT_PIN, environment), (ENVIRONMENT_META_PIN, meta), (LOADING_PIN, loading)] {
        let given = machine.pin(Value::Table(table));
        assert_eq!(given, pin, "nothing was kept in a new machine before");
    }
    Ok(())
}

/// What `redis.register_function` was given.
struct Registration {
    name: Vec<u8>,
    callback: Value,
    description: Option<Vec<u8>>,
    flags: Option<TableRef>,
}

fn register_function(machine: &mut Machine, known: &[Function]) -> Result<Function, Raise> {
    let given = match machine.arguments() {
        [] => return Err(raised(machine, b"ERR wrong number of arguments to redis.register_function")),
        [Value::Table(table)] => {
            let table = *table;
            named_arguments(machine, table)?
        }
        [_] => {
            return Err(raised(
                machine,
                b"ERR calling redis.register_function with a single argument is only applicable to Lua table (representing named arguments).",
            ));
        }
        [name, callback] => {
            let (name, callback) = (*name, *callback);
            let Some(name) = text_of(machine, name) else {
                return Err(raised(machine, b"ERR first argument to redis.register_function must be a string"));
            };
            if !is_function(callback) {
                return Err(raised(machine, b"ERR second argument to redis.register_function must be a function"));
            }
            Registration { name, callback, description: None, flags: None }
        }
        _ => return Err(raised(machine, b"ERR wrong number of arguments to redis.register_function")),
    };
    let (flags, flag_names) = match given.flags {
        Some(table) => read_flags(machine, table)?,
        None => (ScriptFlags::default(), Vec::new()),
    };
    let flags = ScriptFlags { is_declared: true, ..flags };
    if !is_name(&given.name) {
        return Err(raised(machine, WRONG_NAME.as_bytes()));
    }
    if known.iter().any(|function| function.name.eq_ignore_ascii_case(&given.name)) {
        return Err(raised(machine, b"ERR Function already exists in the library"));
    }
    let pin = machine.pin(given.callback);
    Ok(Function { name: given.name, description: given.description, flag_names, flags, pin })
}

fn is_function(value: Value) -> bool {
    matches!(value, Value::Function(_))
}

fn text_of(machine: &Machine, value: Value) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    machine.append_text(value, &mut text).ok().filter(|is_text| *is_text).map(|_| text)
}

fn named_arguments(machine: &mut Machine, table: TableRef) -> Result<Registration, Raise> {
    let (mut name, mut callback, mut description, mut flags) = (None, None, None, None);
    let mut key = Value::Nil;
    while let Ok(Some((next, value))) = machine.heap.next(table, key) {
        key = next;
        let Some(field) = text_of(machine, key) else {
            return Err(raised(machine, b"ERR named argument key given to redis.register_function is not a string"));
        };
        let problem: &[u8] = match &field.to_ascii_lowercase()[..] {
            b"function_name" => {
                name = text_of(machine, value);
                if name.is_some() {
                    continue;
                }
                b"ERR function_name argument given to redis.register_function must be a string"
            }
            b"description" => {
                description = text_of(machine, value);
                if description.is_some() {
                    continue;
                }
                b"ERR description argument given to redis.register_function must be a string"
            }
            b"callback" => {
                if is_function(value) {
                    callback = Some(value);
                    continue;
                }
                b"ERR callback argument given to redis.register_function must be a function"
            }
            b"flags" => {
                if let Value::Table(table) = value {
                    flags = Some(table);
                    continue;
                }
                b"ERR flags argument to redis.register_function must be a table representing function flags"
            }
            _ => b"ERR unknown argument given to redis.register_function",
        };
        return Err(raised(machine, problem));
    }
    let Some(name) = name else {
        return Err(raised(machine, b"ERR redis.register_function must get a function name argument"));
    };
    let Some(callback) = callback else {
        return Err(raised(machine, b"ERR redis.register_function must get a callback argument"));
    };
    Ok(Registration { name, callback, description, flags })
}

fn read_flags(machine: &mut Machine, table: TableRef) -> Result<(ScriptFlags, Vec<&'static str>), Raise> {
    let (mut flags, mut names) = (ScriptFlags::default(), Vec::new());
    for at in 1.. {
        let value = machine.heap.get_index(table, at);
        if matches!(value, Value::Nil) {
            break;
        }
        let name = match value {
            Value::String(string) => String::from_utf8_lossy(machine.heap.bytes(string)).into_owned(),
            _ => String::new(),
        };
        let known = FLAG_NAMES.iter().find(|known| **known == name);
        let (Some(known), Ok(())) = (known, set_flag(&mut flags, name.as_bytes())) else {
            return Err(raised(machine, b"ERR unknown flag given"));
        };
        if !names.contains(known) {
            names.push(known);
        }
    }
    Ok((flags, names))
}
