// Points and boxes over the picture. Coordinates are shares of the picture's sides, so the overlay's
// coordinate system is the unit square.

const kColours = ["#d81b60", "#1e88e5", "#e07b00", "#2e9e44", "#8e44ad", "#00838f", "#c0392b", "#5d6d1e"];
const kSvg = "http://www.w3.org/2000/svg";

export class Overlay {
  constructor(svg, labels, list) {
    this.svg = svg;
    this.labels = labels;
    this.list = list;
    this.clear();
  }

  clear() {
    this.svg.replaceChildren();
    this.labels.replaceChildren();
    this.list.replaceChildren();
  }

  show({ objects = [], points = [], path, bbox }) {
    this.clear();
    if (path) return this.#addPath(path, bbox);
    objects.forEach((box, index) => this.#addBox(box, index));
    points.forEach((point, index) => this.#addPoint(point, index));
    if (objects.length + points.length === 0) {
      const none = document.createElement("li");
      none.textContent = "nothing found";
      this.list.append(none);
    }
  }

  #addBox(box, index) {
    const rect = document.createElementNS(kSvg, "rect");
    rect.setAttribute("x", box.x_min);
    rect.setAttribute("y", box.y_min);
    rect.setAttribute("width", box.x_max - box.x_min);
    rect.setAttribute("height", box.y_max - box.y_min);
    const colour = kColours[index % kColours.length];
    rect.style.stroke = colour;
    rect.style.fill = colour;
    this.svg.append(rect);
    const label = this.#addLabel(index, box.x_min, box.y_min);
    const numbers = [box.x_min, box.y_min, box.x_max, box.y_max];
    this.#addItem(numbers, [rect, label]);
  }

  // A path's coordinates are shares of its box, so it gets a coordinate system of its own there.
  #addPath(path, box) {
    const inner = document.createElementNS(kSvg, "svg");
    inner.setAttribute("x", box.x_min);
    inner.setAttribute("y", box.y_min);
    inner.setAttribute("width", box.x_max - box.x_min);
    inner.setAttribute("height", box.y_max - box.y_min);
    inner.setAttribute("viewBox", "0 0 1 1");
    inner.setAttribute("preserveAspectRatio", "none");
    inner.setAttribute("overflow", "visible");
    const outline = document.createElementNS(kSvg, "path");
    outline.setAttribute("d", path);
    outline.style.stroke = kColours[0];
    outline.style.fill = kColours[0];
    inner.append(outline);
    this.svg.append(inner);
    this.#addItem([box.x_min, box.y_min, box.x_max, box.y_max], [outline]);
  }

  #addPoint(point, index) {
    const label = this.#addLabel(index, point.x, point.y);
    label.className = "dot";
    this.#addItem([point.x, point.y], [label]);
  }

  #addLabel(index, x, y) {
    const label = document.createElement("span");
    label.textContent = index + 1;
    label.style.left = `${x * 100}%`;
    label.style.top = `${y * 100}%`;
    label.style.background = kColours[index % kColours.length];
    this.labels.append(label);
    return label;
  }

  // A line in the list; pointing at it, or at its mark, lights both up.
  #addItem(numbers, marks) {
    const item = document.createElement("li");
    item.tabIndex = 0;
    item.textContent = numbers.map((number) => number.toFixed(3)).join("  ");
    this.list.append(item);
    const light = (on) => {
      for (const part of [item, ...marks]) part.classList.toggle("lit", on);
    };
    for (const part of [item, ...marks]) {
      part.addEventListener("pointerenter", () => light(true));
      part.addEventListener("pointerleave", () => light(false));
    }
    item.addEventListener("focus", () => light(true));
    item.addEventListener("blur", () => light(false));
  }
}
