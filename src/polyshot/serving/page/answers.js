// New photos and what the classifier says of them; a wrong answer is moved to its class.

import { $, ask, complain, el, thumbnail, trying } from "/page/api.js";
import { carry } from "/page/dragging.js";
import { Gallery } from "/page/gallery.js";
import { send } from "/page/photos.js";

const NONE = "none of these";
const NEXT = 3;  // photos that are marked to be labelled next
const SHOWN = 3;  // bars of an answer
const percent = (share) => `${Math.round(100 * share)} %`;

export class Answers {
  constructor(page) {
    this.page = page;
    this.found = [];
    this.gallery = new Gallery($("answers"), (one) => this.make(one));
    $("none").addEventListener("input", () => this.slide());
    $("none").addEventListener("change", () => this.draw());
  }

  clear() {
    this.found = [];
    this.draw();
  }

  async add(files) {
    if (!files.length) {
      complain("There was no photo among these files.");
      return;
    }
    await send(this.page.project.id, null, files, trying(() => this.page.refresh()));
    if (!this.page.project.fitted) complain("The photos are kept: they are answered once two classes are taught.");
  }

  async refresh() {
    const { project } = this.page;
    if (!project.unlabelled) {
      this.clear();
      return;
    }
    const path = `/api/projects/${project.id}`;
    if (!project.fitted) {
      const images = await ask("GET", `${path}/images?labelled=false&count=20000`);
      this.found = images.map((one) => ({ image: one.id, file: one.file, label: null }));
      this.draw();
      return;
    }
    const found = [];
    for (let after = 0; ;) {
      const some = await ask("GET", `${path}/answers?count=200&after=${after}`);
      found.push(...some.answers);
      this.members = some.members;
      if (some.answers.length < 200 || this.page.project.id !== project.id) break;
      after = some.answers.at(-1).image;
    }
    if (this.page.project.id !== project.id) return;
    const doubt = (one) => {
      const [first, second = 0] = Object.values(one.probabilities);
      return first - second;
    };
    found.sort((one, other) => doubt(one) - doubt(other));
    const next = await ask("GET", `${path}/next?count=${NEXT}`);
    const place = new Map(next.map((image, i) => [image, i]));
    for (const one of found) one.next = place.has(one.image) && found.length > NEXT;
    found.sort((one, other) => (place.get(one.image) ?? NEXT) - (place.get(other.image) ?? NEXT));
    this.found = found;
    this.draw();
  }

  get rate() {
    return Number($("none").value) / 100;
  }

  slide() {
    const none = this.found.filter((one) => this.isNone(one)).length;
    $("none-said").textContent = this.rate
      ? `${none} of ${this.found.length} photos, at ${percent(this.rate)} false alarms` : "off";
    const known = this.found.some((one) => typeof one.none_rate === "number");
    $("none").disabled = !known;
  }

  isNone(one) {
    return this.rate > 0 && typeof one.none_rate === "number" && one.none_rate <= this.rate;
  }

  draw() {
    $("answering").hidden = !this.found.length;
    const members = (this.page.project?.fitted?.members ?? []).map((one) => `${one.name} ${one.weight.toFixed(2)}`);
    $("members").textContent = members.length ? `Answered by ${members.join(", ")}.` : "";
    this.slide();
    const list = $("answers");
    const held = [...list.children].findIndex((item) => item.contains(document.activeElement));
    this.gallery.show(this.found, true);
    // Who goes on by keyboard goes on at the same place.
    if (held >= 0) list.children[Math.min(held, list.children.length - 1)]?.querySelector("select")?.focus();
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
      ...project.classes.map((each) => el("option", { textContent: each.name, selected: each.name === one.label })));
    const keep = el("button", { type: "button", textContent: "Make it an example" });
    keep.addEventListener("click", trying(() => this.page.move(one.image, select.value)));
    const drop = el("button", { type: "button", className: "plain", textContent: "Remove", "aria-label": `Remove ${one.file || "the photo"}` });
    drop.addEventListener("click", trying(async () => {
      await ask("DELETE", `/api/projects/${project.id}/images/${one.image}`);
      await this.page.refresh();
    }));
    return el("li", { data: { image: one.image, label } }, shown, el("div", {}, top, bars),
      el("div", { className: "correct" }, select, keep, drop));
  }
}
