// New photos and what the classifier says of them; a wrong answer is moved to its class.

import { $, ask, complain, el, percent, say, thumbnail, trying } from "/page/api.js";
import { carry } from "/page/dragging.js";
import { Gallery } from "/page/gallery.js";
import { send } from "/page/photos.js";

const NONE = "none of these";
const NEXT = 3;  // photos that are marked to be labelled next
const SHOWN = 3;  // bars of an answer
const AT_ONCE = 200;  // answers in a request

const unanswered = (image) => ({ image: image.id, file: image.file, label: null });

export class Answers {
  constructor(page) {
    this.page = page;
    this.found = [];
    this.gallery = new Gallery($("answers"), (one) => this.make(one), (one) => JSON.stringify([one, this.isNone(one)]));
    $("none").addEventListener("input", () => this.draw());
  }

  clear() {
    this.found = [];
    this.turn = this.mark = null;
    $("answered").textContent = "";
    this.draw();
  }

  async add(files) {
    if (!files.length) {
      complain("There was no photo among these files.");
      return;
    }
    const { id } = this.page.project;
    const examples = [];
    await send(id, null, files, (images) => {
      examples.push(...images.filter((one) => one.label !== null));
      if (id !== this.page.project.id) return;
      const known = new Set(this.found.map((one) => one.image));
      const fresh = images.filter((one) => one.label === null && !known.has(one.id));
      this.found.push(...fresh.map(unanswered));
      this.draw();
    });
    if (examples.length === 1) complain(`${examples[0].file || "This photo"} is an example of ${examples[0].label} already.`);
    if (examples.length > 1) complain(`${examples.length} of these photos are examples already.`);
    if (id === this.page.project.id) await this.page.refresh();
  }

  // Leaves out a photo that has a label now, or is gone.
  forget(image) {
    this.found = this.found.filter((one) => one.image !== image);
    this.draw();
  }

  async refresh() {
    const { project } = this.page;
    const mark = `${project.id} ${project.fitted?.version}`;
    if (mark === this.mark && this.found.length === project.unlabelled && this.found.every((one) => one.probabilities)) {
      this.draw();
      return;
    }
    const turn = this.turn = {};  // a later one takes its place
    const path = `/api/projects/${project.id}`;
    if (!project.fitted || !project.unlabelled) {
      const images = project.unlabelled ? await ask("GET", `${path}/images?labelled=false&count=20000`) : [];
      if (turn !== this.turn) return;
      this.found = images.map(unanswered);
      $("answered").textContent = "They are answered once two classes are taught.";
      this.draw();
      return;
    }
    const found = [];
    for (let after = 0; ;) {
      const { answers } = await ask("GET", `${path}/answers?count=${AT_ONCE}&after=${after}`);
      if (turn !== this.turn) return;
      found.push(...answers);
      if (answers.length < AT_ONCE) break;
      after = answers.at(-1).image;
      $("answered").textContent = `${found.length} of ${project.unlabelled} photos are answered …`;
      if (!this.found.some((one) => one.probabilities)) this.show([...found]);
    }
    this.show(found);
    $("answered").textContent = "";
    this.mark = mark;
    const next = found.length > NEXT ? await ask("GET", `${path}/next?count=${NEXT}`) : [];
    if (turn !== this.turn) return;
    const place = new Map(next.map((image, i) => [image, i]));
    this.found = this.found.map((one) => ({ ...one, next: place.has(one.image) }));
    this.found.sort((one, other) => (place.get(one.image) ?? NEXT) - (place.get(other.image) ?? NEXT));
    this.draw();
    say(found.length === 1 ? "1 photo answered" : `${found.length} photos answered`);
  }

  // The least certain first.
  show(found) {
    const lead = (one) => {
      const [first, second = 0] = Object.values(one.probabilities);
      return first - second;
    };
    this.found = found.sort((one, other) => lead(one) - lead(other));
    this.draw();
  }

  get rate() {
    return Number($("none").value) / 100;
  }

  slide() {
    const known = this.found.some((one) => typeof one.none_rate === "number");
    const none = this.found.filter((one) => this.isNone(one)).length;
    const said = !known && this.found.some((one) => one.label) ? "needs a class with two examples"
      : this.rate ? `${none} of ${this.found.length} photos, at ${percent(this.rate)} false alarms` : "off";
    $("none-said").textContent = said;
    $("none").setAttribute("aria-valuetext", said);
    $("none").disabled = !known;
  }

  isNone(one) {
    return this.rate > 0 && typeof one.none_rate === "number" && one.none_rate <= this.rate;
  }

  draw() {
    $("answering").hidden = !this.found.length;
    const members = (this.page.project?.fitted?.members ?? []).map((one) => `${one.name} ${percent(one.weight)}`);
    $("members").textContent = members.length ? `Answered by ${members.join(", ")}.` : "";
    this.slide();
    const list = $("answers");
    const held = [...list.children].findIndex((item) => item.contains(document.activeElement));
    this.gallery.show(this.found);
    // Who goes on by keyboard goes on at the same place.
    if (held >= 0 && !list.contains(document.activeElement)) {
      const items = list.querySelectorAll("select");
      (items[Math.min(held, items.length - 1)] ?? $("pick-photos")).focus();
    }
  }

  make(one) {
    const { project } = this.page;
    const label = one.label === null ? "not answered yet" : this.isNone(one) ? NONE : one.label;
    const shown = el("img", { src: thumbnail(project.id, one.image), alt: one.file || "photo", loading: "lazy", draggable: true });
    carry(shown, one.image);
    const top = el("div", { className: "top" }, el("strong", { textContent: label }));
    if (one.next) top.append(el("span", { className: "tag", textContent: "label next" }));
    top.append(el("span", { className: "file", textContent: one.file }));
    const bars = el("ul", { className: "bars", "aria-label": "Probabilities" });
    for (const [name, chance] of Object.entries(one.probabilities ?? {}).slice(0, SHOWN)) {
      bars.append(el("li", {}, el("span", { className: "name", title: name, textContent: name }),
        el("meter", { value: chance, max: 1, "aria-hidden": "true" }),
        el("span", { className: "number", textContent: percent(chance) })));
    }
    const select = el("select", { "aria-label": `Class of ${one.file || "the photo"}` },
      el("option", { textContent: one.label ?? project.classes[0]?.name ?? "" }));
    // The classes when they are asked for: a hundred names times a thousand photos are too many.
    const fill = () => {
      const chosen = select.value;
      const names = this.page.project.classes.map((each) => each.name);
      const shown = [...select.options].map((each) => each.value);
      if (names.join("\n") === shown.join("\n")) return;
      select.replaceChildren(...names.map((name) => el("option", { textContent: name, selected: name === chosen })));
    };
    for (const kind of ["pointerdown", "focus"]) select.addEventListener(kind, fill);
    const keep = el("button", { type: "button", textContent: "Teach it", "aria-label": `Teach it, ${one.file || "the photo"}` });
    keep.addEventListener("click", trying(() => this.page.move(one.image, select.value)));
    const drop = el("button", { type: "button", className: "plain", textContent: "Remove", "aria-label": `Remove ${one.file || "the photo"}` });
    drop.addEventListener("click", trying(() => this.page.remove(one.image)));
    return el("li", { data: { image: one.image, label } }, shown, el("div", {}, top, bars),
      el("div", { className: "correct" }, select, keep, drop));
  }
}
