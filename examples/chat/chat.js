// A chat room: messages arrive by mist.js, and are sent to the service that serves this page.
import { connect } from "/mist.js";

const MAX_MESSAGES = 200; // on the page
const WORDS = { connecting: "connecting …", open: "in ", waiting: "connection lost, reconnecting …" };

const $ = (id) => document.getElementById(id);
let visit = null; // { client, token, name, room } while in a room

async function ask(path, value) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(value),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

function tell(error) {
  $("error").textContent = error ? error.message : "";
  $("error").hidden = !error;
}

function show(line, ...classes) {
  const list = $("messages");
  // Don't scroll while the user reads older messages.
  const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
  line.classList.add(...classes);
  list.append(line);
  while (list.children.length > MAX_MESSAGES) list.firstChild.remove();
  if (atEnd) list.scrollTop = list.scrollHeight;
}

function hear({ data }) {
  let said;
  try {
    said = JSON.parse(data);
  } catch {
    return; // another publisher uses these tags
  }
  const line = document.createElement("p");
  const who = document.createElement("b");
  who.textContent = String(said.name);
  line.append(who, String(said.text));
  show(line, ...(said.name === visit.name ? ["mine"] : []));
}

function missed() {
  const line = document.createElement("p");
  line.textContent = "messages may be missing here";
  show(line, "gap");
}

function reflect({ state, error }) {
  $("state").dataset.state = state;
  $("state").textContent = state === "open" ? WORDS.open + visit.room : WORDS[state] ?? "not in a room";
  if (state === "closed" && error.code !== "closed") {
    leave();
    tell(new Error("Your token was revoked. Join again to return."));
  }
}

function enter(token, url, name, room) {
  const client = connect(url, { token });
  visit = { client, token, name, room };
  client.on("state", reflect);
  client.on("gap", missed);
  client.on("error", ({ error }) => tell(error));
  // The last fifty messages, then live ones, each once.
  client.subscribe(["chat", `room:${room}`], hear, { since: -50 });
  reflect({ state: client.state });
  $("join").hidden = true;
  $("talk").hidden = false;
  $("text").focus();
}

function leave() {
  visit?.client.close();
  visit = null;
  $("messages").replaceChildren();
  $("state").dataset.state = "out";
  $("state").textContent = "not in a room";
  $("talk").hidden = true;
  $("join").hidden = false;
}

$("join").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = $("name").value.trim().replace(/\s+/g, " ");
  const room = $("room").value;
  try {
    const { token, url } = await ask("/join", { name, room });
    tell(null);
    enter(token, url, name, room);
  } catch (error) {
    tell(error);
  }
});

$("say").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = $("text").value;
  try {
    await ask("/say", { token: visit.token, text });
    $("text").value = ""; // kept if it was not sent
    tell(null);
  } catch (error) {
    tell(error);
  }
});

$("leave").addEventListener("click", () => {
  const token = visit.token;
  leave();
  ask("/leave", { token }).catch(() => {}); // the token is revoked after an hour anyway
});
