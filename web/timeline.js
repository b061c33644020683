// The device's last steps as a strip, drawn from /debug/timeline: forwards, samplings, and the gaps
// between them as the server's ledger names them: preparing, starved or bubble.

const kSvg = "http://www.w3.org/2000/svg";
const kPollMs = 500;
const kShownSteps = 30;
const kHistory = 60;

function rect(svg, name, x, width, y, height) {
  const element = document.createElementNS(kSvg, "rect");
  element.setAttribute("class", name);
  for (const [attribute, value] of Object.entries({ x, width, y, height })) {
    element.setAttribute(attribute, value);
  }
  svg.append(element);
}

// Busy intervals of the steps, in order and without overlaps.
function intervals(steps) {
  const all = [];
  for (const step of steps) {
    const kind = step.kind === "decode" ? "forward" : "fill";
    all.push({ name: kind, begin: step.forward[0], end: step.forward[1] });
    if (step.sampling[1] > step.sampling[0]) {
      all.push({ name: "sampling", begin: step.sampling[0], end: step.sampling[1] });
    }
  }
  return all.sort((a, b) => a.begin - b.begin);
}

// The steps may lie minutes apart.
export function lengthText(ns) {
  return ns < 1e9 ? `${(ns / 1e6).toFixed(1)} ms` : `${(ns / 1e9).toFixed(1)} s`;
}

export const rowsText = (count) => (count === 1 ? "1 row" : `${count} rows`);

// Steps and gaps in order of time, and how long each kind took in all. Gaps from before the first
// step are left out.
export function accountFor(steps, gaps) {
  const parts = intervals(steps);
  const first = parts.length > 0 ? parts[0].begin : Infinity;
  const last = parts.length > 0 ? parts[parts.length - 1].end : -Infinity;
  for (const { state, span } of gaps) {
    if (span[0] >= first && span[1] <= last) parts.push({ name: state, begin: span[0], end: span[1] });
  }
  parts.sort((a, b) => a.begin - b.begin);
  const sum = (...names) =>
    parts.filter((part) => names.includes(part.name)).reduce((total, part) => total + part.end - part.begin, 0);
  return {
    parts,
    busy: sum("forward", "sampling", "fill"),
    bubble: sum("bubble"),
    preparing: sum("preparing"),
    starved: sum("starved"),
  };
}

export class Timeline {
  // `parts`: elements; `api`: timeline(device), setDepth(depth, device), trace().
  constructor(parts, api) {
    this.parts = parts;
    this.api = api;
    this.depth = 0;
    this.device = ""; // the first one
    this.lastStep = -1;
    this.history = [];
    parts.devices.addEventListener("change", () => this.#choose(parts.devices.value));
    parts.trace.addEventListener("click", () => this.#download());
    this.#poll();
  }

  // Blocking and pipelined by turns.
  toggleDepth() {
    if (this.depth > 0) this.setDepth(this.depth === 1 ? this.maxDepth : 1);
  }

  async setDepth(depth) {
    try {
      this.#show(await this.api.setDepth(depth, this.device));
    } catch (error) {
      this.parts.text.textContent = error.message;
    }
  }

  async #poll() {
    try {
      if (!document.hidden) {
        const timeline = await this.api.timeline(this.device);
        if (timeline === null) return; // this server shows none
        this.#show(timeline);
      }
    } catch {
      // The server is away or wants a key: ask again.
    }
    setTimeout(() => this.#poll(), kPollMs);
  }

  // Steps of another device have numbers of their own.
  #choose(device) {
    this.device = device;
    this.lastStep = -1;
    this.history = [];
  }

  #showDevices({ device, devices }) {
    const { which, devices: select } = this.parts;
    which.hidden = devices.length < 2;
    if (select.options.length !== devices.length) select.replaceChildren(...devices.map((name) => new Option(name)));
    if (document.activeElement !== select) select.value = device;
  }

  #show(timeline) {
    if (this.device !== "" && timeline.device !== this.device) return; // asked for before another was chosen
    this.parts.section.hidden = false;
    this.#showDevices(timeline);
    this.#showDepths(timeline);
    const steps = timeline.steps;
    const newest = steps.length > 0 ? steps[steps.length - 1].number : -1;
    const fresh = steps.filter((step) => step.number > this.lastStep);
    if (newest !== this.lastStep) {
      this.#draw(steps.slice(-kShownSteps), timeline.gaps);
      this.#showFigures(fresh, timeline.gaps);
    }
    const account = accountFor(fresh, timeline.gaps);
    const share = account.busy > 0 ? account.bubble / (account.busy + account.bubble) : null;
    this.history = [...this.history, { share, depth: timeline.depth }].slice(-kHistory);
    this.lastStep = newest;
    this.#drawHistory();
  }

  #showDepths({ depth, max_depth: maxDepth }) {
    const { depths } = this.parts;
    if (this.maxDepth !== maxDepth) {
      this.maxDepth = maxDepth;
      for (const old of depths.querySelectorAll("label")) old.remove();
      for (let number = 1; number <= maxDepth; ++number) {
        const label = document.createElement("label");
        const input = document.createElement("input");
        Object.assign(input, { type: "radio", name: "depth", value: number });
        input.addEventListener("change", () => this.setDepth(number));
        label.append(input, number === 1 ? "1 blocking" : `${number} pipelined`);
        depths.append(label);
      }
    }
    this.depth = depth;
    for (const input of depths.querySelectorAll("input")) input.checked = Number(input.value) === depth;
  }

  #draw(steps, gaps) {
    const { strip, text } = this.parts;
    strip.replaceChildren();
    const { parts } = accountFor(steps, gaps);
    if (parts.length === 0) return;
    const begin = parts[0].begin;
    // Long pauses would squeeze the steps: they take a twentieth of the strip at most.
    const isPause = (part) => part.name === "starved" || part.name === "preparing";
    const busy = parts.filter((part) => !isPause(part)).reduce((sum, part) => sum + part.end - part.begin, 0);
    const widest = busy / 20;
    const widths = parts.map((part) => (isPause(part) ? Math.min(widest, part.end - part.begin) : part.end - part.begin));
    const scale = 1000 / widths.reduce((sum, width) => sum + width, 0);
    let x = 0;
    parts.forEach((part, i) => {
      const width = widths[i] * scale;
      // A gap of less than a third of a pixel is none to the eye.
      if (part.name === "bubble" && width > 0.3) rect(strip, "bubble", x, Math.max(width, 1.2), 0, 60);
      else if (part.name !== "bubble") rect(strip, part.name, x, width, 14, 32);
      x += width;
    });
    const end = parts[parts.length - 1].end;
    const rows = steps[steps.length - 1].rows;
    text.textContent = `the last ${steps.length} steps, ${lengthText(end - begin)}, ${rowsText(rows)} in the last one`;
  }

  #showFigures(steps, gaps) {
    const decodes = steps.filter((step) => step.kind === "decode");
    if (decodes.length < 2) return;
    const account = accountFor(steps, gaps);
    const all = account.busy + account.bubble + account.preparing + account.starved;
    const mean = (value) => decodes.reduce((sum, step) => sum + value(step), 0) / decodes.length / 1e6;
    const rows = [
      ["device busy", `${((100 * account.busy) / all).toFixed(1)} %`],
      ["preparing", `${((100 * account.preparing) / all).toFixed(1)} %`],
      ["bubble", `${(account.bubble / steps.length / 1e3).toFixed(0)} µs/step`],
      ["forward", `${mean((step) => step.forward[1] - step.forward[0]).toFixed(2)} ms`],
      ["sampling", `${mean((step) => step.sampling[1] - step.sampling[0]).toFixed(2)} ms`],
    ];
    this.parts.figures.replaceChildren(
      ...rows.map(([name, value]) => {
        const row = document.createElement("div");
        row.append(document.createElement("dt"), document.createElement("dd"));
        row.children[0].textContent = name;
        row.children[1].textContent = value;
        return row;
      }),
    );
  }

  #drawHistory() {
    const { history } = this.parts;
    history.replaceChildren();
    const most = Math.max(0.05, ...this.history.map(({ share }) => share ?? 0));
    this.history.forEach(({ share, depth }, i) => {
      if (share === null) return;
      const height = Math.max(0.5, (38 * share) / most);
      rect(history, depth === 1 ? "blocking" : "pipelined", i * 2, 1.6, 40 - height, height);
    });
  }

  async #download() {
    try {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(await this.api.trace());
      link.download = "gapless-trace.json";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    } catch (error) {
      this.parts.text.textContent = error.message;
    }
  }
}
