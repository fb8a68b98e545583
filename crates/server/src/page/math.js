// Formulas of LaTeX as MathML, which browsers set themselves: no fonts, no styles, nothing to load. A formula becomes elements of a fixed few
// kinds, each command at most one of them. A command that is not known here stands in the formula as it was written.

const SPACE = "http://www.w3.org/1998/Math/MathML";
const MAX_DEPTH = 40;

const make = (name, attributes = {}, ...children) => {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};
const row = (nodes) => (nodes.length === 1 ? nodes[0] : make("mrow", {}, ...nodes));
const operator = (text, more = {}) => make("mo", more, text);
// A bracket is as high as it is by itself, unless \left and \right stretch it.
const plain = (text) => operator(text, { stretchy: "false" });

const pairs = (text) => new Map(text.trim().split(/\s+/).map((one) => [one.slice(0, one.indexOf(":")), one.slice(one.indexOf(":") + 1)]));

const LETTERS = pairs(`
  alpha:α beta:β gamma:γ delta:δ epsilon:ϵ varepsilon:ε zeta:ζ eta:η theta:θ vartheta:ϑ iota:ι kappa:κ lambda:λ mu:μ nu:ν xi:ξ omicron:ο pi:π
  varpi:ϖ rho:ρ varrho:ϱ sigma:σ varsigma:ς tau:τ upsilon:υ phi:ϕ varphi:φ chi:χ psi:ψ omega:ω Gamma:Γ Delta:Δ Theta:Θ Lambda:Λ Xi:Ξ Pi:Π
  Sigma:Σ Upsilon:Υ Phi:Φ Psi:Ψ Omega:Ω ell:ℓ hbar:ℏ imath:ı jmath:ȷ Re:ℜ Im:ℑ wp:℘ aleph:ℵ infty:∞ partial:∂ nabla:∇ emptyset:∅ varnothing:∅
  top:⊤ bot:⊥ angle:∠ triangle:△ square:□ blacksquare:■ Box:□ checkmark:✓ degree:° prime:′ dagger:† ddagger:‡ S:§ pounds:£ clubsuit:♣
  diamondsuit:♢ heartsuit:♡ spadesuit:♠ dots:… ldots:… cdots:⋯ vdots:⋮ ddots:⋱ dotsc:… dotsb:⋯ $:$ %:% #:# &:& _:_ forall:∀ exists:∃ nexists:∄`);
const OPERATORS = pairs(`
  pm:± mp:∓ times:× div:÷ cdot:⋅ ast:∗ star:⋆ circ:∘ bullet:∙ oplus:⊕ ominus:⊖ otimes:⊗ oslash:⊘ odot:⊙ wedge:∧ land:∧ vee:∨ lor:∨ cap:∩ cup:∪
  uplus:⊎ sqcap:⊓ sqcup:⊔ setminus:∖ backslash:∖ amalg:⨿ neg:¬ lnot:¬ leq:≤ le:≤ geq:≥ ge:≥ leqslant:⩽ geqslant:⩾ ll:≪ gg:≫ neq:≠ ne:≠ equiv:≡
  sim:∼ simeq:≃ approx:≈ cong:≅ propto:∝ doteq:≐ asymp:≍ prec:≺ succ:≻ preceq:⪯ succeq:⪰ in:∈ notin:∉ ni:∋ subset:⊂ supset:⊃ subseteq:⊆
  supseteq:⊇ subsetneq:⊊ sqsubseteq:⊑ mid:∣ nmid:∤ parallel:∥ perp:⟂ vdash:⊢ dashv:⊣ models:⊨ vDash:⊨ to:→ rightarrow:→ leftarrow:← gets:←
  leftrightarrow:↔ Rightarrow:⇒ implies:⟹ Leftarrow:⇐ impliedby:⟸ Leftrightarrow:⇔ iff:⟺ longrightarrow:⟶ longleftarrow:⟵ Longrightarrow:⟹
  Longleftarrow:⟸ longleftrightarrow:⟷ mapsto:↦ longmapsto:⟼ uparrow:↑ downarrow:↓ updownarrow:↕ Uparrow:⇑ Downarrow:⇓ nearrow:↗ searrow:↘
  swarrow:↙ nwarrow:↖ hookrightarrow:↪ hookleftarrow:↩ rightharpoonup:⇀ leftharpoonup:↼ rightleftharpoons:⇌ leadsto:⇝ therefore:∴ because:∵
  colon:: vert:| Vert:‖ |:‖ lbrace:{ {:{ rbrace:} }:} lbrack:[ rbrack:] langle:⟨ rangle:⟩ lfloor:⌊ rfloor:⌋ lceil:⌈ rceil:⌉ lvert:| rvert:|
  lVert:‖ rVert:‖ triangleq:≜ coloneqq:≔ lhd:⊲ rhd:⊳ lesssim:≲ gtrsim:≳ ltimes:⋉ rtimes:⋊ bowtie:⋈`);
const LARGE = pairs(`
  sum:∑ prod:∏ coprod:∐ bigcup:⋃ bigcap:⋂ bigvee:⋁ bigwedge:⋀ bigoplus:⨁ bigotimes:⨂ bigodot:⨀ biguplus:⨄ bigsqcup:⨆`);
const INTEGRALS = pairs("int:∫ iint:∬ iiint:∭ oint:∮ oiint:∯");
const FUNCTIONS = new Set("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh coth log ln lg exp dim ker deg hom arg".split(" "));
// Their limits stand below them.
const LIMITS = new Map("lim max min sup inf det gcd Pr argmax argmin".split(" ").map((name) => [name, name]));
LIMITS.set("limsup", "lim sup").set("liminf", "lim inf");
const ACCENTS = pairs(`
  hat:^ widehat:^ bar:¯ overline:¯ vec:→ overrightarrow:→ overleftarrow:← dot:˙ ddot:¨ dddot:⃛ tilde:~ widetilde:~ check:ˇ breve:˘ acute:´
  grave:ˋ mathring:˚ overbrace:⏞`);
const UNDER = pairs("underline:_ underbrace:⏟");
const WIDE = new Set("widehat overline overrightarrow overleftarrow widetilde overbrace underline underbrace".split(" "));
const SPACES = pairs(",:.167em ;:.278em >:.222em !:-.167em quad:1em qquad:2em thinspace:.167em enspace:.5em space:.25em");
SPACES.set(":", ".222em");
const TEXTS = new Set("text textrm textbf textit textsf texttt textnormal mbox hbox mathrm mathop".split(" "));
// Styles that change nothing here, and commands whose argument is not shown.
const NOTHING = new Set("displaystyle textstyle scriptstyle scriptscriptstyle limits nolimits nonumber notag hline rm it bf allowbreak".split(" "));
const UNSHOWN = new Set("label color hspace vspace".split(" "));
const SIZES = /^[bB]ig{1,2}[lrm]?$/;
const FENCES = new Map([["matrix", ["", ""]], ["smallmatrix", ["", ""]], ["pmatrix", ["(", ")"]], ["bmatrix", ["[", "]"]], ["Bmatrix", ["{", "}"]],
  ["vmatrix", ["|", "|"]], ["Vmatrix", ["‖", "‖"]], ["array", ["", ""]], ["cases", ["{", ""]]]);
const ALIGNED = new Set("aligned align alignat split eqnarray alignedat".split(" "));
const PLAIN = new Set("gather gathered equation multline displaymath".split(" "));

// Letters of a style: the first of A–Z, of a–z and of 0–9 in Unicode, and those that stand elsewhere.
const STYLES = new Map([
  ["mathbf", [0x1D400, 0x1D41A, 0x1D7CE]],
  ["boldsymbol", [0x1D468, 0x1D482, 0x1D7CE]], ["bm", [0x1D468, 0x1D482, 0x1D7CE]],
  ["mathbb", [0x1D538, 0x1D552, 0x1D7D8, "Cℂ Hℍ Nℕ Pℙ Qℚ Rℝ Zℤ"]],
  ["mathcal", [0x1D49C, 0x1D4B6, 0, "Bℬ Eℰ Fℱ Hℋ Iℐ Lℒ Mℳ Rℛ eℯ gℊ oℴ"]],
  ["mathfrak", [0x1D504, 0x1D51E, 0, "Cℭ Hℌ Iℑ Rℜ Zℨ"]],
  ["mathsf", [0x1D5A0, 0x1D5BA, 0x1D7E2]], ["mathtt", [0x1D670, 0x1D68A, 0x1D7F6]], ["mathit", [0, 0, 0]],
]);
STYLES.set("mathscr", STYLES.get("mathcal"));
STYLES.set("Bbb", STYLES.get("mathbb"));
const styled = (text, [upper, lower, digit, others = ""]) => [...text].map((c) => {
  const other = others.split(" ").find((one) => one[0] === c);
  if (other) return other.slice(1);
  const base = /[A-Z]/.test(c) ? upper - 65 : /[a-z]/.test(c) ? lower - 97 : /\d/.test(c) ? digit - 48 : 0;
  return base > 0 ? String.fromCodePoint(base + c.charCodeAt(0)) : c;
}).join("");

const TOKEN = /\s+|\\([A-Za-z]+|[^])|\d+(?:\.\d+)?|[^]/gy;

// Reads a formula from its tokens. Throws if its brackets do not match.
class Reader {
  constructor(source) {
    this.tokens = [...source.matchAll(TOKEN)].map(([text]) => text);
    this.at = 0;
    this.depth = 0;
  }

  skipSpace() { while (/^\s/.test(this.tokens[this.at] ?? "")) this.at++; }

  peek() { this.skipSpace(); return this.tokens[this.at]; }

  take() { const token = this.peek(); this.at++; return token; }

  // The text in braces, or the next token.
  text() {
    if (this.peek() !== "{") return this.take() ?? "";
    let depth = 0, text = "";
    for (this.at++; this.at < this.tokens.length; this.at++) {
      const token = this.tokens[this.at];
      if (token === "{") depth++;
      if (token === "}" && depth-- === 0) { this.at++; return text; }
      text += token;
    }
    throw new Error("a brace is not closed");
  }

  // The text in square brackets, if there is one.
  option() {
    if (this.peek() !== "[") return null;
    const end = this.tokens.indexOf("]", this.at);
    if (end < 0) return null;
    const text = this.tokens.slice(this.at + 1, end).join("");
    this.at = end + 1;
    return text;
  }

  star() {
    if (this.peek() !== "*") return false;
    this.at++;
    return true;
  }

  // An argument: what is in braces, or one atom.
  argument() {
    if (this.peek() === undefined) throw new Error("an argument is missing");
    if (this.peek() !== "{") return this.atom();
    this.at++;
    const made = row(this.row(["}"]));
    this.at++;
    return made;
  }

  // Nodes up to one of these tokens, which is not taken; up to the end if there are none.
  row(ends) {
    if (++this.depth > MAX_DEPTH) throw new Error("too deep");
    const nodes = [];
    for (;;) {
      const token = this.peek();
      if (token === undefined && !ends.length) break;
      if (ends.includes(token)) break;
      if (token === undefined || ["}", "\\right", "\\end"].includes(token)) throw new Error("the brackets do not match");
      nodes.push(...this.scripted());
    }
    this.depth--;
    return nodes;
  }

  // An atom with its indices and exponents.
  scripted() {
    const first = this.peek();
    const base = "^_'".includes(first) ? make("mrow") : this.atom();
    let below = null, above = null;
    for (;;) {
      const token = this.peek();
      if (token === "_" && !below) { this.at++; below = this.argument(); }
      else if (token === "^" && !above) { this.at++; above = this.argument(); }
      else if (token === "'" && !above) {
        let primes = "";
        while (this.peek() === "'") { this.at++; primes += "′"; }
        above = operator(primes);
        if (this.peek() === "^") { this.at++; above = row([above, this.argument()]); }
      } else if (token === "\\limits" || token === "\\nolimits") this.at++;
      else break;
    }
    if (!base) return [];
    if (!below && !above) return [base];
    const stacked = base.getAttribute("movablelimits") === "true" || base.hasAttribute("data-braced");
    const name = stacked ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    if (below && above) return [make(name[2], {}, base, below, above)];
    return [make(name[below ? 0 : 1], {}, base, below ?? above)];
  }

  atom() {
    const token = this.take();
    if (token === "{") { const made = row(this.row(["}"])); this.at++; return made; }
    if (token[0] === "\\" && token.length > 1) return this.command(token.slice(1));
    if (/^\d/.test(token)) return make("mn", {}, token);
    if (/^\p{L}$/u.test(token)) return make("mi", {}, token);
    if (token === "~") return make("mspace", { width: ".25em" });
    if (token === "-") return operator("−");
    if (token === "*") return operator("∗");
    return /^[()[\]|/]$/.test(token) ? plain(token) : operator(token);
  }

  command(name) {
    if (LETTERS.has(name)) return make("mi", {}, LETTERS.get(name));
    if (OPERATORS.has(name)) return plain(OPERATORS.get(name));
    if (LARGE.has(name)) return operator(LARGE.get(name), { movablelimits: "true" });
    if (INTEGRALS.has(name)) return operator(INTEGRALS.get(name));
    if (LIMITS.has(name)) return operator(LIMITS.get(name), { movablelimits: "true", lspace: "0", rspace: ".167em" });
    if (FUNCTIONS.has(name)) return operator(name, { form: "prefix", lspace: ".167em", rspace: ".167em" });
    if (SPACES.has(name)) return make("mspace", { width: SPACES.get(name) });
    if (/^\s/.test(name)) return make("mspace", { width: ".25em" });
    if (TEXTS.has(name)) return make("mtext", {}, this.text().replace(/\\([^A-Za-z])/g, "$1").replace(/ /g, "\u00a0"));
    if (STYLES.has(name)) return this.styled(STYLES.get(name));
    if (ACCENTS.has(name)) return this.accent(name, "mover", ACCENTS.get(name));
    if (UNDER.has(name)) return this.accent(name, "munder", UNDER.get(name));
    if (NOTHING.has(name)) return null;
    if (UNSHOWN.has(name)) { this.text(); return null; }
    if (SIZES.test(name)) return operator(this.delimiter(), { stretchy: "false" });
    return this.structure(name);
  }

  structure(name) {
    switch (name) {
      case "frac": case "dfrac": case "tfrac": case "cfrac": return make("mfrac", {}, this.argument(), this.argument());
      case "binom": case "dbinom": case "tbinom":
        return make("mrow", {}, operator("("), make("mfrac", { linethickness: "0" }, this.argument(), this.argument()), operator(")"));
      case "sqrt": {
        const degree = this.option();
        return degree ? make("mroot", {}, this.argument(), row(new Reader(degree).row([]))) : make("msqrt", {}, this.argument());
      }
      case "overset": case "stackrel": { const over = this.argument(); return make("mover", {}, this.argument(), over); }
      case "underset": { const under = this.argument(); return make("munder", {}, this.argument(), under); }
      case "xrightarrow": case "xleftarrow":
        this.option();
        return make("mover", {}, operator(name === "xrightarrow" ? "→" : "←"), this.argument());
      case "boxed": case "fbox": return make("mrow", { class: "boxed" }, this.argument());
      case "phantom": return make("mphantom", {}, this.argument());
      case "operatorname": {
        const stacked = this.star();
        return operator(this.text(), { movablelimits: String(stacked), lspace: ".167em", rspace: ".167em" });
      }
      case "tag": this.star(); return make("mtext", {}, `\u2003(${this.text()})`);
      case "pmod": return make("mrow", {}, plain("("), make("mtext", {}, "mod\u00a0"), this.argument(), plain(")"));
      case "bmod": case "mod": return make("mtext", {}, "\u00a0mod\u00a0");
      case "not": { const node = this.argument(); node.append("\u0338"); return node; }
      case "textcolor": this.text(); return this.argument();
      case "substack": return this.table(["}"], true);
      case "left": return this.fenced();
      case "middle": return operator(this.delimiter(), { stretchy: "true" });
      case "begin": return this.environment(this.text().replace("*", ""));
      default: return make("mtext", {}, `\\${name}`);
    }
  }

  styled(style) {
    const node = this.argument();
    for (const leaf of [node, ...node.querySelectorAll("mi, mn")]) {
      if (!["mi", "mn"].includes(leaf.localName)) continue;
      leaf.textContent = styled(leaf.textContent, style);
      if (style[0]) leaf.setAttribute("mathvariant", "normal");
    }
    return node;
  }

  accent(name, kind, sign) {
    const wide = WIDE.has(name);
    const as = kind === "mover" ? { accent: "true" } : { accentunder: "true" };
    const made = make(kind, as, this.argument(), operator(sign, { stretchy: String(wide) }));
    if (name.endsWith("brace")) made.setAttribute("data-braced", "");
    return made;
  }

  delimiter() {
    const token = this.take() ?? "";
    const name = token.startsWith("\\") ? OPERATORS.get(token.slice(1)) ?? token : token;
    return name === "." ? "" : name === "<" ? "⟨" : name === ">" ? "⟩" : name;
  }

  fenced() {
    const open = this.delimiter();
    const nodes = this.row(["\\right"]);
    this.at++;
    const fence = (text) => operator(text, { stretchy: "true", fence: "true" });
    return make("mrow", {}, fence(open), ...nodes, fence(this.delimiter()));
  }

  // Rows and cells up to one of these tokens.
  table(ends, braced) {
    if (braced && this.take() !== "{") throw new Error("a brace is missing");
    const table = make("mtable");
    let line = make("mtr");
    for (;;) {
      line.append(make("mtd", {}, ...this.row([...ends, "&", "\\\\"])));
      const token = this.peek();
      if (token === "&") { this.at++; continue; }
      table.append(line);
      if (token !== "\\\\") break;
      this.at++;
      if (this.tokens[this.at] === "[") this.option();
      if (ends.includes(this.peek())) break;
      line = make("mtr");
    }
    if (braced) this.at++;
    return table;
  }

  environment(name) {
    if (name === "array" || name.startsWith("alignat") || name === "alignedat") this.text();
    const table = this.table(["\\end"]);
    this.at++;
    this.text();
    if (ALIGNED.has(name)) {
      for (const line of table.children) [...line.children].forEach((cell, at) => cell.setAttribute("class", at % 2 ? "begins" : "ends"));
      table.setAttribute("displaystyle", "true");
      return table;
    }
    if (PLAIN.has(name)) { table.setAttribute("displaystyle", "true"); return table; }
    const fences = FENCES.get(name);
    if (!fences) throw new Error(`there is no environment ${name}`);
    if (name === "cases") table.setAttribute("class", "cases");
    const fence = (text) => (text ? [operator(text, { stretchy: "true", fence: "true" })] : []);
    return make("mrow", {}, ...fence(fences[0]), table, ...fence(fences[1]));
  }
}

// A formula as an element, or null if it cannot be read.
const formula = (source, isBlock) => {
  try {
    // Its end is where there is no token.
    const table = new Reader(source).table([undefined]);
    const [line] = table.children;
    const nodes = table.children.length > 1 || line.children.length > 1 ? [table] : [...line.firstChild.childNodes];
    return make("math", { display: isBlock ? "block" : "inline", alttext: source.trim() }, make("mrow", {}, ...nodes));
  } catch { return null; }
};

Alight.formula = formula;
