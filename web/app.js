// The playground: wires the page to the server.
import { ApiError, ask, servedModel, setDepth, skillsOfModel, timeline, trace } from "/web/api.js";
import { BackgroundLoad } from "/web/background_load.js";
import { askChat, chatBody } from "/web/chat.js";
import { examples } from "/web/examples.js";
import { Overlay } from "/web/overlay.js";
import { Pictures } from "/web/pictures.js";
import { Places } from "/web/places.js";
import { fileNames, snippets } from "/web/snippets.js";
import { Timeline } from "/web/timeline.js";

const at = (id) => document.getElementById(id);
const kTextOf = {
  query: ["Question", "What is in the picture?"],
  point: ["What to point at", "circle"],
  detect: ["What to find", "circle"],
  segment: ["What to outline", "circle"],
  chat: ["Message", "Hello!"],
};

let skill = "query";
let canReason = false;
let running = null; // the AbortController of the request under way

const overlay = new Overlay(at("overlay"), at("labels"), at("found"));
const places = new Places({ frame: at("frame"), layer: at("places"), clear: at("forget-places") }, () => showRequest());
const pictures = new Pictures(
  {
    stage: at("stage"), frame: at("frame"), drop: at("drop"), image: at("picture"), file: at("file"),
    choose: at("choose"), sample: at("sample"), another: at("another"), name: at("picture-name"),
    strip: at("strip-of-pictures"), refused: at("refused"),
  },
  () => {
    clearAnswer();
    places.clear();
    showExamples();
    showRequest();
  },
);

const key = () => at("key").value;
const device = new Timeline(
  {
    section: at("device"), strip: at("strip"), text: at("strip-text"), depths: at("depths"), which: at("which"), devices: at("devices"),
    figures: at("device-figures"), history: at("history"), trace: at("trace"),
  },
  {
    timeline: (name) => timeline(key(), name), setDepth: (depth, name) => setDepth(key(), depth, name), trace: () => trace(key()),
  },
);
const load = new BackgroundLoad((signal) =>
  ask("query", { question: "Tell me a story.", stream: true, settings: { max_tokens: 256, ignore_eos: true } }, {
    key: key(), signal, onText: () => {},
  }),
);

function clearAnswer() {
  at("answer").textContent = "";
  at("error").hidden = true;
  at("metrics").hidden = true;
  at("thoughts").hidden = true;
  overlay.clear();
}

function chooseSkill(name) {
  skill = name;
  for (const tab of at("tabs").children) {
    const chosen = tab.dataset.skill === name;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
  }
  at("text-row").hidden = name === "caption";
  at("length-row").hidden = name !== "caption";
  at("reasoning-row").hidden = name !== "query" || !canReason;
  if (kTextOf[name]) [at("text-label").textContent, at("text").placeholder] = kTextOf[name];
  showExamples();
  showRequest();
}

const shownTabs = () => [...at("tabs").children].filter((tab) => !tab.hidden);

// A tab for each skill that the model has.
function showSkills(names) {
  canReason = names.includes("reasoning");
  at("reasoning-row").hidden = skill !== "query" || !canReason;
  for (const tab of at("tabs").children) tab.hidden = !names.includes(tab.dataset.skill);
  const tabs = shownTabs();
  at("form").hidden = tabs.length === 0;
  at("no-skill").hidden = tabs.length > 0;
  // A text model is asked about no pictures.
  at("stage").hidden = tabs.every((tab) => tab.dataset.skill === "chat");
  if (tabs.length > 0 && !names.includes(skill)) chooseSkill(tabs[0].dataset.skill);
}

function showExamples() {
  at("examples").replaceChildren(
    ...(examples[asksAboutAll() ? "several" : skill] ?? []).map((text) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      button.addEventListener("click", () => {
        at("text").value = text;
        showRequest();
        at("text").focus();
      });
      return button;
    }),
  );
}

function settings() {
  const chosen = {};
  for (const name of ["temperature", "top_p", "seed", "max_tokens"]) {
    if (at(name).value !== "") chosen[name] = Number(at(name).value);
  }
  return chosen;
}

function requestBody(imageUrl) {
  const body = {};
  if (imageUrl) body.image_url = imageUrl;
  if (skill === "query") body.question = at("text").value;
  else if (skill === "caption") body.length = at("length").value;
  else if (skill === "chat") body.question = at("text").value;
  else body.object = at("text").value;
  if (imageUrl && places.refs.length > 0) body.spatial_refs = places.refs;
  if (skill === "query" || skill === "caption" || skill === "segment") body.stream = true;
  if (skill === "query" && canReason && at("reasoning").checked) body.reasoning = true;
  const chosen = settings();
  if (Object.keys(chosen).length > 0) body.settings = chosen;
  return body;
}

// The other skills are about the picture that is shown, a question is about all.
const asksAboutAll = () => skill === "query" && pictures.list.length > 1;

// What is sent, and where.
function currentRequest() {
  const body = requestBody(skill === "chat" ? null : pictures.dataUrl);
  if (skill !== "chat" && !asksAboutAll()) return { skill, path: `/v1/${skill}`, body };
  return { skill, path: "/v1/chat/completions", body: chatBody(body, skill === "chat" ? [] : pictures.dataUrls) };
}

function send(request, options) {
  return request.path === "/v1/chat/completions" ? askChat(request.body, options) : ask(skill, request.body, options);
}

function showMetrics(metrics) {
  const rows = [
    ["first token", `${metrics.ttft_ms.toFixed(1)} ms`],
    ["tokens in", metrics.input_tokens],
    ["tokens out", metrics.output_tokens],
  ];
  if (metrics.output_tokens > 1 && metrics.decode_time_ms > 0) {
    const rate = ((metrics.output_tokens - 1) / metrics.decode_time_ms) * 1000;
    rows.push(["speed", `${rate.toFixed(0)} tokens/s`]);
  }
  at("metrics").replaceChildren(
    ...rows.map(([name, value]) => {
      const row = document.createElement("div");
      row.append(document.createElement("dt"), document.createElement("dd"));
      row.children[0].textContent = name;
      row.children[1].textContent = value;
      return row;
    }),
  );
  at("metrics").hidden = false;
}

async function run() {
  if (running) return;
  clearAnswer();
  running = new AbortController();
  at("go").disabled = true;
  at("stop").hidden = false;
  at("answer").classList.add("running");
  try {
    const result = await send(currentRequest(), {
      key: at("key").value,
      signal: running.signal,
      onText: (chunk) => at("answer").append(chunk),
      onPath: (segment) => overlay.show(segment),
    });
    if (result.objects || result.points || "path" in result) overlay.show(result);
    if (result.reasoning) showReasoning(result.reasoning);
    showMetrics(result.metrics);
  } catch (error) {
    if (error.name !== "AbortError") showError(error);
  } finally {
    running = null;
    at("go").disabled = false;
    at("stop").hidden = true;
    at("answer").classList.remove("running");
  }
}

// Its text, and its points in the picture.
function showReasoning({ text, grounding }) {
  at("thoughts-text").textContent = text;
  at("thoughts").hidden = false;
  const points = grounding.flatMap((part) => part.points.map(([x, y]) => ({ x, y })));
  if (points.length > 0 && !asksAboutAll()) overlay.show({ points });
}

function showError(error) {
  if (error.status === 401) askForKey();
  at("error").textContent = error instanceof ApiError ? error.message : `no answer: ${error.message}`;
  at("error").hidden = false;
}

function askForKey() {
  at("key-row").hidden = false;
}

// How many pictures the request is about, and its code.
function showRequest() {
  const { length } = pictures.list;
  places.enable(["query", "point", "segment"].includes(skill) && length > 0 && !asksAboutAll());
  at("about").textContent = length < 2 ? "" : asksAboutAll() ? `about all ${length} pictures` : "about the picture that is shown";
  if (!at("code").open) return;
  const request = currentRequest();
  const all = fileNames(pictures.list.map((one) => one.type));
  const isAboutAll = request.path === "/v1/chat/completions";
  const files = skill === "chat" ? [] : isAboutAll ? all : all.slice(pictures.shown, pictures.shown + 1);
  const language = document.querySelector("#languages input:checked").value;
  const made = { ...request, files, origin: location.origin, key: !at("key-row").hidden };
  at("snippet").textContent = snippets[language](made);
}

function showLanguages() {
  at("languages").replaceChildren(
    ...Object.keys(snippets).map((name, index) => {
      const label = document.createElement("label");
      const input = document.createElement("input");
      Object.assign(input, { type: "radio", name: "language", value: name, checked: index === 0 });
      label.append(input, name);
      return label;
    }),
  );
}

async function copyCode() {
  const button = at("copy");
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(at("snippet").textContent);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Cannot copy here";
  }
  setTimeout(() => (button.textContent = label), 1500);
}

function toggleTheme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
}

async function greet() {
  try {
    const model = await servedModel(at("key").value);
    showSkills(await skillsOfModel(at("key").value));
    at("server").textContent = `${model.id} · context ${model.max_model_len}`;
  } catch (error) {
    at("server").textContent = error.message;
    if (error.status === 401) return askForKey();
    setTimeout(greet, 2000);
  }
}

function moveTab(step) {
  const tabs = shownTabs();
  const now = tabs.findIndex((tab) => tab.dataset.skill === skill);
  const next = tabs[(now + step + tabs.length) % tabs.length];
  chooseSkill(next.dataset.skill);
  next.focus();
}

at("tabs").addEventListener("click", (event) => {
  if (event.target.dataset.skill) chooseSkill(event.target.dataset.skill);
});
at("tabs").addEventListener("keydown", (event) => {
  if (event.key === "ArrowRight") moveTab(1);
  if (event.key === "ArrowLeft") moveTab(-1);
});
at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
at("text").addEventListener("keydown", (event) => {
  // Of an input method, Enter takes what it proposes.
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    run();
  }
});
at("stop").addEventListener("click", () => running?.abort());
at("copy").addEventListener("click", copyCode);
at("code").addEventListener("toggle", showRequest);
at("form").addEventListener("input", showRequest);
at("key").addEventListener("change", greet);
at("load").addEventListener("change", () => load.setStreams(Number(at("load").value)));
at("theme").addEventListener("click", toggleTheme);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
  if (event.key === "Enter" && event.ctrlKey) run();
  const typing = /INPUT|TEXTAREA|SELECT/.test(event.target.tagName);
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "o") at("file").click();
  if (event.key === "t") toggleTheme();
  if (event.key === "b") device.toggleDepth();
  const tab = shownTabs()[event.key - 1];
  if (tab) chooseSkill(tab.dataset.skill);
});

showLanguages();
chooseSkill("query");
greet();
