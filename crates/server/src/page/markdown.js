// Markdown as nodes of the document. A text becomes text nodes and elements of a fixed few kinds: nothing in it is ever read as HTML.

const { element, copied, coloured, formula } = Alight;

// Only these may be followed; every other address stays text.
const safe = (address) => /^https?:\/\//i.test(address) || /^mailto:[^\s]+$/i.test(address);

const link = (words, address, depth) => {
  if (!safe(address)) return [document.createTextNode(`${words} (${address})`)];
  const made = element("a", { href: address, rel: "noopener noreferrer nofollow", target: "_blank", title: address });
  // There is no link in a link.
  made.append(...(safe(words) ? [document.createTextNode(words)] : inline(words, depth + 1)));
  return [made];
};

// Marks within a line. What a mark may reach is bounded, and what cannot be closed is not looked for again, so that a hostile text takes
// about as long as its length.
const MAX_DEEP = 8;
// The rest of a paragraph that has more of them is text.
const MAX_NODES = 10_000;
const SPECIAL = /[`*_~[!$\\\n]|https?:\/\//g;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const ADDRESS = /https?:\/\/[^\s<>()"']{1,2000}/y;
const isWord = (c) => c !== undefined && /\w/.test(c);
const isSpace = (c) => c === undefined || /\s/.test(c);

const runLength = (text, at) => {
  let end = at;
  while (text[end] === text[at]) end++;
  return end - at;
};

// `code`, between runs of equally many marks.
const codeAt = (text, at, open) => {
  const length = runLength(text, at);
  if (open.has(length)) return null;
  for (let i = text.indexOf("`", at + length); i >= 0; i = text.indexOf("`", i)) {
    const other = runLength(text, i);
    if (other === length) {
      return { nodes: [element("code", { text: text.slice(at + length, i).trim() })], end: i + other };
    }
    i += other;
  }
  open.add(length);
  return null;
};

// [words](address) and ![words](address), the address with a title or without.
const linkAt = (text, at, depth) => {
  const picture = text[at] === "!";
  const from = at + (picture ? 2 : 1);
  if (picture && text[at + 1] !== "[") return null;
  const words = text.slice(from, from + 400);
  const close = words.indexOf("](");
  if (close < 0 || (!picture && close === 0)) return null;
  const rest = text.slice(from + close + 2, from + close + 2 + 2400);
  const end = rest.indexOf(")");
  if (end < 0) return null;
  const [address] = rest.slice(0, end).trim().split(/\s/, 1);
  const said = words.slice(0, close);
  const nodes = picture ? [document.createTextNode(`[picture: ${said} ${address}]`)] : link(said, address, depth);
  return { nodes, end: from + close + 2 + end + 1 };
};

// What stands between two of the same marks.
const betweenAt = (text, at, mark, kind, depth) => {
  const from = at + mark.length;
  if (!text.startsWith(mark, at) || isSpace(text[from]) || text[from] === mark[0]) return null;
  if (mark === "_" && isWord(text[at - 1])) return null;
  for (let i = text.indexOf(mark, from + 1); i >= 0 && i - from <= 2000; i = text.indexOf(mark, i + 1)) {
    const after = text[i + mark.length];
    if (isSpace(text[i - 1]) || after === mark[0] || (mark === "_" && isWord(after))) continue;
    return { nodes: [element(kind, {}, ...inline(text.slice(from, i), depth + 1))], end: i + mark.length };
  }
  return null;
};

// A formula between two marks, or what was written if it cannot be read.
const MAX_FORMULA = 8000;
const formulaBetween = (text, at, mark, close, isBlock) => {
  const from = at + mark.length;
  const length = text.slice(from, from + MAX_FORMULA).indexOf(close);
  if (length <= 0) return null;
  const end = from + length + close.length;
  return { nodes: [formula(text.slice(from, from + length), isBlock) ?? element("code", { text: text.slice(at, end) })], end };
};

// $formula$: a sum of money is none, since there is a space before its next mark or a digit after it.
const MAX_INLINE_FORMULA = 1000;
const dollarsAt = (text, at) => {
  if (text[at + 1] === "$") return formulaBetween(text, at, "$$", "$$", true);
  if (isSpace(text[at + 1])) return null;
  const length = text.slice(at + 1, at + 1 + MAX_INLINE_FORMULA).search(/(?<!\\)\$/);
  const end = at + 1 + length;
  if (length <= 0 || isSpace(text[end - 1]) || /\d/.test(text[end + 1] ?? "")) return null;
  const source = text.slice(at + 1, end);
  return { nodes: [formula(source, false) ?? element("code", { text: `$${source}$` })], end: end + 1 };
};

const backslashAt = (text, at) => {
  const next = text[at + 1] ?? "";
  const found = next === "(" ? formulaBetween(text, at, "\\(", "\\)", false) : next === "[" ? formulaBetween(text, at, "\\[", "\\]", true) : null;
  return found ?? (PUNCTUATION.test(next) ? { nodes: [document.createTextNode(next)], end: at + 2 } : null);
};

const markAt = (text, at, open, depth) => {
  switch (text[at]) {
    case "\n": return { nodes: [element("br")], end: at + 1 };
    case "$": return dollarsAt(text, at);
    case "\\": return backslashAt(text, at);
    case "`": return codeAt(text, at, open);
    case "!": case "[": return linkAt(text, at, depth);
    case "*": return betweenAt(text, at, "**", "strong", depth) ?? betweenAt(text, at, "*", "em", depth);
    case "_": return betweenAt(text, at, "_", "em", depth);
    case "~": return betweenAt(text, at, "~~", "s", depth);
    default: {
      ADDRESS.lastIndex = at;
      const found = ADDRESS.exec(text);
      return found && { nodes: link(found[0], found[0], MAX_DEEP), end: at + found[0].length };
    }
  }
};

const inline = (text, depth = 0) => {
  if (depth >= MAX_DEEP) return [document.createTextNode(text)];
  const nodes = [], open = new Set();
  let from = 0, at = 0;
  while (nodes.length < MAX_NODES) {
    SPECIAL.lastIndex = at;
    const next = SPECIAL.exec(text);
    if (!next) break;
    const found = markAt(text, next.index, open, depth);
    if (!found) {
      // A run of marks that mean nothing is passed as a whole; the last [ of several may be that of a link.
      at = next.index + ("`*_~".includes(text[next.index]) ? runLength(text, next.index) : 1);
      continue;
    }
    if (next.index > from) nodes.push(document.createTextNode(text.slice(from, next.index)));
    nodes.push(...found.nodes);
    from = at = found.end;
  }
  if (from < text.length) nodes.push(document.createTextNode(text.slice(from)));
  return nodes;
};

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;

// The source of each block: what is between empty lines, and fenced code as a whole.
const blocks = (text) => {
  const all = [];
  let now = [], fence = null;
  const end = () => { if (now.length) all.push(now.join("\n")); now = []; };
  for (const line of text.split("\n")) {
    const found = FENCE.exec(line);
    if (fence) {
      now.push(line);
      if (found && found[1].startsWith(fence) && !found[2]) { fence = null; end(); }
    } else if (found) {
      end(); fence = found[1]; now.push(line);
    } else if (!line.trim()) {
      end();
    } else if (/^ {0,3}#{1,6}\s/.test(line)) {
      end(); now.push(line); end();
    } else {
      now.push(line);
    }
  }
  end();
  return all;
};

const code = (source) => {
  const all = source.split("\n");
  const [, fence, language] = FENCE.exec(all[0]);
  const closed = all.length > 1 && all[all.length - 1].trim().startsWith(fence);
  const text = all.slice(1, closed ? -1 : undefined).join("\n");
  const button = element("button", { type: "button", text: "Copy" });
  button.addEventListener("click", () => copied(button, text));
  const title = element("div", { className: "title" }, element("span", { text: language || "text" }), button);
  const pre = element("pre", { tabIndex: 0, "aria-label": `Code, ${language || "text"}` }, element("code", {}, ...coloured(text, language, !closed)));
  return element("div", { className: "code" }, title, pre);
};

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());

const table = (rows) => {
  const head = element("tr", {}, ...cells(rows[0]).map((cell) => element("th", {}, ...inline(cell))));
  const body = rows.slice(2).map((row) => element("tr", {}, ...cells(row).map((cell) => element("td", {}, ...inline(cell)))));
  const made = element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
  return element("div", { className: "wide-table", tabIndex: 0 }, made);
};

// The rows of each item as one text, with its sign and how far it is indented.
const itemTexts = (rows) => {
  const all = [];
  for (const row of rows) {
    const found = ITEM.exec(row);
    if (found) all.push({ indent: found[1].length, sign: found[2], text: found[3] });
    else all[all.length - 1].text += ` ${row.trim()}`;
  }
  return all;
};

const items = (rows) => {
  const stack = [];
  for (const { indent, sign, text } of itemTexts(rows)) {
    while (stack.length > 1 && indent < stack[stack.length - 1].indent) stack.pop();
    let top = stack[stack.length - 1];
    if (!top || (indent > top.indent + 1 && stack.length < 8)) {
      const ordered = /\d/.test(sign);
      const list = element(ordered ? "ol" : "ul");
      if (ordered) list.start = parseInt(sign, 10);
      top?.last.append(list);
      top = { list, indent, last: null };
      stack.push(top);
    }
    top.last = element("li", {}, ...inline(text));
    top.list.append(top.last);
  }
  return stack[0].list;
};

const block = (source, depth = 0) => {
  const rows = source.split("\n");
  if (FENCE.test(rows[0])) return code(source);
  const heading = /^ {0,3}(#{1,6})\s/.exec(rows[0]);
  if (heading) return element(`h${Math.min(heading[1].length + 1, 4)}`, {}, ...inline(rows[0].slice(heading[0].length).trim()));
  if (rows.length === 1 && /^ {0,3}([-*_])( *\1){2,} *$/.test(rows[0])) return element("hr");
  if (rows.every((row) => /^ {0,3}>/.test(row)) && depth < 4) {
    const inside = rows.map((row) => row.replace(/^ {0,3}> ?/, "")).join("\n");
    return element("blockquote", {}, ...blocks(inside).map((one) => block(one, depth + 1)));
  }
  if (rows.length > 1 && rows[0].includes("|") && /^[\s|:-]+$/.test(rows[1]) && rows[1].includes("-")) return table(rows);
  if (ITEM.test(rows[0])) return items(rows);
  const begins = rows.findIndex((row) => ITEM.test(row));
  if (begins > 0) {
    const before = element("p", {}, ...inline(rows.slice(0, begins).join("\n")));
    return element("div", {}, before, items(rows.slice(begins)));
  }
  return element("p", {}, ...inline(source));
};

// Shows a text in `into`. What was shown of it already stays, so that a growing text costs its last block only.
const show = (into, text) => {
  const wanted = blocks(text);
  const shown = into.shown ?? [];
  let same = 0;
  while (same < wanted.length && wanted[same] === shown[same]) same++;
  while (into.childNodes.length > same) into.lastChild.remove();
  wanted.slice(same).forEach((source) => into.append(block(source)));
  into.shown = wanted;
};

Object.assign(Alight, { show });
