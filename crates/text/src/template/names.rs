//! The names in templates: filters, tests, methods, comparisons, and their variants.

/// The way a text changes case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    Upper,
    Lower,
    /// The first character upper, the others lower.
    Capitalize,
    /// The first letter of every word upper.
    Title,
    Swap,
}

/// The ends of a text to strip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StrippedEnds {
    Both,
    Left,
    Right,
}

/// The position of a text in a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
    Center,
}

/// The properties that the `is…` methods of strings check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Is {
    Alpha,
    Digit,
    Decimal,
    Numeric,
    Alnum,
    Space,
    Upper,
    Lower,
    Title,
    Ascii,
    Printable,
    Identifier,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ViewKind {
    Keys,
    Values,
    Items,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}

macro_rules! filters {
    ($($name:literal => $filter:ident,)*) => {
        /// A filter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Filter { $($filter),* }

        impl Filter {
            /// The filter with this name.
            pub(super) fn named(name: &str) -> Option<Filter> {
                let name = match name {
                    "count" => "length",
                    "d" => "default",
                    "e" => "escape",
                    name => name,
                };
                match name {
                    $($name => Some(Filter::$filter),)*
                    _ => None,
                }
            }

            /// Its name.
            pub(super) fn name(self) -> &'static str {
                match self { $(Filter::$filter => $name),* }
            }
        }
    };
}

filters! {
    "abs" => Abs,
    "attr" => Attr,
    "batch" => Batch,
    "capitalize" => Capitalize,
    "center" => Center,
    "default" => Default,
    "dictsort" => DictSort,
    "escape" => Escape,
    "filesizeformat" => FileSize,
    "first" => First,
    "float" => Float,
    "forceescape" => ForceEscape,
    "format" => Format,
    "groupby" => GroupBy,
    "indent" => Indent,
    "int" => Int,
    "items" => Items,
    "join" => Join,
    "last" => Last,
    "length" => Length,
    "list" => List,
    "lower" => Lower,
    "map" => Map,
    "max" => Max,
    "min" => Min,
    "reject" => Reject,
    "rejectattr" => RejectAttr,
    "replace" => Replace,
    "reverse" => Reverse,
    "round" => Round,
    "safe" => Safe,
    "select" => Select,
    "selectattr" => SelectAttr,
    "slice" => Slice,
    "sort" => Sort,
    "string" => String,
    "sum" => Sum,
    "title" => Title,
    "tojson" => ToJson,
    "trim" => Trim,
    "truncate" => Truncate,
    "unique" => Unique,
    "upper" => Upper,
    "urlencode" => UrlEncode,
    "wordcount" => WordCount,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    Boolean,
    Callable,
    Compare(Compare),
    Defined(bool),
    DivisibleBy,
    Escaped,
    Even(bool),
    Exact(bool),
    NameOfFilter,
    Float,
    Integer,
    Iterable,
    Lower,
    Mapping,
    None,
    Number,
    SameAs,
    Sequence,
    String,
    NameOfOne,
    Upper,
}

impl Test {
    /// The test with this name.
    pub(super) fn named(name: &str) -> Option<Test> {
        Some(match name {
            "boolean" => Test::Boolean,
            "callable" => Test::Callable,
            "==" | "eq" | "equalto" => Test::Compare(Compare::Eq),
            "!=" | "ne" => Test::Compare(Compare::Ne),
            "<" | "lt" | "lessthan" => Test::Compare(Compare::Lt),
            "<=" | "le" => Test::Compare(Compare::Le),
            ">" | "gt" | "greaterthan" => Test::Compare(Compare::Gt),
            ">=" | "ge" => Test::Compare(Compare::Ge),
            "in" => Test::Compare(Compare::In),
            "defined" => Test::Defined(true),
            "undefined" => Test::Defined(false),
            "divisibleby" => Test::DivisibleBy,
            "escaped" => Test::Escaped,
            "even" => Test::Even(true),
            "odd" => Test::Even(false),
            "true" => Test::Exact(true),
            "false" => Test::Exact(false),
            "filter" => Test::NameOfFilter,
            "float" => Test::Float,
            "integer" => Test::Integer,
            "iterable" => Test::Iterable,
            "lower" => Test::Lower,
            "mapping" => Test::Mapping,
            "none" => Test::None,
            "number" => Test::Number,
            "sameas" => Test::SameAs,
            "sequence" => Test::Sequence,
            "string" => Test::String,
            "test" => Test::NameOfOne,
            "upper" => Test::Upper,
            _ => return None,
        })
    }
}

/// A method of any type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Case(Case),
    Casefold,
    Count,
    EndsWith,
    ExpandTabs,
    Find(bool),
    Format,
    FormatMap,
    Index(bool),
    Is(Is),
    Join,
    Justify(Side),
    Partition(bool),
    RemovePrefix,
    RemoveSuffix,
    Replace,
    Split(bool),
    SplitLines,
    StartsWith,
    Strip(StrippedEnds),
    Zfill,
    Copy,
    Get,
    View(ViewKind),
    CyclerNext,
    CyclerReset,
    LoopCycle,
    LoopChanged,
    IsInteger,
}

pub(super) fn text_method(name: &str) -> Option<Method> {
    Some(match name {
        "upper" => Method::Case(Case::Upper),
        "lower" => Method::Case(Case::Lower),
        "capitalize" => Method::Case(Case::Capitalize),
        "title" => Method::Case(Case::Title),
        "swapcase" => Method::Case(Case::Swap),
        "casefold" => Method::Casefold,
        "count" => Method::Count,
        "endswith" => Method::EndsWith,
        "expandtabs" => Method::ExpandTabs,
        "find" => Method::Find(false),
        "rfind" => Method::Find(true),
        "format" => Method::Format,
        "format_map" => Method::FormatMap,
        "index" => Method::Index(false),
        "rindex" => Method::Index(true),
        "isalpha" => Method::Is(Is::Alpha),
        "isdigit" => Method::Is(Is::Digit),
        "isdecimal" => Method::Is(Is::Decimal),
        "isnumeric" => Method::Is(Is::Numeric),
        "isalnum" => Method::Is(Is::Alnum),
        "isspace" => Method::Is(Is::Space),
        "isupper" => Method::Is(Is::Upper),
        "islower" => Method::Is(Is::Lower),
        "istitle" => Method::Is(Is::Title),
        "isascii" => Method::Is(Is::Ascii),
        "isprintable" => Method::Is(Is::Printable),
        "isidentifier" => Method::Is(Is::Identifier),
        "join" => Method::Join,
        "ljust" => Method::Justify(Side::Left),
        "rjust" => Method::Justify(Side::Right),
        "center" => Method::Justify(Side::Center),
        "partition" => Method::Partition(false),
        "rpartition" => Method::Partition(true),
        "removeprefix" => Method::RemovePrefix,
        "removesuffix" => Method::RemoveSuffix,
        "replace" => Method::Replace,
        "split" => Method::Split(false),
        "rsplit" => Method::Split(true),
        "splitlines" => Method::SplitLines,
        "startswith" => Method::StartsWith,
        "strip" => Method::Strip(StrippedEnds::Both),
        "lstrip" => Method::Strip(StrippedEnds::Left),
        "rstrip" => Method::Strip(StrippedEnds::Right),
        "zfill" => Method::Zfill,
        _ => return None,
    })
}
