// What every API's page is built from: elements, numbers, requests with the API key.
// Elements are built, never parsed: names, questions and answers are always text.

export const at = (id) => document.getElementById(id);

export function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === true) made.setAttribute(key, "");
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return made;
}

export function svg(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes || {})) if (value !== null) made.setAttribute(key, value);
  made.append(...children.flat(Infinity).filter((child) => child !== null));
  return made;
}

// Settings in backticks, as in the library's messages, become code.
export const withSettings = (text) => text.split("`").map((part, place) => (place % 2 ? element("code", {}, part) : part));

export function percent(share) {
  if (share === null || share === undefined) return "–";
  if (share > 0 && share < 0.005) return "<1%";
  if (share < 1 && share >= 0.995) return ">99%";
  return `${Math.round(100 * share)}%`;
}

export const count = (number) => number.toLocaleString("en");
export const counted = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

const KEY = "clew-api-key";

export class Refused extends Error {}

// A request to this server, with the API key if one was given: a POST of JSON or of a file, or a GET.
// Throws Refused with the reason.
export async function send(path, body, signal, method) {
  const headers = {};
  const key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  const isFile = body instanceof Blob;
  if (body) headers["Content-Type"] = isFile ? "application/octet-stream" : "application/json";
  const options = { method: method ?? (body ? "POST" : "GET"), headers, signal, body: body && !isFile ? JSON.stringify(body) : body };
  let reply;
  try {
    reply = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server cannot be reached: it has stopped, or the connection is lost.");
  }
  if (reply.status === 401) at("key-form").hidden = false;
  if (!reply.ok) throw new Refused(await reason(reply));
  return reply;
}

export const read = async (path, body) => (await send(path, body)).json();
export const remove = async (path) => (await send(path, null, undefined, "DELETE")).json();

async function reason(reply) {
  const text = await reply.text();
  try {
    const told = JSON.parse(text);
    return told.error?.message || (typeof told.detail === "string" ? told.detail : text);
  } catch {
    return text || `The server answered with status ${reply.status}.`;
  }
}

// The form for the API key; `start` is called with every key that is given.
export function askForKey(start) {
  at("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(KEY, at("key").value);
    at("key-form").hidden = true;
    forgive();
    start();
  });
}

// Whether the server has yet to load its model.
export async function isLoading() {
  const health = await read("healthz").catch(() => ({}));
  return health.status === "loading";
}

export function complain(error) {
  if (error?.name === "AbortError") return;
  at("alert").textContent = error instanceof Refused ? error.message : String(error);
  at("alert").hidden = false;
  if (!(error instanceof Refused)) throw error;
}

export const forgive = () => { at("alert").hidden = true; };

export const sentence = (text) => (text ? text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".") : "");
