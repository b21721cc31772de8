// The console: it listens to /console/events and shows what comes. Everything stored is shown as text or in a sandbox.

const $ = (id) => document.getElementById(id);
const PHASES = [["sealing", "sealing"], ["preparing", "preparing"], ["switching", "switching"]];
const KEPT = 600;
const BROWSE_ROWS = 50;

let token = sessionStorage.getItem("webbase-token");
const samples = [];
let down = new Set();

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
    samples.splice(0, samples.length, ...told);
    if (samples.length) show();
  } else if (name === "sample") {
    samples.push(told);
    if (samples.length > KEPT) samples.shift();
    show();
  }
}

function trouble(text) {
  $("trouble").hidden = !text;
  $("trouble").textContent = text;
}

// ---- figures for people

const whole = new Intl.NumberFormat("en");
const count = (n) => n == null ? "–" : n >= 1e7 ? (n / 1e6).toFixed(1) + " M" : whole.format(Math.round(n));
const rate = (n) => n == null ? "–" : n >= 100 ? whole.format(Math.round(n)) : n.toFixed(n >= 10 ? 1 : n > 0 ? 2 : 0);
function bytes(n) {
  if (n == null) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (n >= 1000 && unit < units.length - 1) { n /= 1000; unit += 1; }
  return `${n >= 100 || unit === 0 ? Math.round(n) : n.toFixed(1)} ${units[unit]}`;
}

const sum = (list, of) => list.reduce((all, one) => all + (of(one) ?? 0), 0);
const figures = (sample) => sample.status.nodes.map((n) => n.figures).filter(Boolean);
const seconds = (a, b) => Math.max((b.time_ms - a.time_ms) / 1000, 0.001);
// Counters begin anew when a process does.
const perSecond = (a, b, of) => Math.max(of(b) - of(a), 0) / seconds(a, b);

const counters = {
  requests: (s) => s.gateway.requests,
  added: (s) => s.gateway.pages_added,
  streamed: (s) => s.gateway.bytes_streamed,
  lookups: (s) => sum(figures(s), (f) => f.lookups_answered),
};

// The time below which this share of the answers between two samples came, in ms.
function quantile(a, b, share) {
  const { bounds_ms: bounds, counts } = b.gateway.latency ?? {};
  if (!bounds) return null;
  const before = a.gateway.latency?.counts ?? [];
  const between = counts.map((n, i) => Math.max(n - (before[i] ?? 0), 0));
  const total = between.reduce((x, y) => x + y, 0);
  if (!total) return null;
  let seen = 0;
  for (let i = 0; i < between.length; i += 1) {
    seen += between[i];
    if (seen >= total * share) return bounds[i] ?? bounds[bounds.length - 1];
  }
  return null;
}

// ---- showing

function show() {
  const now = samples[samples.length - 1];
  const before = samples[samples.length - 2] ?? now;
  const { status } = now;
  const nodes = status.nodes;
  const up = nodes.filter((n) => n.state !== "down");
  const readers = nodes.filter((n) => n.role === "read" || n.role === "both");
  $("summary").textContent = `generation ${status.serving} is served · ` +
    (status.cycle ? `cycle ${status.cycle.number} is ${status.cycle.phase}` : "no cycle runs") +
    ` · ${status.update} update, ${status.distribution} distribution`;
  $("t-pages").textContent = count(status.pages ?? sum(readers, (n) => n.figures?.pages));
  $("t-used").textContent = bytes(sum(nodes, (n) => n.figures?.used_bytes));
  $("t-nodes").textContent = `${up.length} / ${nodes.length}`;
  $("t-requests").textContent = rate(perSecond(before, now, counters.requests));
  $("t-adds").textContent = rate(perSecond(before, now, counters.added));
  $("t-streamed").textContent = bytes(perSecond(before, now, counters.streamed));
  $("version").textContent = `webbase ${status.version ?? ""}`;
  showCycle(status);
  showNodes(nodes, before, now);
  showErrors(now.errors ?? []);
  charts.forEach((chart) => chart());
}

function showCycle(status) {
  const phase = status.cycle?.phase ?? "";
  const at = PHASES.findIndex(([name]) => phase.startsWith(name));
  const fresh = PHASES.map(([, text], i) => {
    const item = document.createElement("li");
    item.textContent = text;
    if (i === at) item.className = "now";
    if (at > i) item.className = "done";
    if (i === at) item.setAttribute("aria-current", "step");
    return item;
  });
  $("phases").replaceChildren(...fresh);
  $("cycle-text").textContent = status.cycle
    ? `Cycle ${status.cycle.number}: ${phase}`
    : status.outcome?.text ?? "No cycle has run yet.";
  const working = status.nodes.filter((n) => n.progress);
  $("cycle-nodes").replaceChildren(...working.map((n) => {
    const line = document.createElement("p");
    line.textContent = `${n.id.slice(0, 8)} ${n.progress.phase}: ${count(n.progress.pages)} pages, ${bytes(n.progress.bytes)}`;
    return line;
  }));
  $("start-cycle").disabled = Boolean(status.cycle);
}

function cell(row, text, className) {
  const td = row.insertCell();
  td.textContent = text;
  if (className) td.className = className;
  return td;
}

function showNodes(nodes, before, now) {
  const body = $("nodes").tBodies[0];
  const focused = document.activeElement?.dataset?.drain;
  const fresh = nodes.map((node) => {
    const row = document.createElement("tr");
    const f = node.figures ?? {};
    const then = before.status.nodes.find((n) => n.id === node.id)?.figures;
    row.dataset.node = node.id;
    cell(row, node.id.slice(0, 8), "mono").title = node.id;
    cell(row, node.role + (node.organization ? `, ${node.organization}` : ""));
    const state = node.leaving ? "leaving" : node.state;
    cell(row, state, `state ${state === "idle" || state === "leaving" || state === "down" ? state : "busy"}`);
    cell(row, node.generation ?? (node.epoch != null ? `epoch ${node.epoch}` : "–"));
    cell(row, count(f.pages), "n");
    const space = cell(row, "");
    if (f.capacity_bytes) {
      const meter = document.createElement("meter");
      Object.assign(meter, { min: 0, max: f.capacity_bytes, high: f.capacity_bytes * 0.9, value: f.used_bytes });
      meter.title = `${bytes(f.used_bytes)} of ${bytes(f.capacity_bytes)}`;
      space.append(meter, ` ${bytes(f.used_bytes)}`);
    } else {
      space.textContent = bytes(f.used_bytes);
    }
    const dead = f.used_bytes > 0 ? 1 - Math.min(f.live_bytes / f.used_bytes, 1) : null;
    cell(row, dead == null ? "–" : `${Math.round(dead * 100)} %`, "n");
    cell(row, then && node.figures ? rate(Math.max(f.lookups_answered - then.lookups_answered, 0) / seconds(before, now)) : "–", "n");
    cell(row, f.streams ?? "–", "n");
    cell(row, node.address ?? "–", "mono");
    const act = cell(row, "");
    const button = document.createElement("button");
    Object.assign(button, { type: "button", className: "quiet", textContent: "Drain", disabled: node.leaving });
    button.dataset.drain = node.id;
    button.setAttribute("aria-label", `Drain node ${node.id}`);
    act.append(button);
    return row;
  });
  body.replaceChildren(...fresh);
  if (focused) body.querySelector(`[data-drain="${focused}"]`)?.focus();
  const gone = new Set(nodes.filter((n) => n.state === "down").map((n) => n.id));
  const lost = [...gone].filter((id) => !down.has(id));
  if (lost.length) $("summary").textContent += ` · node ${lost.join(", ")} is down`;
  down = gone;
}

function showErrors(errors) {
  if (!errors.length) return $("errors").replaceChildren(Object.assign(document.createElement("li"), { textContent: "None." }));
  $("errors").replaceChildren(...errors.slice().reverse().map((e) => {
    const item = document.createElement("li");
    const time = document.createElement("time");
    time.dateTime = new Date(e.time_ms).toISOString();
    time.textContent = new Date(e.time_ms).toLocaleTimeString();
    item.append(time, e.text);
    return item;
  }));
}

// ---- charts

function chart(id, lines) {
  const place = $(id);
  let plot = null;
  let drawnFor = null;
  const style = () => getComputedStyle(document.documentElement);
  const make = () => {
    const ink = style().getPropertyValue("--soft").trim();
    const grid = { stroke: style().getPropertyValue("--line").trim(), width: 1 };
    plot?.destroy();
    plot = new uPlot({
      width: place.clientWidth, height: 160, cursor: { show: false }, legend: { show: false },
      scales: { y: { range: (u, min, max) => [0, Math.max(max * 1.1, 1)] } },
      axes: [{ stroke: ink, grid, ticks: grid }, { stroke: ink, grid, ticks: grid, size: 56 }],
      series: [{}, ...lines.map(([, colour]) => ({ stroke: style().getPropertyValue(colour).trim(), width: 1.5, spanGaps: true }))],
    }, [[], ...lines.map(() => [])], place);
    drawnFor = place.clientWidth + style().getPropertyValue("--ground");
  };
  return () => {
    if (!window.uPlot || place.clientWidth === 0) return;
    if (drawnFor !== place.clientWidth + style().getPropertyValue("--ground")) make();
    const pairs = samples.slice(1).map((b, i) => [samples[i], b]);
    plot.setData([pairs.map(([, b]) => b.time_ms / 1000), ...lines.map(([of]) => pairs.map(([a, b]) => of(a, b)))]);
  };
}

const charts = [
  chart("c-requests", [[(a, b) => perSecond(a, b, counters.requests), "--accent"]]),
  chart("c-latency", [[(a, b) => quantile(a, b, 0.5), "--accent"], [(a, b) => quantile(a, b, 0.99), "--bad"]]),
  chart("c-pages", [[(a, b) => perSecond(a, b, counters.added), "--good"], [(a, b) => perSecond(a, b, counters.lookups), "--accent"]]),
  chart("c-bytes", [[(a, b) => perSecond(a, b, counters.streamed) / 1e6, "--accent"]]),
];
addEventListener("resize", () => charts.forEach((draw) => samples.length && draw()));

// ---- doing

$("start-cycle").addEventListener("click", async () => {
  $("start-cycle").disabled = true;
  const answer = await ask("/cycle", { method: "POST" });
  if (!answer.ok) trouble(`The cycle did not start: ${await problemOf(answer)}`);
});

$("nodes").addEventListener("click", async (event) => {
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
  $("not-found").textContent = "looking…";
  const answer = await ask(pagePath(text));
  if (!answer.ok) {
    $("not-found").textContent = await problemOf(answer);
    return;
  }
  $("not-found").textContent = "";
  const body = await answer.blob();
  const about = [["Type", answer.headers.get("content-type")], ["Bytes", whole.format(body.size)]];
  for (const [name, value] of answer.headers) {
    if (name.startsWith("webbase-") || name === "memento-datetime" || name === "last-modified" || name === "etag") about.push([name, value]);
  }
  $("about").replaceChildren(...about.flatMap(([name, value]) => [
    Object.assign(document.createElement("dt"), { textContent: name }),
    Object.assign(document.createElement("dd"), { textContent: value ?? "–" }),
  ]));
  const view = $("view");
  // With a token the frame could not ask for itself. Either way it is a sandbox without scripts.
  if (token) view.srcdoc = await body.text(); else view.src = pagePath(text);
  const raw = await ask(pagePath(text, "raw=1"));
  const whole_ = new Uint8Array(await raw.arrayBuffer());
  $("head").textContent = headOf(whole_);
  showLinks(await body.text(), answer.headers.get("content-type") ?? "", text);
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
        const url = new URL(a.getAttribute("href"), isId(base) ? undefined : base);
        url.hash = "";
        if (url.protocol === "http:" || url.protocol === "https:") links.add(url.href);
      } catch { /* not a URL: not a link */ }
    }
  }
  $("links-count").textContent = links.size;
  $("links").replaceChildren(...[...links].slice(0, 500).map((url) => {
    const item = document.createElement("li");
    item.append(lookupLink(url));
    return item;
  }));
}

function lookupLink(url) {
  const link = document.createElement("a");
  link.href = `#lookup=${encodeURIComponent(url)}`;
  link.textContent = url;
  return link;
}

function followHash() {
  const found = location.hash.match(/^#lookup=(.+)/);
  if (!found) return;
  $("url").value = decodeURIComponent(found[1]);
  lookup($("url").value);
  $("h-lookup").scrollIntoView();
}
addEventListener("hashchange", followHash);

// ---- browsing

let browsed = null;

$("browse").addEventListener("submit", (event) => {
  event.preventDefault();
  browsed = { host: $("host").value.trim(), resume: null };
  $("rows").tBodies[0].replaceChildren();
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
    const row = $("rows").tBodies[0].insertRow();
    row.insertCell().append(lookupLink(url));
    cell(row, String(time).replace(/^(\d{4})(\d\d)(\d\d)(\d\d)(\d\d).*/, "$1-$2-$3 $4:$5"));
    cell(row, code);
    cell(row, type);
    cell(row, length === "-" ? "–" : whole.format(length), "n");
  }
  const shown = $("rows").tBodies[0].rows.length;
  $("rows-box").hidden = shown === 0;
  $("more").hidden = !browsed.resume;
  $("browse-text").textContent = shown ? `${shown} pages shown` : `No pages of ${browsed.host}.`;
}

// ---- light and dark

const chosen = localStorage.getItem("webbase-theme");
if (chosen) document.documentElement.dataset.theme = chosen;
$("theme").addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  localStorage.setItem("webbase-theme", document.documentElement.dataset.theme);
  charts.forEach((draw) => samples.length && draw());
});

followHash();
listen();
