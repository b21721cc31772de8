// The console: it listens to /console/events and shows what comes. Everything stored is shown as text or in a sandbox.

const $ = (id) => document.getElementById(id);
const PHASES = [["seal", "Seal the epoch"], ["prepar", "Move the pages"], ["switch", "Switch readers over"]];
const KEPT = 600;
const DRAWN = 240;
const BROWSE_ROWS = 50;

let token = sessionStorage.getItem("webbase-token");
// What is drawn over time, and the last two samples.
const points = [];
let earlier = null;
let later = null;
let bounds = null;

// ---- talking to the server

function headers(more = {}) {
  return token ? { Authorization: `Bearer ${token}`, ...more } : more;
}

async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: headers(options.headers) });
  if (answer.status === 401) askForToken();
  return answer;
}

async function problemOf(answer) {
  try {
    const told = await answer.json();
    return told.detail || told.title || answer.statusText;
  } catch {
    return `${answer.status} ${answer.statusText}`;
  }
}

function askForToken() {
  $("door").hidden = false;
  $("door").elements.token.focus();
}

$("door").addEventListener("submit", (event) => {
  event.preventDefault();
  token = event.target.elements.token.value.trim();
  sessionStorage.setItem("webbase-token", token);
  $("door").hidden = true;
});

// Server-sent events by fetch, because EventSource cannot send a token.
async function listen() {
  for (let pause = 500; ; pause = Math.min(pause * 2, 8000)) {
    try {
      const answer = await ask("/console/events", { headers: { Accept: "text/event-stream" } });
      if (!answer.ok) throw new Error(await problemOf(answer));
      trouble("");
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let text = ""; ;) {
        const { value, done } = await reader.read();
        if (done) throw new Error("the server ended the connection");
        pause = 500;
        text += value;
        const events = text.split("\n\n");
        text = events.pop();
        events.forEach(take);
      }
    } catch (e) {
      trouble(`Not connected: ${e.message}. Trying again.`);
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

function take(event) {
  const lines = event.split("\n");
  const name = lines.find((l) => l.startsWith("event: "))?.slice(7);
  const data = lines.filter((l) => l.startsWith("data: ")).map((l) => l.slice(6)).join("\n");
  if (!data) return;
  const told = JSON.parse(data);
  if (name === "history") {
    points.splice(0, points.length, ...told);
    return;
  }
  if (name === "sample" && told.point) {
    points.push(told.point);
    if (points.length > KEPT) points.shift();
    earlier = later;
    later = told;
  }
  show(told);
}

function trouble(text) {
  $("trouble").hidden = !text;
  $("trouble").textContent = text;
}

// ---- figures for people

const whole = new Intl.NumberFormat("en");
const count = (n) => n == null ? "–" : n >= 1e7 ? (n / 1e6).toFixed(1) + " M" : whole.format(Math.round(n));
const rate = (n) => n == null ? "–" : n >= 100 ? whole.format(Math.round(n)) : n.toFixed(n >= 10 ? 0 : n > 0 ? 1 : 0);
function bytes(n) {
  if (n == null) return "–";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (n >= 1000 && unit < units.length - 1) { n /= 1000; unit += 1; }
  return `${n >= 100 || unit === 0 ? Math.round(n) : n.toFixed(1)} ${units[unit]}`;
}
function duration(s) {
  if (s < 60) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
}

const sum = (list, of) => list.reduce((all, one) => all + (of(one) ?? 0), 0);
const seconds = (a, b) => Math.max((b.time_ms - a.time_ms) / 1000, 0.001);
// Counters begin anew when a process does, and pages that wait go when a cycle takes them.
const perSecond = (a, b, name) => Math.max((b[name] ?? 0) - (a[name] ?? 0), 0) / seconds(a, b);
// Over several points, so that figures can be read while they move.
function lately(name) {
  const some = points.slice(-6);
  if (some.length < 2) return null;
  const all = some.slice(1).map((b, i) => perSecond(some[i], b, name) * seconds(some[i], b));
  return sum(all, (n) => n) / seconds(some[0], some[some.length - 1]);
}

// The time below which this share of the answers between two points came, in ms.
function quantile(a, b, share) {
  if (!b.took || !bounds) return null;
  const between = b.took.map((n, i) => Math.max(n - (a.took?.[i] ?? 0), 0));
  const total = sum(between, (n) => n);
  if (!total) return null;
  let seen = 0;
  for (let i = 0; i < between.length; i += 1) {
    if (seen + between[i] >= total * share) {
      const [low, high] = [bounds[i - 1] ?? 0, bounds[i] ?? bounds[bounds.length - 1]];
      return low + (high - low) * ((total * share - seen) / between[i]);
    }
    seen += between[i];
  }
  return null;
}

// ---- making elements: only text goes in, never HTML

function make(name, { text, kind, ...more } = {}, ...children) {
  const element = Object.assign(document.createElement(name), more);
  if (kind) element.className = kind;
  if (text != null) element.textContent = text;
  element.append(...children);
  return element;
}

function row(table, cells) {
  const line = table.insertRow();
  for (const [content, kind] of cells) {
    const cell = line.insertCell();
    if (kind) cell.className = kind;
    cell.append(content ?? "–");
  }
  return line;
}

// Text that did not change is not written again: screen readers would say it again.
function say(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

// ---- showing

function show(now) {
  const { status } = now;
  bounds = status.gateway?.latency?.bounds_ms;
  const nodes = status.nodes;
  const lost = nodes.filter((n) => n.state === "down");
  const readers = nodes.filter((n) => n.role !== "update");
  const writers = nodes.filter((n) => n.role !== "read");
  say("summary", lost.length
    ? `${lost.length === 1 ? `node ${lost[0].id.slice(0, 8)} is` : `${lost.length} nodes are`} down`
    : status.cycle ? `cycle ${status.cycle.number} is ${status.cycle.phase}` : `generation ${status.serving} is served`);
  say("t-pages", count(sum(readers, (n) => n.figures?.pages)));
  say("s-pages", `generation ${status.serving}, ${count(sum(writers, (n) => n.role === "update" ? n.figures?.pages : 0))} wait`);
  say("t-used", bytes(sum(nodes, (n) => n.figures?.used_bytes)));
  say("s-used", `${status.update} update, ${status.distribution}`);
  say("t-nodes", `${nodes.length - lost.length} / ${nodes.length}`);
  say("s-nodes", `${writers.length} update, ${readers.length} read`);
  say("t-lookups", rate(lately("looked_up")));
  say("t-adds", rate(lately("waiting")));
  say("t-streamed", bytes(lately("streamed")));
  say("version", `webbase ${status.version ?? ""}`);
  spark("l-lookups", "looked_up");
  spark("l-adds", "waiting");
  spark("l-streamed", "streamed");
  showCycle(status);
  showNodes(nodes);
  showStreams(status.streams ?? [], now.time_ms);
  showErrors(now.errors ?? []);
  charts.forEach((chart) => chart());
}

function spark(id, name) {
  const some = points.slice(-61);
  const values = some.slice(1).map((b, i) => perSecond(some[i], b, name));
  if (values.length < 2) return;
  const top = Math.max(...values, 1);
  const svg = $(id);
  svg.setAttribute("viewBox", "0 0 60 26");
  svg.setAttribute("preserveAspectRatio", "none");
  const step = 60 / (values.length - 1);
  const line = values.map((v, i) => `${(i * step).toFixed(2)},${(25 - (v / top) * 22).toFixed(2)}`).join(" ");
  if (!svg.firstChild) {
    for (const name of ["polygon", "polyline"]) svg.append(document.createElementNS("http://www.w3.org/2000/svg", name));
  }
  svg.children[0].setAttribute("points", `0,26 ${line} 60,26`);
  svg.children[1].setAttribute("points", line);
}

function showCycle(status) {
  const phase = status.cycle?.phase ?? "";
  const at = status.cycle ? PHASES.findIndex(([name]) => phase.startsWith(name)) : PHASES.length;
  const ended = !status.cycle && status.outcome?.generation;
  $("phases").replaceChildren(...PHASES.map(([, text], i) => {
    const item = make("li", { text, kind: i === at ? "now" : (status.cycle ? at > i : ended) ? "done" : "" });
    if (i === at) item.setAttribute("aria-current", "step");
    return item;
  }));
  say("cycle-text", status.cycle
    ? `Cycle ${status.cycle.number} is ${phase}; readers go on with generation ${status.serving}.`
    : status.outcome?.aborted ? `Cycle ${status.outcome.cycle} was aborted: ${status.outcome.aborted}. Its pages wait for the next one.`
    : ended ? `Generation ${status.outcome.generation} was made in ${duration(status.outcome.took_ms / 1000)}: ${count(status.outcome.pages)} pages, ${bytes(status.outcome.bytes)} moved.`
    : "No cycle has run yet.");
  const waiting = sum(status.nodes, (n) => n.role === "update" ? n.figures?.pages : 0);
  const working = status.cycle ? status.nodes.filter((n) => n.progress) : [];
  const readers = Math.max(status.nodes.filter((n) => n.role !== "update").length, 1);
  $("cycle-nodes").replaceChildren(...working.map((n) => {
    const bar = make("progress", { max: Math.max(waiting / readers, n.progress.pages, 1), value: n.progress.pages });
    bar.setAttribute("aria-label", `Node ${n.id}`);
    return make("div", { kind: "work" }, make("span", { text: n.id.slice(0, 8), kind: "mono" }), make("span", { text: n.progress.phase }),
      bar, make("span", { text: `${count(n.progress.pages)} pages, ${bytes(n.progress.bytes)}` }));
  }));
  $("start-cycle").disabled = Boolean(status.cycle);
  const cycles = status.cycles ?? [];
  const told = cycles.findLast((c) => c.classes);
  $("classes").hidden = !told;
  if (told) {
    const { a, b, c } = told.classes;
    $("stack").replaceChildren(...[["c", c], ["b", b], ["a", a]].filter(([, n]) => n).map(([kind, n]) => {
      const part = make("i", { kind });
      part.style.flexGrow = n;
      return part;
    }));
    $("stack").setAttribute("aria-label", `Cycle ${told.cycle}: ${c} new, ${b} unchanged, ${a} replaced`);
    $("classes-text").replaceChildren(make("i", { kind: "key c", text: `${count(c)} new (C)` }), make("i", { kind: "key b", text: `${count(b)} unchanged (B)` }),
      make("i", { kind: "key a", text: `${count(a)} replaced (A)` }), ` in cycle ${told.cycle}`);
  }
  $("cycles-box").hidden = !cycles.length;
  const body = make("tbody");
  for (const c of cycles.slice(-6).reverse()) {
    row(body, [[c.cycle, "n"], [c.generation, "n"], [count(c.classes?.c ?? c.pages), "n"], [count(c.classes?.a), "n"], [count(c.classes?.b), "n"],
      [bytes(c.bytes), "n"], [duration(c.took_ms / 1000), "n"], [c.aborted ? `aborted: ${c.aborted}` : "committed"]]);
  }
  $("cycles").tBodies[0].replaceWith(body);
}

function showNodes(nodes) {
  const focused = document.activeElement?.dataset?.drain;
  const before = earlier?.status.nodes ?? [];
  $("node-list").replaceChildren(...nodes.map((node) => {
    const f = node.figures ?? {};
    const then = before.find((n) => n.id === node.id)?.figures;
    const now = later?.status.nodes.find((n) => n.id === node.id)?.figures;
    const state = node.leaving ? "leaving" : node.state;
    const drain = make("button", { type: "button", kind: "quiet", text: "Drain", disabled: node.leaving || state === "down" });
    drain.dataset.drain = node.id;
    drain.setAttribute("aria-label", `Drain node ${node.id}`);
    const part = (share) => `${(Math.min(Math.max(share, 0), 1) * 100).toFixed(2)}%`;
    const space = make("div", { kind: "space" });
    const free = f.capacity_bytes != null ? f.capacity_bytes - f.used_bytes : null;
    if (f.capacity_bytes) {
      const live = make("i");
      live.style.width = part(f.live_bytes / f.capacity_bytes);
      const dead = make("i", { kind: "dead" });
      dead.style.width = part((f.used_bytes - f.live_bytes) / f.capacity_bytes);
      space.append(live, dead);
    }
    const fragmented = f.used_bytes > 0 ? `${Math.round((1 - Math.min(f.live_bytes / f.used_bytes, 1)) * 100)} %` : "–";
    const lookups = then && now ? Math.max(now.lookups_answered - then.lookups_answered, 0) / seconds(earlier, later) : null;
    const figures = [["pages", count(f.pages)], ["generation", node.generation ?? "–"], ["lookups/s", rate(lookups)], ["streams", f.streams ?? "–"],
      ["fragmented", fragmented], node.epoch != null ? ["epoch", node.epoch] : ["memory", bytes(f.memory_bytes)]];
    if (f.damaged) figures.push(["damaged", f.damaged], ["repaired", f.repaired]);
    const card = make("article", { kind: `node ${state === "down" ? "down" : ""}` },
      make("div", {}, make("b", { text: node.id.slice(0, 8), kind: "mono", title: node.id }),
        make("span", { text: state, kind: `state ${["idle", "leaving", "down"].includes(state) ? state : "busy"}` }), drain),
      make("p", { kind: "what", text: `${node.role} node, ${f.organization ?? "–"}, ${node.address ?? "no address"}` }),
      space,
      make("p", { kind: "space-text", text: f.used_bytes == null ? "nothing known" : `${bytes(f.used_bytes)} used, ${bytes(free)} free` }),
      make("dl", {}, ...figures.map(([name, value]) => make("div", {}, make("dt", { text: name }), make("dd", { text: value })))));
    card.dataset.node = node.id;
    card.dataset.state = state;
    return card;
  }));
  if (focused) document.querySelector(`[data-drain="${focused}"]`)?.focus();
}

let streamsBefore = new Map();

function showStreams(streams, time) {
  say("streams-text", streams.length ? `${streams.length} under way` : "nobody streams now");
  $("stream-box").hidden = !streams.length;
  const body = make("tbody");
  const next = new Map();
  for (const s of streams) {
    const then = streamsBefore.get(s.number) ?? { pages: 0, bytes: 0, time: time - s.seconds * 1000 };
    const past = Math.max((time - then.time) / 1000, 0.001);
    // Rates over a second at least.
    next.set(s.number, past > 1 || !streamsBefore.has(s.number) ? { pages: s.pages, bytes: s.bytes, time } : then);
    row(body, [[make("span", { text: s.client ?? "–", kind: "mono" })], [make("span", { text: s.asked || "all pages", kind: "mono" })], [count(s.pages), "n"],
      [bytes(s.bytes), "n"], [rate((s.pages - then.pages) / past), "n"], [bytes((s.bytes - then.bytes) / past), "n"], [duration(s.seconds), "n"]]);
  }
  streamsBefore = next;
  $("stream-list").tBodies[0].replaceWith(body);
}

function showErrors(errors) {
  if (!errors.length) return $("errors").replaceChildren(make("li", { text: "None." }));
  $("errors").replaceChildren(...errors.slice().reverse().map((e) => make("li", {},
    make("time", { dateTime: new Date(e.time_ms).toISOString(), text: new Date(e.time_ms).toLocaleTimeString() }), e.text)));
}

// ---- charts

const clock = (s) => new Date(s * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

function chart(id, lines) {
  const place = $(id);
  let plot = null;
  let drawnFor = null;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const draw = () => {
    const ink = colour("--soft");
    const grid = { stroke: colour("--line"), width: 1 };
    const font = "12px system-ui, sans-serif";
    plot?.destroy();
    plot = new uPlot({
      width: place.clientWidth, height: place.clientHeight, cursor: { show: false }, legend: { show: false },
      scales: { y: { range: (u, min, max) => [0, Math.max(max * 1.15, 0.1)] } },
      axes: [{ stroke: ink, font, grid: { show: false }, ticks: { show: false }, size: 26, space: 90, values: (u, splits) => splits.map(clock) }, { stroke: ink, font, grid, ticks: { show: false }, size: 46 }],
      series: [{}, ...lines.map(([, name]) => ({ stroke: colour(name), fill: colour(name) + "18", width: 1.75, spanGaps: true, points: { show: false } }))],
    }, [[], ...lines.map(() => [])], place);
    drawnFor = place.clientWidth + colour("--ground");
  };
  return () => {
    if (!window.uPlot || place.clientWidth === 0 || points.length < 2) return;
    if (drawnFor !== place.clientWidth + colour("--ground")) draw();
    const drawn = points.slice(-DRAWN);
    const pairs = drawn.slice(1).map((b, i) => [drawn[i], b]);
    plot.setData([pairs.map(([, b]) => b.time_ms / 1000), ...lines.map(([of]) => pairs.map(([a, b]) => of(a, b)))]);
  };
}

const charts = [
  chart("c-pages", [[(a, b) => perSecond(a, b, "looked_up"), "--accent"], [(a, b) => perSecond(a, b, "waiting"), "--good"]]),
  chart("c-latency", [[(a, b) => quantile(a, b, 0.5), "--accent"], [(a, b) => quantile(a, b, 0.99), "--warn"]]),
  chart("c-bytes", [[(a, b) => perSecond(a, b, "streamed") / 1e6, "--accent"]]),
];
const redraw = () => charts.forEach((draw) => draw());
addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

// ---- doing

$("start-cycle").addEventListener("click", async () => {
  $("start-cycle").disabled = true;
  const answer = await ask("/cycle", { method: "POST" });
  if (!answer.ok) trouble(`The cycle did not start: ${await problemOf(answer)}`);
});

$("add-node").addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = event.submitter;
  button.disabled = true;
  say("node-text", "Starting…");
  const answer = await ask(`/nodes?role=${$("role").value}`, { method: "POST" });
  button.disabled = false;
  say("node-text", answer.ok ? `Node ${(await answer.json()).node.slice(0, 8)} runs and takes its share of the pages.` : await problemOf(answer));
});

$("node-list").addEventListener("click", async (event) => {
  const id = event.target.dataset.drain;
  if (!id || !confirm(`Drain node ${id}? Its pages move to the others, then it leaves.`)) return;
  const answer = await ask(`/nodes/${id}/drain`, { method: "POST" });
  if (!answer.ok) trouble(`The node was not drained: ${await problemOf(answer)}`);
});

$("lookup").addEventListener("submit", (event) => {
  event.preventDefault();
  lookup($("url").value.trim());
});

const isId = (text) => /^[0-9a-f]{16}$/i.test(text);
const pagePath = (text, more = "") =>
  isId(text) ? `/page/${text}${more && `?${more}`}` : `/page?url=${encodeURIComponent(text)}${more && `&${more}`}`;

async function lookup(text) {
  $("found").hidden = true;
  $("rows-box").hidden = $("more").hidden = true;
  $("browse-text").textContent = "";
  $("not-found").textContent = "looking…";
  const answer = await ask(pagePath(text));
  if (!answer.ok) {
    $("not-found").textContent = await problemOf(answer);
    return;
  }
  $("not-found").textContent = "";
  const body = await answer.blob();
  const header = (name) => answer.headers.get(name);
  const about = [
    ["URL", header("webbase-url")], ["Page id", header("webbase-page-id")], ["Status", header("webbase-status")],
    ["Type", header("content-type")], ["Bytes", whole.format(body.size)], ["Fetched", header("memento-datetime")],
    ["Changed", header("last-modified")], ["Generation", header("webbase-generation")],
  ];
  $("about").replaceChildren(...about.filter(([, value]) => value).flatMap(([name, value]) => [make("dt", { text: name }), make("dd", { text: value })]));
  const view = $("view");
  // With a token the frame could not ask for itself. Either way it is a sandbox without scripts.
  if (token) view.srcdoc = await body.text(); else view.src = pagePath(text);
  const raw = await ask(pagePath(text, "raw=1"));
  const whole_ = new Uint8Array(await raw.arrayBuffer());
  $("head").textContent = headOf(whole_);
  showLinks(await body.text(), header("content-type") ?? "", header("webbase-url") ?? text);
  $("found").hidden = false;
}

function headOf(message) {
  const text = new TextDecoder("latin1").decode(message.subarray(0, 65536));
  const end = text.indexOf("\r\n\r\n");
  return end < 0 ? "(none)" : text.slice(0, end);
}

// A parsed document is inert: nothing in it runs or loads.
function showLinks(text, type, base) {
  const links = new Set();
  if (type.includes("html")) {
    for (const a of new DOMParser().parseFromString(text, "text/html").querySelectorAll("a[href]")) {
      try {
        const url = new URL(a.getAttribute("href"), base);
        url.hash = "";
        if (url.protocol === "http:" || url.protocol === "https:") links.add(url.href);
      } catch { /* not a URL: not a link */ }
    }
  }
  $("links-count").textContent = links.size;
  $("links").replaceChildren(...[...links].slice(0, 500).map((url) => make("li", {}, lookupLink(url))));
}

function lookupLink(url) {
  return make("a", { href: `#lookup=${encodeURIComponent(url)}`, text: url });
}

function followHash() {
  const found = location.hash.match(/^#lookup=(.+)/);
  if (!found) return;
  $("url").value = decodeURIComponent(found[1]);
  lookup($("url").value);
  $("pages").scrollIntoView();
}
addEventListener("hashchange", followHash);

// ---- browsing

let browsed = null;

$("browse").addEventListener("submit", (event) => {
  event.preventDefault();
  browsed = { host: $("host").value.trim(), resume: null };
  $("rows").tBodies[0].replaceChildren();
  $("found").hidden = true;
  $("not-found").textContent = "";
  more();
});
$("more").addEventListener("click", more);

async function more() {
  const query = new URLSearchParams({ url: browsed.host, matchType: "domain", output: "json", limit: BROWSE_ROWS, showResumeKey: "true" });
  query.set("fl", "original,timestamp,statuscode,mimetype,length");
  if (browsed.resume) query.set("resumeKey", browsed.resume);
  const answer = await ask(`/cdx/search/cdx?${query}`);
  if (!answer.ok) {
    $("browse-text").textContent = await problemOf(answer);
    return;
  }
  const rows = (await answer.json()).slice(1);
  const cut = rows.findIndex((row) => row.length === 0);
  browsed.resume = cut >= 0 ? rows[cut + 1]?.[0] : null;
  const pages = cut >= 0 ? rows.slice(0, cut) : rows;
  for (const [url, time, code, type, length] of pages) {
    const fetched = String(time).replace(/^(\d{4})(\d\d)(\d\d)(\d\d)(\d\d).*/, "$1-$2-$3 $4:$5");
    row($("rows").tBodies[0], [[lookupLink(url)], [fetched], [code, "n"], [type], [/^\d+$/.test(length) ? whole.format(length) : "–", "n"]]);
  }
  const shown = $("rows").tBodies[0].rows.length;
  $("rows-box").hidden = shown === 0;
  $("more").hidden = !browsed.resume;
  $("browse-text").textContent = shown ? `${shown} pages shown` : `No pages of ${browsed.host}.`;
}

// ---- tabs and keys

const tabs = [...document.querySelectorAll("[role=tab]")];
function choose(tab) {
  for (const one of tabs) {
    const is = one === tab;
    one.setAttribute("aria-selected", is);
    one.tabIndex = is ? 0 : -1;
    $(one.getAttribute("aria-controls")).hidden = !is;
  }
}
tabs.forEach((tab, i) => {
  tab.addEventListener("click", () => choose(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(i + step + tabs.length) % tabs.length];
    choose(next);
    next.focus();
  });
});
addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  $("url").focus();
  $("url").select();
});

// ---- light and dark

const chosen = localStorage.getItem("webbase-theme");
if (chosen) document.documentElement.dataset.theme = chosen;
$("theme").addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  localStorage.setItem("webbase-theme", document.documentElement.dataset.theme);
  redraw();
});

followHash();
listen();
