// The pictures that are asked about: dropped, pasted, chosen, or the sample. One of them is shown.

// As many as a request may have.
const kMostPictures = 8;

const startsWith = (bytes, text, at = 0) => [...text].every((c, i) => bytes[at + i] === c.charCodeAt(0));

// By the first bytes, as the server tells them; names and types are what somebody has said. null: none of these.
export function formatOf(bytes) {
  if (startsWith(bytes, "\x89PNG")) return "image/png";
  if (startsWith(bytes, "\xff\xd8\xff")) return "image/jpeg";
  if (startsWith(bytes, "GIF8")) return "image/gif";
  if (startsWith(bytes, "RIFF") && startsWith(bytes, "WEBP", 8)) return "image/webp";
  return null;
}

function readAsDataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

export class Pictures {
  // `parts`: the elements; onChange is called when other pictures are there, or another one is shown.
  constructor(parts, onChange) {
    this.parts = parts;
    this.onChange = onChange;
    this.list = []; // {dataUrl, name, type}
    this.shown = 0;

    parts.choose.addEventListener("click", () => parts.file.click());
    parts.another.addEventListener("click", () => parts.file.click());
    parts.sample.addEventListener("click", () => this.takeSample());
    parts.file.addEventListener("change", async () => {
      const files = [...parts.file.files];
      parts.file.value = "";
      await this.take(files);
    });
    document.addEventListener("paste", (event) => this.#takeFrom(event.clipboardData, event));
    document.addEventListener("dragover", (event) => {
      event.preventDefault();
      parts.stage.classList.add("over");
    });
    document.addEventListener("dragleave", (event) => {
      if (event.relatedTarget === null) parts.stage.classList.remove("over");
    });
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      parts.stage.classList.remove("over");
      this.#takeFrom(event.dataTransfer, event);
    });
  }

  // Of the one that is shown; null: there is none.
  get dataUrl() {
    return this.list[this.shown]?.dataUrl ?? null;
  }

  get dataUrls() {
    return this.list.map((one) => one.dataUrl);
  }

  #takeFrom(transfer, event) {
    const files = [...(transfer?.files ?? [])];
    if (files.length === 0) return;
    event.preventDefault();
    this.take(files);
  }

  // Adds them and shows the last one. What cannot be asked about is named.
  async take(files) {
    const refused = [];
    let added = 0;
    for (const file of files) {
      const name = file.name || "pasted picture";
      const type = formatOf(new Uint8Array(await file.slice(0, 16).arrayBuffer()));
      if (type === null) {
        refused.push(`${name} is no JPEG, PNG, WebP or GIF picture`);
      } else if (this.list.length >= kMostPictures) {
        refused.push(`${name} is one too many: a question has ${kMostPictures} pictures at most`);
      } else {
        const dataUrl = await readAsDataUrl(new Blob([file], { type }));
        this.list.push({ dataUrl, type, name: `${name} · ${Math.ceil(file.size / 1024)} KiB` });
        ++added;
      }
    }
    this.parts.refused.textContent = refused.join("; ");
    this.parts.refused.hidden = refused.length === 0;
    if (added > 0) this.show(this.list.length - 1);
  }

  async takeSample() {
    const blob = await (await fetch("/web/sample.png")).blob();
    await this.take([new File([blob], "sample.png", { type: "image/png" })]);
  }

  show(index) {
    const { image, frame, drop, name, another } = this.parts;
    this.shown = index;
    const one = this.list[index];
    frame.hidden = !one;
    drop.hidden = Boolean(one);
    another.hidden = !one;
    name.textContent = one?.name ?? "";
    if (one) image.src = one.dataUrl;
    else image.removeAttribute("src");
    this.#drawStrip();
    this.onChange();
  }

  remove(index) {
    this.list.splice(index, 1);
    this.show(Math.max(0, Math.min(this.shown - (index < this.shown ? 1 : 0), this.list.length - 1)));
  }

  #drawStrip() {
    this.parts.strip.hidden = this.list.length === 0;
    this.parts.strip.replaceChildren(...this.list.map((one, index) => this.#thumbnail(one, index)));
  }

  #thumbnail(one, index) {
    const item = document.createElement("li");
    const show = document.createElement("button");
    const image = document.createElement("img");
    const remove = document.createElement("button");
    show.type = remove.type = "button";
    show.setAttribute("aria-pressed", index === this.shown);
    image.src = one.dataUrl;
    image.alt = `Picture ${index + 1}: ${one.name}`;
    remove.textContent = "×";
    remove.setAttribute("aria-label", `Remove picture ${index + 1}`);
    show.append(image);
    show.addEventListener("click", () => this.show(index));
    remove.addEventListener("click", () => this.remove(index));
    item.append(show, remove);
    return item;
  }
}
