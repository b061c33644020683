// Places of the picture that a request means: a click is a point, a drag a box. Shares of the picture's sides.

const kSvg = "http://www.w3.org/2000/svg";
// As many as a request may have.
const kMostPlaces = 64;
// A drag of less than this share of a side is a click.
const kSmallestBox = 0.01;

const rounded = (value) => Math.round(Math.min(1, Math.max(0, value)) * 1e4) / 1e4;

export class Places {
  // `parts`: the frame of the picture, an SVG of the unit square over it, and the button that forgets them all.
  constructor(parts, onChange) {
    this.parts = parts;
    this.onChange = onChange;
    this.enabled = true;
    this.list = [];
    this.from = null;
    parts.frame.addEventListener("pointerdown", (event) => this.#begin(event));
    parts.frame.addEventListener("pointermove", (event) => this.#draw(this.#placeOf(event)));
    parts.frame.addEventListener("pointerup", (event) => this.#end(event));
    parts.frame.addEventListener("pointercancel", () => this.#cancel());
    parts.clear.addEventListener("click", () => this.clear());
  }

  // Of a skill that takes none they are kept, but not shown.
  enable(enabled) {
    this.enabled = enabled;
    this.#cancel();
  }

  clear() {
    this.list = [];
    this.#cancel();
    this.onChange();
  }

  get refs() {
    return this.enabled ? this.list : [];
  }

  #cancel() {
    this.from = null;
    this.#draw(null);
  }

  #at(event) {
    const { left, top, width, height } = this.parts.frame.getBoundingClientRect();
    return [rounded((event.clientX - left) / width), rounded((event.clientY - top) / height)];
  }

  // [x, y], or [x_min, y_min, x_max, y_max]; null: nothing was begun.
  #placeOf(event) {
    if (this.from === null) return null;
    const [x, y] = this.#at(event);
    const [x0, y0] = this.from;
    if (Math.abs(x - x0) < kSmallestBox || Math.abs(y - y0) < kSmallestBox) return this.from;
    return [Math.min(x, x0), Math.min(y, y0), Math.max(x, x0), Math.max(y, y0)];
  }

  #begin(event) {
    if (!this.enabled || event.button !== 0 || this.list.length >= kMostPlaces) return;
    event.preventDefault(); // the browser would drag the picture away
    this.from = this.#at(event);
    this.parts.frame.setPointerCapture(event.pointerId);
  }

  #end(event) {
    const place = this.#placeOf(event);
    if (place === null) return;
    this.list.push(place);
    this.#cancel();
    this.onChange();
  }

  #draw(coming) {
    const { layer, clear, frame } = this.parts;
    const shown = coming ? [...this.refs, coming] : this.refs;
    layer.replaceChildren(...shown.map((place) => this.#mark(place)));
    clear.hidden = this.refs.length === 0;
    frame.classList.toggle("takes-places", this.enabled);
  }

  #mark(place) {
    const [x, y, right, bottom] = place;
    const mark = document.createElementNS(kSvg, place.length === 2 ? "line" : "rect");
    const sides = place.length === 2
      ? { x1: x, y1: y, x2: x, y2: y } // of no length: its round ends are the dot
      : { x, y, width: right - x, height: bottom - y };
    for (const [name, value] of Object.entries(sides)) mark.setAttribute(name, value);
    return mark;
  }
}
