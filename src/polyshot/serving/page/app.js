// The page's state and its parts: projects, classes, learning, answers.

import { $, ask, complain, el, enter, save, say, trying } from "/page/api.js";
import { Answers } from "/page/answers.js";
import { Classes } from "/page/classes.js";
import { camera, question } from "/page/dialogs.js";
import { carried, target } from "/page/dragging.js";
import { Learning } from "/page/learning.js";
import { chosen, dropped, pick } from "/page/photos.js";

class Page {
  constructor() {
    this.project = null;
    this.images = [];  // the examples
    this.classes = new Classes(this);
    this.learning = new Learning(this);
    this.answers = new Answers(this);
  }

  get path() {
    return `/api/projects/${this.project.id}`;
  }

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
    this.learning.clear();
    this.classes.clear();
    this.answers.clear();
    $("main").hidden = false;
    await this.refresh();
    if (this.project.id === project.id) this.learning.open();
  }

  // Asks for all that is shown; who began before another waits for that one, which knows more.
  refresh() {
    this.refreshing = this.askAll();
    return this.refreshing;
  }

  async askAll() {
    const { id } = this.project;
    const turn = this.turn = {};
    const [about, images] = await Promise.all([
      ask("GET", `/api/projects/${id}`),
      ask("GET", `/api/projects/${id}/images?labelled=true&count=20000`),
    ]);
    if (turn !== this.turn) {
      await this.refreshing;
      return;
    }
    this.project = about;
    this.images = images;
    this.classes.show();
    this.learning.show();
    await this.answers.refresh();
  }

  // Examples have changed: shows them, and learns soon.
  async changed() {
    this.learning.later();
    await this.refresh();
  }

  // Notes examples that were sent, before all is asked again.
  keep(images) {
    const known = new Set(this.images.map((one) => one.id));
    this.images.push(...images.filter((one) => !known.has(one.id)));
  }

  async move(image, label) {
    await ask("PATCH", `${this.path}/images/${image}`, { label });
    say(label === null ? "No example any more" : `Now an example of ${label}`);
    this.answers.forget(image);
    await this.changed();
  }

  async remove(image) {
    await ask("DELETE", `${this.path}/images/${image}`);
    say("Photo deleted");
    this.answers.forget(image);
    await this.changed();
  }
}

const page = new Page();
const { answers, classes } = page;

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
$("pick-folders").addEventListener("click", () => pick($("folder"), trying((files) => classes.teachFolders(chosen(files)))));
target($("folders"), trying(async (event) => {
  const { loose, folders } = await dropped(event.dataTransfer);
  if (loose.length) complain("Single photos are dropped on a class: name one first.");
  else await classes.teachFolders(folders);
}));
$("pick-photos").addEventListener("click", () => pick($("files"), trying((files) => answers.add(files))));
$("ask-camera").addEventListener("click", trying(() => camera("New photos", trying((file) => answers.add([file])))));
target($("use"), trying(async (event) => {
  const image = carried(event);
  if (image) {  // an example that is none any more
    if (page.images.some((one) => one.id === image)) await page.move(image, null);
    return;
  }
  const { loose, folders } = await dropped(event.dataTransfer);
  await answers.add([...loose, ...[...folders.values()].flat()]);
}));
for (const kind of ["focusin", "pointerdown"]) $("use").addEventListener(kind, () => { classes.pasteTo = null; });
document.addEventListener("paste", trying(async (event) => {
  const files = [...event.clipboardData.files].filter((file) => file.type.startsWith("image/"));
  if (!files.length || !page.project) return;
  event.preventDefault();
  if (classes.cards.has(classes.pasteTo)) await classes.teach(classes.pasteTo, files);
  else await answers.add(files);
}));
for (const link of $("downloads").querySelectorAll("a")) {
  link.addEventListener("click", trying(async (event) => {
    event.preventDefault();
    say("Preparing the download");
    await save(link.href);
  }));
}
// A photo that misses its place must not replace the page.
for (const kind of ["dragover", "drop"]) document.addEventListener(kind, (event) => event.preventDefault());

trying(() => page.start())();
