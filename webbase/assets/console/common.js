// What all of the console uses: talking to the server, figures for people, making elements.

export const $ = (id) => document.getElementById(id);

let token = sessionStorage.getItem("webbase-token");
export const hasToken = () => Boolean(token);

// ---- talking to the server

function headers(more = {}) {
  return token ? { Authorization: `Bearer ${token}`, ...more } : more;
}

export async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: headers(options.headers) });
  if (answer.status === 401) askForToken();
  return answer;
}

export async function problemOf(answer) {
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

// ---- figures for people

export const whole = new Intl.NumberFormat("en");
export const count = (n) => n == null ? "–" : n >= 1e7 ? (n / 1e6).toFixed(1) + " M" : whole.format(Math.round(n));
export const rate = (n) => n == null ? "–" : n >= 100 ? whole.format(Math.round(n)) : n.toFixed(n >= 10 ? 0 : n > 0 ? 1 : 0);
export function bytes(n) {
  if (n == null) return "–";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (n >= 1000 && unit < units.length - 1) { n /= 1000; unit += 1; }
  return `${n >= 100 || unit === 0 ? Math.round(n) : n.toFixed(1)} ${units[unit]}`;
}
export function duration(s) {
  if (s < 60) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
}

// ---- making elements: only text goes in, never HTML

export function make(name, { text, kind, ...more } = {}, ...children) {
  const element = Object.assign(document.createElement(name), more);
  if (kind) element.className = kind;
  if (text != null) element.textContent = text;
  element.append(...children);
  return element;
}

export function row(table, cells) {
  const line = table.insertRow();
  for (const [content, kind] of cells) {
    const cell = line.insertCell();
    if (kind) cell.className = kind;
    cell.append(content ?? "–");
  }
  return line;
}

// Text that did not change is not written again: screen readers would say it again.
export function say(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}
