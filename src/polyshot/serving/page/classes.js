// The classes and their examples: a card each, on which photos are dropped.

import { $, ask, complain, el, say, thumbnail, trying } from "/page/api.js";
import { camera, look, question } from "/page/dialogs.js";
import { carry, carried, target } from "/page/dragging.js";
import { Gallery } from "/page/gallery.js";
import { dropped, pick, send } from "/page/photos.js";

const MANY = 12;  // classes from which on one may look for a name
const PREVIEWS = 60;  // photos that are shown before they are sent

export class Classes {
  constructor(page) {
    this.page = page;
    this.cards = new Map();
    this.pasteTo = null;  // the class that was touched last
    this.sending = 0;
    $("find").addEventListener("input", () => this.find());
    $("add-class").addEventListener("submit", trying(async (event) => {
      event.preventDefault();
      const name = $("class-name").value.trim().replace(/\s+/g, " ");
      if (!name) return;
      await this.add(name);
      $("class-name").value = "";
      say(`Class ${name} added`);
    }));
  }

  clear() {
    this.cards.clear();
    this.pasteTo = null;
    $("find").value = "";
    $("classes").replaceChildren();
  }

  show() {
    const { project, images } = this.page;
    const photos = new Map(project.classes.map((one) => [one.name, []]));
    for (const one of images) photos.get(one.label)?.push(one);
    for (const [name, { card }] of this.cards) {
      if (photos.has(name)) continue;
      card.remove();
      this.cards.delete(name);
    }
    let next = $("classes").firstChild;
    for (const [name, own] of photos) {
      if (!this.cards.has(name)) this.cards.set(name, this.make(name));
      const { card, count, empty, waiting, gallery } = this.cards.get(name);
      if (card === next) next = next.nextSibling;
      else $("classes").insertBefore(card, next);
      count.textContent = own.length === 1 ? "1 example" : `${own.length} examples`;
      empty.hidden = own.length > 0 || waiting > 0;
      gallery.show(own);
    }
    $("finding").hidden = photos.size <= MANY;
    this.find();
  }

  find() {
    const wanted = $("finding").hidden ? "" : $("find").value.trim().toLowerCase();
    for (const [name, { card }] of this.cards) card.hidden = !name.toLowerCase().includes(wanted);
  }

  make(name) {
    const count = el("small");
    const list = el("ul", { className: "thumbs", "aria-label": `Examples of ${name}` });
    const empty = el("p", { className: "empty", textContent: "Drop photos here, or paste them." });
    const button = (text, label, work) => {
      const made = el("button", { type: "button", className: "plain", textContent: text, "aria-label": label });
      made.addEventListener("click", work);
      return made;
    };
    const card = el("section", { className: "class", "aria-label": `Class ${name}`, data: { name } },
      el("header", {}, el("h3", {}, name, " ", count),
        button("Add photos", `Add photos of ${name}`, () => pick($("files"), trying((files) => this.teach(name, files)))),
        button("Camera", `Camera for ${name}`, trying(() => camera(`Photos of ${name}`, trying((file) => this.teach(name, [file]))))),
        button("Rename", `Rename ${name}`, trying(() => this.rename(name))),
        button("Delete", `Delete the class ${name}`, trying(() => this.remove(name)))),
      empty, list);
    for (const kind of ["focusin", "pointerdown"]) card.addEventListener(kind, () => { this.pasteTo = name; });
    target(card, trying(async (event) => {
      const image = carried(event);
      if (image) return this.page.move(image, name);
      const { loose, folders } = await dropped(event.dataTransfer);
      return this.teach(name, [...loose, ...[...folders.values()].flat()]);
    }));
    const gallery = new Gallery(list, (one) => this.makeThumb(one), (one) => `${one.id} ${one.file}`);
    return { card, count, empty, list, gallery, waiting: 0 };
  }

  makeThumb(image) {
    const name = `${image.file || "photo"}, ${image.label}`;
    const shown = el("img", { src: thumbnail(this.page.project.id, image.id), alt: name, loading: "lazy", decoding: "async" });
    const button = el("button", { type: "button", title: `${name}: move or delete`, draggable: true }, shown);
    button.addEventListener("click", trying(() => this.look(image)));
    carry(button, image.id);
    return el("li", { data: { image: image.id } }, button);
  }

  async look(image) {
    const { what, label } = await look(this.page.project, image);
    if (what === "move") await this.page.move(image.id, label);
    if (what === "delete") await this.page.remove(image.id);
    if (what) this.focus(image.label);
  }

  // Who goes on by keyboard goes on where the photo was.
  focus(name) {
    if (document.activeElement !== document.body) return;
    const card = this.cards.get(name)?.card;
    (card?.querySelector("button") ?? $("class-name")).focus();
  }

  async add(name, id = this.page.project.id) {
    if (id === this.page.project.id && this.cards.has(name)) return;
    await ask("POST", `/api/projects/${id}/classes`, { name });
    if (id === this.page.project.id) await this.page.refresh();
  }

  async rename(name) {
    const wanted = await question(`Another name for ${name}`, name);
    if (!wanted || wanted === name) return;
    await ask("PATCH", `${this.page.path}/classes/${encodeURIComponent(name)}`, { name: wanted });
    await this.page.changed();
    this.focus(wanted);
  }

  async remove(name) {
    const count = this.page.images.filter((one) => one.label === name).length;
    const examples = count === 1 ? "its example" : `its ${count} examples`;
    if (count && !(await question(`Delete ${name} and ${examples}?`))) return;
    await ask("DELETE", `${this.page.path}/classes/${encodeURIComponent(name)}`);
    await this.page.changed();
    this.focus(name);
    say(`Class ${name} deleted`);
  }

  // Sends photos of a class; those that are kept are shown as they come.
  async teach(name, files, id = this.page.project.id) {
    if (!files.length) {
      complain("There was no photo among these files.");
      return;
    }
    await this.add(name, id);
    const own = this.cards.get(name);
    const here = () => id === this.page.project.id && this.cards.get(name) === own;
    const quick = here() ? this.previews(own, files) : [];
    this.sending += 1;
    try {
      await send(id, name, files, (images, sent) => {
        for (const each of quick.splice(0, sent)) each();
        if (!here()) return;
        this.page.keep(images);
        this.show();
      });
    } finally {
      this.sending -= 1;
      for (const each of quick) each();
      if (own) own.waiting -= files.length;
      if (id === this.page.project.id) await this.page.changed();
    }
  }

  // Thumbnails at once, before anything is sent, of very many the first; each returns how it goes away.
  previews(own, files) {
    own.waiting += files.length;
    own.empty.hidden = true;
    return files.slice(0, PREVIEWS).map((file) => {
      const url = URL.createObjectURL(file);
      const item = el("li", { className: "sending" }, el("button", { type: "button", disabled: true },
        el("img", { src: url, alt: `${file.name}, being sent` })));
      own.list.append(item);
      return () => {
        item.remove();
        URL.revokeObjectURL(url);
      };
    });
  }

  async teachFolders(folders) {
    const { id } = this.page.project;
    if (!folders.size) complain("There was no photo in a folder among these.");
    for (const [name, files] of folders) await this.teach(name || "photos", files, id);
  }
}
