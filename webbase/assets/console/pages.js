// Pages: looking one up, its head and links, and browsing by host. Everything stored is shown as text or in a sandbox.

import { $, ask, hasToken, make, problemOf, row, say, whole } from "/console/common.js";

const BROWSE_ROWS = 50;
// How long is waited for the table of links, in looks of a second.
const LINKS_LOOKS = 60;

let linksAsked = 0;

$("lookup").addEventListener("submit", (event) => {
  event.preventDefault();
  lookup($("url").value.trim());
});

// 16 digits, or 32 where two URLs share those.
const isId = (text) => /^[0-9a-f]{16}([0-9a-f]{16})?$/i.test(text);
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
  // With a token the frame could not ask for itself. Either way it is a sandbox without scripts.
  if (hasToken()) await showBody(body, header("content-type") ?? ""); else $("view").src = pagePath(text);
  const raw = await ask(pagePath(text, "raw=1"));
  const whole_ = new Uint8Array(await raw.arrayBuffer());
  $("head").textContent = headOf(whole_);
  $("found").hidden = false;
  showLinks(header("webbase-url") ?? text);
}

// What was fetched with the token, as a browser would show it: images as images, text by its character set.
async function showBody(body, type) {
  const [view, image] = [$("view"), $("view-image")];
  const mime = type.split(";")[0].trim().toLowerCase();
  URL.revokeObjectURL(image.src);
  image.hidden = !mime.startsWith("image/");
  view.hidden = !image.hidden;
  if (view.hidden) {
    // Scripts in images do not run.
    image.src = URL.createObjectURL(new Blob([body], { type: mime }));
    return;
  }
  image.removeAttribute("src");
  const text = decoded(new Uint8Array(await body.arrayBuffer()), type);
  const isMarkup = mime === "" || mime.includes("html") || mime.includes("xml");
  view.srcdoc = isMarkup ? text : `<pre>${text.replace(/[&<]/g, (c) => (c === "&" ? "&amp;" : "&lt;"))}</pre>`;
}

// The order that browsers take: a byte order mark, the HTTP head, the page itself, a guess.
export function decoded(bytes, type) {
  const start = new TextDecoder("latin1").decode(bytes.subarray(0, 2048));
  const marks = [["utf-8", "ï»¿"], ["utf-16be", "þÿ"], ["utf-16le", "ÿþ"]];
  const marked = marks.find(([, mark]) => start.startsWith(mark))?.[0];
  const said = /charset\s*=\s*["']?\s*([\w.:-]+)/i;
  const names = [marked, type.match(said)?.[1], start.match(said)?.[1], start.match(/^<\?xml[^>]*encoding\s*=\s*["']([\w.:-]+)/i)?.[1]];
  for (const name of names.filter(Boolean)) {
    try {
      return new TextDecoder(name).decode(bytes);
    } catch {
      // It is no character set; the next may be one.
    }
  }
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return new TextDecoder("windows-1252").decode(bytes);
  }
}

function headOf(message) {
  const text = new TextDecoder("latin1").decode(message.subarray(0, 65536));
  const end = text.indexOf("\r\n\r\n");
  return end < 0 ? "(none)" : text.slice(0, end);
}

// Links out stand in the page. Links in come from a table that the server makes when somebody asks, so they may be late.
async function showLinks(url) {
  const asked = ++linksAsked;
  fill("out", null);
  fill("in", null);
  for (let look = 0; look < LINKS_LOOKS && asked === linksAsked; look += 1) {
    const answer = await ask(`/links?url=${encodeURIComponent(url)}`);
    if (asked !== linksAsked) return;
    if (!answer.ok) return say("in-text", await problemOf(answer));
    const links = await answer.json();
    fill("out", links.out);
    fill("in", links.in);
    if (links.in) {
      const from = `the pages of generation ${links.in.generation}`;
      return say("in-text", links.in.is_whole ? `Of ${from}.` : `Of some of ${from}: there are more links than are kept.`);
    }
    say("in-text", "The links of all pages are being gathered…");
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

function fill(which, links) {
  say(`${which}-count`, links ? whole.format(links.count) : "…");
  $(`links-${which}`).replaceChildren(...(links?.urls ?? []).map((url) => make("li", {}, lookupLink(url))));
}

function lookupLink(url) {
  return make("a", { href: `#lookup=${encodeURIComponent(url)}`, text: url });
}

export function followHash() {
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
