// The live picture of memory. It is asked for while it is looked at, and not otherwise.

const { element, get } = Alight;
const EVERY = 1000;

const bytes = (n) => {
  if (n === null || n === undefined) return "not known";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (n >= 999.5 && unit < units.length - 1) { n /= 1000; unit++; }
  return `${unit && n < 99.5 ? n.toFixed(1) : Math.round(n)} ${units[unit]}`;
};
const percent = (a, b) => (b ? `${Math.floor((100 * a) / b)} %` : "0 %");

const part = (one) => {
  const known = one.resident !== null;
  const name = one.part === "layer" ? `layer ${one.layer}` : one.part;
  const what = known ? `${name}: ${percent(one.resident, one.bytes)} of ${bytes(one.bytes)}` : `${name}: not known, of ${bytes(one.bytes)}`;
  const fill = element("i");
  fill.style.height = known && one.bytes ? `${(100 * one.resident) / one.bytes}%` : "0";
  return element("div", { className: "part", title: what }, fill);
};

// Experts: a line for each layer, a point for each expert. Thousands of elements would be slow; a picture is not.
const experts = (layers, label) => {
  const width = Math.max(...layers.map((layer) => layer.experts.length));
  const canvas = element("canvas", { className: "experts", width, height: layers.length, role: "img", "aria-label": label, title: label });
  canvas.style.height = `${Math.min(16, Math.max(4, Math.round(240 / layers.length))) * layers.length}px`;
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const [full, some, none] = ["--full", "--part", "--none"].map((name) => style.getPropertyValue(name).trim());
  layers.forEach((layer, y) => layer.experts.forEach((share, x) => {
    pen.fillStyle = share > 99 ? full : share > 0 ? some : none;
    pen.fillRect(x, y, 1, 1);
  }));
  return canvas;
};

// A page has no size before an engine was made, and nothing is computed then.
const sequence = (one, index, page) => {
  if (!one || !page) return null;
  const { positions, bytes: size, window } = page;
  const tokens = one.read + one.generated;
  // Layers with a window keep no more pages than it has.
  const kept = one.pages * size + (window ? Math.min(one.pages, window.pages) * window.bytes : 0);
  const now = one.read < one.prompt ? `reads ${one.read} of ${one.prompt} tokens` : `${one.prompt} tokens read, ${one.generated} generated`;
  const shared = one.shared_pages ? `, ${one.shared_pages} shared` : "";
  const bar = element("div", { className: "bar", "aria-hidden": "true" });
  for (const [count, name] of [[one.shared_pages, "shared"], [one.pages - one.shared_pages, ""]]) {
    const fill = element("i", { className: name });
    fill.style.width = `${(100 * count * positions) / Math.max(one.prompt + one.generated, tokens, 1)}%`;
    bar.append(fill);
  }
  return element("li", {}, `${index + 1}: ${now}; ${one.pages} pages${shared}, ${bytes(kept)}`, bar);
};

const model = (one) => {
  const made = element("section");
  made.append(element("h3", { text: one.name }));
  const known = one.resident !== null;
  const there = known ? `${bytes(one.resident)} of ${bytes(one.bytes)} (${percent(one.resident, one.bytes)})` : `${bytes(one.bytes)}; how much is in memory is not known`;
  made.append(element("h4", { text: `Weights in memory, layer by layer: ${there}` }));
  made.append(element("div", { className: "parts", role: "img", "aria-label": `Weights in memory: ${there}` }, ...one.parts.map(part)));
  const layers = one.parts.filter((part) => part.experts);
  if (layers.length) {
    const all = layers.flatMap((layer) => layer.experts);
    const whole = all.filter((share) => share > 99).length;
    const label = `Experts in memory: ${whole} of ${all.length}; a line for each layer, a point for each expert`;
    made.append(element("h4", { text: label }), experts(layers, label));
    if (one.experts) {
      const { slots, bytes: size, wanted, hits, read_bytes } = one.experts;
      const hit = wanted ? `; ${percent(hits, wanted)} of those chosen were there, ${bytes(read_bytes)} were read` : "";
      made.append(element("p", { className: "hint", text: `${slots} slots, ${bytes(size)}${hit}` }));
    }
  }
  const pages = one.page ? `in pages of ${one.page.positions} tokens and ${bytes(one.page.bytes)}${one.page.window ? `; of layers with a window ${one.page.window.pages} pages of ${bytes(one.page.window.bytes)} at most` : ""}` : "made when something is asked of this model";
  made.append(element("h4", { text: `KV cache, ${pages}` }));
  if (one.sequences) {
    const busy = one.sequences.map((seq, i) => sequence(seq, i, one.page)).filter(Boolean);
    made.append(busy.length ? element("ul", { className: "sequences" }, ...busy) : element("p", { className: "hint", text: `${one.sequences.length} sequences, none busy` }));
  } else {
    made.append(element("p", { className: "hint", text: "What sequences do is not told (--no-slots)." }));
  }
  const waiting = one.waiting ? ` ${one.waiting} requests wait.` : "";
  made.append(element("p", { className: "hint", text: `Prompts kept for those that begin alike: ${bytes(one.kept)}.${waiting}` }));
  return made;
};

const draw = (told) => {
  const byId = (id) => document.getElementById(id);
  byId("memory-models").replaceChildren(...told.models.map(model));
  const { rss_file, rss_anon, rss_shmem, pss, peak_rss } = told.process;
  const rows = [["mapped from files, shared", rss_file], ["of its own", rss_anon], ["shared memory", rss_shmem], ["its share of all (PSS)", pss], ["most so far (peak RSS)", peak_rss]];
  byId("memory-process").replaceChildren(...rows.flatMap(([name, n]) => [element("dt", { text: name }), element("dd", { text: bytes(n) })]));
};

let timer = null;
const ask = async () => {
  const summary = document.getElementById("memory-summary");
  try { draw(await get("/alight/memory")); summary.textContent = "As the page cache has it, each second."; }
  catch (error) { summary.textContent = `It cannot be told: ${error.message}`; }
  if (timer !== null) timer = setTimeout(ask, EVERY);
};

const watch = (looked) => {
  clearTimeout(timer);
  timer = null;
  if (looked) { timer = 0; ask(); }
};

Object.assign(Alight, { watchMemory: watch });
