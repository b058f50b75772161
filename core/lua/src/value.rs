//! Values and references to objects on the [`Heap`](crate::Heap).

/// A reference to a string. Short strings are interned: equal ones have equal references.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StringRef(pub(crate) u32);

/// Set in references to strings that are too long to be interned.
const LONG: u32 = 1 << 31;

impl StringRef {
    pub(crate) fn new(index: u32, is_long: bool) -> StringRef {
        StringRef(if is_long { index | LONG } else { index })
    }

    #[inline]
    pub(crate) fn index(self) -> u32 {
        self.0 & !LONG
    }

    #[inline]
    pub(crate) fn is_long(self) -> bool {
        self.0 & LONG != 0
    }
}

/// A reference to a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableRef(pub(crate) u32);

/// A reference to a function that is written in Lua.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosureRef(pub(crate) u32);

/// A function of a library or of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NativeRef(pub(crate) u32);

/// A library's function with values of its own, such as an iterator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundRef(pub(crate) u32);

/// A reference to a coroutine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadRef(pub(crate) u32);

/// A reference to a variable that closures share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UpvalueRef(pub u32);

/// A Lua value.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub enum Value {
    #[default]
    Nil,
    Boolean(bool),
    Number(f64),
    String(StringRef),
    Table(TableRef),
    Function(ClosureRef),
    Native(NativeRef),
    Bound(BoundRef),
    Thread(ThreadRef),
    /// A light userdata: an opaque number of the host, such as `cjson.null`.
    Light(u32),
}

impl Value {
    /// Whether a condition takes it as true.
    #[inline]
    pub fn is_truthy(self) -> bool {
        !matches!(self, Value::Nil | Value::Boolean(false))
    }

    /// Whether it is `nil`.
    #[inline]
    pub fn is_nil(self) -> bool {
        matches!(self, Value::Nil)
    }

    /// The name of its type, as `type` returns it.
    pub fn type_name(self) -> &'static str {
        match self {
            Value::Nil => "nil",
            Value::Boolean(_) => "boolean",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Table(_) => "table",
            Value::Function(_) | Value::Native(_) | Value::Bound(_) => "function",
            Value::Thread(_) => "thread",
            Value::Light(_) => "userdata",
        }
    }
}
