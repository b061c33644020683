// The picture that is asked about: dropped, pasted, chosen, or the sample.

function readAsDataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

export class Picture {
  // `parts`: the elements; onChange is called with every new picture.
  constructor(parts, onChange) {
    this.parts = parts;
    this.onChange = onChange;
    this.dataUrl = null;

    parts.choose.addEventListener("click", () => parts.file.click());
    parts.another.addEventListener("click", () => parts.file.click());
    parts.sample.addEventListener("click", () => this.takeSample());
    parts.file.addEventListener("change", () => {
      if (parts.file.files.length > 0) this.take(parts.file.files[0]);
      parts.file.value = "";
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

  #takeFrom(transfer, event) {
    for (const file of transfer?.files ?? []) {
      if (!file.type.startsWith("image/")) continue;
      event.preventDefault();
      return this.take(file);
    }
  }

  async take(blob) {
    this.dataUrl = await readAsDataUrl(blob);
    const { image, frame, drop, name, another } = this.parts;
    image.src = this.dataUrl;
    frame.hidden = false;
    drop.hidden = true;
    another.hidden = false;
    name.textContent = `${blob.name ?? "pasted picture"} · ${Math.ceil(blob.size / 1024)} KiB`;
    this.onChange();
  }

  async takeSample() {
    const blob = await (await fetch("/web/sample.png")).blob();
    await this.take(new File([blob], "sample.png", { type: "image/png" }));
  }
}
