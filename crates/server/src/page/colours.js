// Colours of code: comments, texts, numbers and keywords, found by one expression for each language that is made of the description below. It
// takes no step twice, so that a hostile text takes about as long as its length.

const { element } = Alight;
// Longer code stays plain, and so does code that is still being written and is longer than the other limit: it is coloured again for each piece.
const MAX_CODE = 100_000;
const MAX_GROWING = 8_000;
// After this many of them, the rest of the code is plain.
const MAX_NODES = 20_000;

const SLASHES = "//[^\\n]*|/\\*(?:[^]*?\\*/|[^]*)";
const HASH = "#[^\\n]*";
const DASHES = "--[^\\n]*";
const DOUBLE = '"(?:[^"\\\\\\n]|\\\\[^])*"?';
const SINGLE = "'(?:[^'\\\\\\n]|\\\\[^])*'?";
const QUOTES = `${DOUBLE}|${SINGLE}`;
const BACKTICKS = "`(?:[^`\\\\]|\\\\[^])*`?";
const TRIPLE = '"""(?:[^]*?"""|[^]*)|\'\'\'(?:[^]*?\'\'\'|[^]*)';
const WORD = "[A-Za-z_$][\\w$]*";
const NUMBER = "\\d[\\w]*(?:\\.\\d[\\w]*)?";

const COMMON = "if else for while do switch case default break continue return true false";
const OBJECTS = `${COMMON} class new this super public private protected static final abstract interface extends implements import package
  throw throws try catch finally null void enum`;
const TYPES = "int long short char float double bool boolean byte unsigned signed const struct union typedef sizeof auto extern register volatile";

// [names, comments, texts, keywords, flags]
const LANGUAGES = [
  ["rust rs", SLASHES, `r#+"(?:[^]*?"#+|[^]*)|${DOUBLE}|'(?:[^'\\\\\\n]|\\\\[^\\n]{1,9})'`,
    `as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self
    Self static struct super trait true type unsafe use where while`],
  ["c h cpp c++ cc hpp cuda objc", SLASHES, QUOTES,
    `${COMMON} ${TYPES} goto inline NULL nullptr namespace template typename using class new delete this public private protected virtual
    override operator try catch throw static_cast constexpr noexcept`],
  ["java", SLASHES, `${TRIPLE}|${QUOTES}`, `${OBJECTS} ${TYPES} instanceof synchronized record var sealed permits yield`],
  ["cs csharp c#", SLASHES, QUOTES,
    `${OBJECTS} ${TYPES} namespace using var string object get set async await is as in out ref override virtual sealed readonly record
    where yield foreach base`],
  ["kotlin kt swift scala dart", SLASHES, `${TRIPLE}|${QUOTES}`,
    `${OBJECTS} fun func val var let when is as in object override data sealed companion init guard self nil protocol struct extension where
    some any async await def trait match with lazy late required typealias inout`],
  ["go golang", SLASHES, `${QUOTES}|${BACKTICKS}`,
    `${COMMON} func var const type struct interface map chan package import go defer range select fallthrough nil string int int64 error
    bool byte rune make append len`],
  ["js javascript jsx mjs ts typescript tsx", SLASHES, `${QUOTES}|${BACKTICKS}`,
    `${COMMON} function const let var class new this super extends import export from as async await yield of in typeof instanceof delete
    void null undefined throw try catch finally static get set interface type enum implements private public readonly string number boolean
    any unknown never keyof`],
  ["php", `${SLASHES}|${HASH}`, QUOTES,
    `${OBJECTS} function echo array foreach as use namespace fn match isset empty require include self parent`],
  ["python py python3", HASH, `${TRIPLE}|${QUOTES}`,
    `and as assert async await break class continue def del elif else except False finally for from global if import in is lambda match case
    None nonlocal not or pass raise return self True try while with yield`],
  ["ruby rb", HASH, QUOTES,
    `alias and begin break case class def do else elsif end ensure false for if in module next nil not or redo rescue retry return self
    super then true undef unless until when while yield require attr_accessor puts`],
  ["sh bash shell zsh console fish", "(?<![\\w$])#[^\\n]*", `"(?:[^"\\\\]|\\\\[^])*"?|'[^']*'?`,
    `if then else elif fi for in do done while until case esac function return export local set unset echo cd exit source sudo alias`],
  ["sql sqlite postgresql mysql", `${DASHES}|/\\*(?:[^]*?\\*/|[^]*)`, QUOTES,
    `select from where and or not in is null insert into values update set delete create table view index drop alter add column primary key
    foreign references join left right inner outer full on as group by order having limit offset union all distinct case when then else end
    exists between like with asc desc default unique check constraint int integer text varchar boolean date timestamp`, "i"],
  ["json jsonc json5", SLASHES, QUOTES, "true false null"],
  ["yaml yml toml ini conf dockerfile makefile make cmake nix r perl pl elixir julia jl powershell ps1", HASH, `${TRIPLE}|${QUOTES}`,
    `${COMMON} true false null yes no on off function end FROM RUN COPY CMD ENTRYPOINT ENV WORKDIR EXPOSE ARG USER let in with rec inherit
    my sub use def defmodule fn TRUE FALSE NULL library using begin module struct param elseif foreach`],
  ["lua haskell hs", DASHES, `${QUOTES}|\\[\\[(?:[^]*?\\]\\]|[^]*)`,
    `and break do else elseif end false for function goto if in local nil not or repeat return then true until while module where import
    data type newtype class instance deriving let case of qualified`],
  ["css scss less", "/\\*(?:[^]*?\\*/|[^]*)", QUOTES,
    `important media import from to not and only supports keyframes inherit initial unset auto none`],
  ["html xml svg vue", "<!--(?:[^]*?-->|[^]*)", '"[^"<>]*"', ""],
];

const byName = new Map();
for (const [names, comments, strings, keywords, flags = ""] of LANGUAGES) {
  const tags = names.startsWith("html");
  const language = {
    // The last alternative takes whatever has no colour.
    scan: () => new RegExp(`(${comments})|(${strings})|(${tags ? "</?[A-Za-z][\\w:-]*|/?>" : WORD})|(${NUMBER})|[^]`, `gy${flags}`),
    isKeyword: tags ? () => true : ((words) => (word) => words.has(flags ? word.toLowerCase() : word))(new Set(keywords.split(/\s+/))),
  };
  names.split(" ").forEach((name) => byName.set(name, language));
}

// Code as nodes. `growing`: more of it may come.
const coloured = (text, name, growing) => {
  const language = byName.get(name.toLowerCase());
  if (!language || text.length > (growing ? MAX_GROWING : MAX_CODE)) return [document.createTextNode(text)];
  const nodes = [];
  let plain = "";
  const flush = () => { if (plain) nodes.push(document.createTextNode(plain)); plain = ""; };
  for (const [whole, comment, string, word, number] of text.matchAll(language.scan())) {
    const kind = comment !== undefined ? "comment" : string !== undefined ? "string" : number !== undefined ? "number"
      : word !== undefined && language.isKeyword(word) ? "keyword" : null;
    if (!kind || nodes.length >= MAX_NODES) { plain += whole; continue; }
    flush();
    nodes.push(element("span", { className: kind, text: whole }));
  }
  flush();
  return nodes;
};

Alight.coloured = coloured;
