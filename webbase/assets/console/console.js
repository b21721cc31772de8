// The console: it listens to /console/events and shows what comes.

import { $, ask, bytes, count, duration, make, problemOf, rate, row, say } from "/console/common.js";
import { followHash } from "/console/pages.js";

const PHASES = [["seal", "Seal the epoch"], ["prepar", "Move the pages"], ["switch", "Switch readers over"]];
const KEPT = 600;
const DRAWN = 240;

// What is drawn over time, and the last two samples.
const points = [];
let earlier = null;
let later = null;
let bounds = null;

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
  // A page lies on several nodes; the server counts it once.
  say("t-pages", count(status.pages ?? sum(readers, (n) => n.figures?.pages)));
  const copies = status.replicas > 1 ? `, each on ${count(status.replicas)} nodes` : "";
  say("s-pages", `generation ${status.serving}${copies}, ${count(sum(writers, (n) => n.role === "update" ? n.figures?.pages : 0))} wait`);
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
  showCrawl(status.crawl);
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

function showCrawl(crawl) {
  $("crawl").hidden = !crawl;
  if (!crawl) return;
  say("crawl-text", crawl.running ? `round ${crawl.round} runs` : `round ${crawl.round} is over; the next one begins soon`);
  const figures = [["pages read", count(crawl.pages)], ["unchanged", count(crawl.unchanged)], ["pages a second", rate(crawl.pages_per_second)],
    ["received", bytes(crawl.bytes)], ["URLs known", count(crawl.known)], ["URLs waiting", count(crawl.waiting)], ["on hosts", count(crawl.hosts)],
    ["requests now", count(crawl.requests)]];
  $("crawl-figures").replaceChildren(...figures.map(([name, value]) => make("div", {}, make("dt", { text: name }), make("dd", { text: value }))));
  const errors = Object.entries(crawl.errors);
  say("crawl-errors", errors.length ? `Not had: ${errors.map(([kind, n]) => `${count(n)} ${kind}`).join(", ")}.` : "");
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
