// What the page asks of the service, and what it shows of refusals.

export const $ = (id) => document.getElementById(id);
export const percent = (share) => `${Math.round(100 * share)} %`;

export function el(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  const { data, ...rest } = options;
  for (const [name, value] of Object.entries(rest)) {
    if (name in made && name !== "list") made[name] = value;
    else made.setAttribute(name, value);
  }
  Object.assign(made.dataset, data ?? {});
  made.append(...children);  // text is text, never HTML
  return made;
}

export function say(text) {
  $("said").textContent = text;
}

export function complain(text) {
  const close = el("button", { type: "button", className: "plain", textContent: "Dismiss" });
  close.addEventListener("click", () => $("problems").replaceChildren());
  $("problems").replaceChildren(el("p", { textContent: text }), close);
}

const BUSY = [500, 1500, 4000];  // milliseconds after which a service that has much to do is asked again

async function asked(path, options) {
  let answer;
  for (const pause of [...BUSY, 0]) {
    try {
      answer = await fetch(path, options);
    } catch {
      throw new Error("The service does not answer: is polyshot serve still running?");
    }
    if (answer.status !== 429 || (options?.method ?? "GET") !== "GET") break;
    await new Promise((done) => setTimeout(done, pause));
  }
  if (answer.ok) return answer;
  const found = await answer.json().catch(() => ({}));
  throw Object.assign(new Error(found.detail ?? `The service answered ${answer.status}.`), { status: answer.status });
}

export async function ask(method, path, body) {
  const options = { method, headers: {} };
  if (body instanceof FormData) options.body = body;
  else if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["content-type"] = "application/json";
  }
  const answer = await asked(path, options);
  return answer.status === 204 ? null : answer.json();
}

// Downloads a file; a refusal is an error with its sentence, not a file.
export async function save(path) {
  const answer = await asked(path);
  const name = /filename\*=UTF-8''(.+)$/.exec(answer.headers.get("content-disposition") ?? "");
  const url = URL.createObjectURL(await answer.blob());
  el("a", { href: url, download: name ? decodeURIComponent(name[1]) : "polyshot" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

// Runs what a user began; a refusal is shown in words.
export function trying(work) {
  return async (...given) => {
    try {
      return await work(...given);
    } catch (error) {
      complain(error.message);
      return undefined;
    }
  };
}

export async function enter() {
  const given = new URLSearchParams(location.hash.slice(1));
  if (given.has("token")) await ask("POST", "/api/session", { token: given.get("token") });
  if (given.has("project")) localStorage.setItem("project", given.get("project"));
  if (location.hash) history.replaceState(null, "", location.pathname);
}

export function thumbnail(project, image) {
  return `/api/projects/${project}/images/${image}/thumbnail`;
}
