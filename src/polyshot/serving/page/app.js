// The page's state and its parts: projects, classes, learning, answers.

import { $, ask, complain, el, enter, say, thumbnail, trying } from "/page/api.js";
import { Answers } from "/page/answers.js";
import { carry, target } from "/page/dragging.js";
import { Gallery } from "/page/gallery.js";
import { camera, chosen, dropped, pick, send } from "/page/photos.js";

const percent = (share) => `${Math.round(100 * share)} %`;
const CALM = 700;  // milliseconds without a change after which learning starts by itself

class Page {
  constructor() {
    this.project = null;
    this.images = [];
    this.cards = new Map();
    this.sending = 0;
    this.pasteTo = null;
    this.fine = new Set(JSON.parse(localStorage.getItem("fine") ?? "[]"));  // suspects that are right
    this.answers = new Answers(this);
  }

  get path() {
    return `/api/projects/${this.project.id}`;
  }

  // --- projects

  async start() {
    await enter();
    let projects = await ask("GET", "/api/projects");
    if (!projects.length) projects = [await ask("POST", "/api/projects", { name: "My first project" })];
    const last = localStorage.getItem("project");
    await this.open(projects.find((one) => one.id === last) ?? projects.at(-1), projects);
  }

  async open(project, projects) {
    projects ??= await ask("GET", "/api/projects");
    this.project = project;
    localStorage.setItem("project", project.id);
    $("project").replaceChildren(
      ...projects.map((one) => el("option", { value: one.id, textContent: one.name, selected: one.id === project.id })),
    );
    document.title = `${project.name} – Polyshot`;
    this.events?.close();
    $("job").hidden = true;
    this.cards.clear();
    $("classes").replaceChildren();
    this.answers.clear();
    await this.refresh();
    $("main").hidden = false;
    if (["waiting", "running"].includes(this.project.job?.state)) this.listen();
    else if (this.project.fitted?.version !== this.project.version) this.later();
  }

  async refresh() {
    const id = this.project.id;
    const [about, images] = await Promise.all([
      ask("GET", `/api/projects/${id}`),
      ask("GET", `/api/projects/${id}/images?labelled=true&count=20000`),
    ]);
    if (id !== this.project.id) return;
    this.project = about;
    this.images = images;
    this.showClasses();
    this.showLearned();
    await this.answers.refresh();
  }

  // --- classes

  showClasses() {
    const byClass = Map.groupBy ? Map.groupBy(this.images, (one) => one.label) : grouped(this.images);
    for (const name of [...this.cards.keys()]) {
      if (!this.project.classes.some((one) => one.name === name)) {
        this.cards.get(name).card.remove();
        this.cards.delete(name);
      }
    }
    for (const { name } of this.project.classes) {
      if (!this.cards.has(name)) this.cards.set(name, this.makeCard(name));
      const own = this.cards.get(name);
      const photos = byClass.get(name) ?? [];
      own.count.textContent = photos.length === 1 ? "1 example" : `${photos.length} examples`;
      own.empty.hidden = photos.length > 0 || own.waiting > 0;
      const key = photos.map((one) => one.id).join();
      if (own.key !== key) {
        own.key = key;
        own.gallery.show(photos, true);
      }
    }
  }

  makeCard(name) {
    const count = el("small");
    const list = el("ul", { className: "thumbs", "aria-label": `Examples of ${name}` });
    const empty = el("p", { className: "empty", textContent: "Drop photos here, or paste them." });
    const button = (text, label, work) => {
      const made = el("button", { type: "button", className: "plain", textContent: text, "aria-label": label });
      made.addEventListener("click", work);
      return made;
    };
    const card = el("section", { className: "class", "aria-label": `Class ${name}`, data: { name } },
      el("header", {}, el("h3", {}, name, count),
        button("Add photos", `Add photos of ${name}`, () => pick($("files"), (files) => this.teach(name, files))),
        button("Camera", `Photograph ${name}`, () => camera(`Photos of ${name}`, (file) => this.teach(name, [file]))),
        button("Rename", `Rename ${name}`, trying(() => this.renameClass(name))),
        button("Delete", `Delete the class ${name}`, trying(() => this.deleteClass(name)))),
      empty, list);
    card.addEventListener("focusin", () => { this.pasteTo = name; });
    card.addEventListener("pointerdown", () => { this.pasteTo = name; });
    target(card, trying(async (event) => {
      const image = Number(event.dataTransfer.getData("application/x-polyshot-image"));
      if (image) return this.move(image, name);
      const { loose, folders } = await dropped(event.dataTransfer);
      return this.teach(name, [...loose, ...[...folders.values()].flat()]);
    }));
    $("classes").append(card);
    const gallery = new Gallery(list, (one) => this.makeThumb(one));
    return { card, count, empty, list, gallery, waiting: 0, key: null };
  }

  makeThumb(image) {
    const name = `${image.file || "photo"}, ${image.label}`;
    const shown = el("img", { src: thumbnail(this.project.id, image.id), alt: name, loading: "lazy", decoding: "async" });
    const button = el("button", { type: "button", title: `${name}: move or delete`, draggable: true }, shown);
    button.addEventListener("click", trying(() => this.look(image)));
    carry(button, image.id);
    return el("li", { data: { image: image.id } }, button);
  }

  async teach(name, files) {
    if (!files.length) return complain("There was no photo among these files.");
    await this.addClass(name);
    const own = this.cards.get(name);
    own.waiting += files.length;
    own.empty.hidden = true;
    // Thumbnails at once, before anything is sent; of very many the first.
    const quick = files.slice(0, 60).map((file) => {
      const url = URL.createObjectURL(file);
      const item = el("li", { className: "sending" }, el("button", { type: "button", disabled: true },
        el("img", { src: url, alt: `${file.name}, being sent` })));
      own.list.append(item);
      return { url, item };
    });
    this.sending += 1;
    const id = this.project.id;
    try {
      await send(id, name, files, () => this.later());
    } finally {
      this.sending -= 1;
      own.waiting -= files.length;
      for (const { url, item } of quick) {
        item.remove();
        URL.revokeObjectURL(url);
      }
      own.key = null;
      if (id === this.project.id) await this.refresh();
      this.later();
    }
  }

  async addClass(name) {
    if (this.cards.has(name)) return;
    this.project = await ask("POST", `${this.path}/classes`, { name });
    this.showClasses();
    this.answers.draw();
  }

  async renameClass(name) {
    const wanted = await question(`Another name for ${name}`, name);
    if (!wanted || wanted === name) return;
    await ask("PATCH", `${this.path}/classes/${encodeURIComponent(name)}`, { name: wanted });
    await this.changed();
  }

  async deleteClass(name) {
    const count = this.images.filter((one) => one.label === name).length;
    if (count && !(await question(`Delete ${name} and its ${count} examples?`))) return;
    await ask("DELETE", `${this.path}/classes/${encodeURIComponent(name)}`);
    await this.changed();
  }

  async teachFolders(folders) {
    for (const [name, files] of folders) await this.teach(name || "photos", files);
  }

  async look(image) {
    const dialog = $("photo");
    $("photo-title").textContent = image.file || "Photo";
    $("photo-image").src = thumbnail(this.project.id, image.id);
    $("photo-label").replaceChildren(
      ...this.project.classes.map((one) => el("option", { textContent: one.name, selected: one.name === image.label })),
    );
    dialog.returnValue = "";
    dialog.showModal();
    await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
    if (dialog.returnValue === "move") await this.move(image.id, $("photo-label").value);
    if (dialog.returnValue === "delete") {
      await ask("DELETE", `${this.path}/images/${image.id}`);
      await this.changed();
    }
  }

  async move(image, label) {
    await ask("PATCH", `${this.path}/images/${image}`, { label });
    say(`Now an example of ${label}`);
    await this.changed();
  }

  async changed() {
    await this.refresh();
    this.later();
  }

  // --- learning

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(trying(() => this.learn()), CALM);
  }

  async learn() {
    if (this.sending) return;
    const about = await ask("GET", this.path);
    if (about.fitted?.version === about.version) return;
    if (about.classes.filter((one) => one.examples).length < 2) return;
    await ask("POST", `${this.path}/fit`);
    this.listen();
  }

  listen() {
    this.events?.close();
    const events = this.events = new EventSource(`${this.path}/fit/events`);
    $("job").hidden = false;
    $("nothing").hidden = true;
    const end = trying(async (message) => {
      events.close();
      if (this.events !== events) return;
      $("job").hidden = true;
      if (message) complain(message);
      await this.refresh();
    });
    events.onmessage = (event) => {
      const job = JSON.parse(event.data);
      const steps = { images: "Reading photos", checking: "Checking by leaving examples out" };
      const read = job.step === "images" && job.done === job.total;
      $("step").textContent = `${(read ? null : steps[job.step]) ?? "Learning"} …`;
      if (job.total > 0 && job.done < job.total) {
        $("progress").max = job.total;
        $("progress").value = job.done;
      } else $("progress").removeAttribute("value");
      if (job.state === "done") say("Learned");
      if (["done", "failed", "cancelled"].includes(job.state)) end(job.message);
    };
    events.onerror = () => { if (this.events === events) end(""); };
  }

  showLearned() {
    const fitted = this.project.fitted;
    $("nothing").hidden = Boolean(fitted) || !$("job").hidden;
    $("downloads").hidden = !fitted;
    $("get-csv").href = `${this.path}/export/labels.csv`;
    $("get-file").href = `${this.path}/export/classifier.polyshot`;
    $("get-onnx").href = `${this.path}/export/classifier.onnx`;
    const found = fitted?.estimate;
    $("estimate").hidden = !fitted;
    $("accuracy").parentElement.hidden = !found;
    $("range").parentElement.hidden = !found;
    if (found) {
      $("accuracy").textContent = percent(found.accuracy);
      $("interval").textContent = `(${percent(found.low)} to ${percent(found.high)}), from leaving out each of ${found.images} examples`;
      $("range").style.left = `${100 * found.low}%`;
      $("range").style.width = `${100 * (found.high - found.low)}%`;
      $("point").style.left = `${100 * found.accuracy}%`;
    }
    $("more").textContent = fitted?.curve?.text ?? "Give a class a second example, and its accuracy can be told.";
    this.showSuspects(fitted?.suspects ?? []);
  }

  showSuspects(suspects) {
    const left = suspects.filter((one) => !this.fine.has(`${this.project.id}/${one.image}/${one.label}`)
      && this.images.some((image) => image.id === one.image && image.label === one.label));
    $("suspects").hidden = !left.length;
    $("suspects").querySelector("summary").textContent = left.length === 1
      ? "One example looks mislabelled" : `${left.length} examples look mislabelled`;
    $("suspects").querySelector("ul").replaceChildren(...left.map((one) => {
      const move = el("button", { type: "button", textContent: `It is ${one.likely}` });
      move.addEventListener("click", trying(() => this.move(one.image, one.likely)));
      const right = el("button", { type: "button", className: "plain", textContent: "It is right" });
      right.addEventListener("click", () => {
        this.fine.add(`${this.project.id}/${one.image}/${one.label}`);
        localStorage.setItem("fine", JSON.stringify([...this.fine]));
        this.showSuspects(suspects);
      });
      return el("li", {}, el("img", { src: thumbnail(this.project.id, one.image), alt: "" }),
        el("div", {}, `${one.label}, but looks like ${one.likely} (${percent(one.probability)})`, el("br"), move, right));
    }));
  }
}

function grouped(images) {
  const made = new Map();
  for (const one of images) made.set(one.label, [...(made.get(one.label) ?? []), one]);
  return made;
}

// Asks for a text, or only whether: the text, true, or nothing.
async function question(title, text) {
  const dialog = $("question");
  $("question-title").textContent = title;
  $("question-text").hidden = text === undefined;
  $("question-text").value = text ?? "";
  dialog.returnValue = "";
  dialog.showModal();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  if (dialog.returnValue !== "yes") return undefined;
  return text === undefined ? true : $("question-text").value.trim();
}

const page = new Page();

$("add-class").addEventListener("submit", trying(async (event) => {
  event.preventDefault();
  const name = $("class-name").value.trim().replace(/\s+/g, " ");
  if (!name) return;
  await page.addClass(name);
  $("class-name").value = "";
  say(`Class ${name} added`);
}));
$("question-text").addEventListener("keydown", (event) => {
  if (event.key === "Enter") {
    event.preventDefault();
    $("question").close("yes");
  }
});
$("project").addEventListener("change", trying(async () => page.open(await ask("GET", `/api/projects/${$("project").value}`))));
$("new-project").addEventListener("click", trying(async () => {
  const name = await question("Name of the new project", "");
  if (name) await page.open(await ask("POST", "/api/projects", { name }));
}));
$("rename-project").addEventListener("click", trying(async () => {
  const name = await question("Another name for the project", page.project.name);
  if (name) await page.open(await ask("PATCH", page.path, { name }));
}));
$("delete-project").addEventListener("click", trying(async () => {
  if (!(await question(`Delete ${page.project.name} with all of its photos?`))) return;
  await ask("DELETE", page.path);
  await page.start();
}));
$("cancel").addEventListener("click", trying(() => ask("DELETE", `${page.path}/fit`)));
$("pick-folders").addEventListener("click", () => pick($("folder"), (files) => page.teachFolders(chosen(files))));
target($("folders"), trying(async (event) => {
  const { loose, folders } = await dropped(event.dataTransfer);
  if (loose.length) complain("Single photos are dropped on a class: name one first.");
  await page.teachFolders(folders);
}));
$("pick-photos").addEventListener("click", () => pick($("files"), trying((files) => page.answers.add(files))));
$("ask-camera").addEventListener("click", () => camera("New photos", trying((file) => page.answers.add([file]))));
target($("use"), trying(async (event) => {
  const { loose, folders } = await dropped(event.dataTransfer);
  await page.answers.add([...loose, ...[...folders.values()].flat()]);
}));
$("use").addEventListener("focusin", () => { page.pasteTo = null; });
$("use").addEventListener("pointerdown", () => { page.pasteTo = null; });
document.addEventListener("paste", trying(async (event) => {
  const files = [...event.clipboardData.files].filter((file) => file.type.startsWith("image/"));
  if (!files.length) return;
  event.preventDefault();
  if (page.pasteTo && page.cards.has(page.pasteTo)) await page.teach(page.pasteTo, files);
  else await page.answers.add(files);
}));
// A photo that misses its place must not replace the page.
for (const kind of ["dragover", "drop"]) document.addEventListener(kind, (event) => event.preventDefault());

trying(() => page.start())();
