// A room: mist.js brings what is said, the service beside this page takes what we say.
import { connect } from "/mist.js";

const KEPT = 200; // messages on the page
const WORDS = { connecting: "connecting …", open: "in ", waiting: "connection lost, coming back …" };

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
  // Whoever reads further up shall not be carried off.
  const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
  line.classList.add(...classes);
  list.append(line);
  while (list.children.length > KEPT) list.firstChild.remove();
  if (atEnd) list.scrollTop = list.scrollHeight;
}

function hear({ data }) {
  let said;
  try {
    said = JSON.parse(data);
  } catch {
    return; // somebody else publishes with these tags; it is not for us
  }
  const line = document.createElement("li");
  const who = document.createElement("b");
  who.textContent = String(said.name);
  line.append(who, String(said.text));
  show(line, ...(said.name === visit.name ? ["mine"] : []));
}

function missed() {
  const line = document.createElement("li");
  line.textContent = "something may be missing here";
  show(line, "gap");
}

function reflect({ state, error }) {
  $("state").dataset.state = state;
  $("state").textContent = state === "open" ? WORDS.open + visit.room : WORDS[state] ?? "not in a room";
  if (state === "closed" && error.code !== "closed") {
    leave();
    tell(new Error("You were shown out. Join again to come back."));
  }
}

function enter(token, url, name, room) {
  const client = connect(url, { token });
  visit = { client, token, name, room };
  client.on("state", reflect);
  client.on("gap", missed);
  client.on("error", ({ error }) => tell(error));
  // The last fifty that were said before we came, then what comes, each once.
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
    $("text").value = ""; // what could not be said stays
    tell(null);
  } catch (error) {
    tell(error);
  }
});

$("leave").addEventListener("click", () => {
  const token = visit.token;
  leave();
  ask("/leave", { token }).catch(() => {}); // it ends by itself in an hour
});
