// What was learned: progress while it learns, the expected accuracy, examples that look mislabelled.

import { $, ask, complain, el, percent, say, thumbnail, trying } from "/page/api.js";

const CALM = 700;  // milliseconds without a change after which learning starts by itself
const STEPS = { images: "Reading photos", checking: "Checking by leaving examples out" };
const ENDED = ["done", "failed", "cancelled"];

export class Learning {
  constructor(page) {
    this.page = page;
    this.events = null;
    this.fine = new Set(JSON.parse(localStorage.getItem("fine") ?? "[]"));  // suspects that are right
    $("cancel").addEventListener("click", trying(() => ask("DELETE", `${page.path}/fit`)));
  }

  // A project was opened: follows the fit that runs, or starts the one that is due.
  open() {
    const { project } = this.page;
    if (project.job && !ENDED.includes(project.job.state)) this.listen();
    else if (project.fitted?.version !== project.version) this.later();
  }

  clear() {
    clearTimeout(this.timer);
    this.events?.close();
    $("job").hidden = true;
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(trying(() => this.learn()), CALM);
  }

  async learn() {
    if (this.page.classes.sending) return;
    const { path } = this.page;
    const about = await ask("GET", path);
    if (path !== this.page.path || about.fitted?.version === about.version) return;
    if (about.classes.filter((one) => one.examples).length < 2) return;
    await ask("POST", `${path}/fit`);
    if (path === this.page.path) this.listen();
  }

  listen() {
    this.events?.close();
    const events = this.events = new EventSource(`${this.page.path}/fit/events`);
    $("job").hidden = false;
    $("nothing").hidden = true;
    $("step").textContent = "Learning …";
    $("progress").removeAttribute("value");
    const end = trying(async (job) => {
      events.close();
      if (this.events !== events) return;
      $("job").hidden = true;
      if (job?.message) complain(job.message);
      await this.page.refresh();
      const found = this.page.project.fitted?.estimate;
      if (job?.state === "done") say(found ? `Learned. Expected accuracy ${percent(found.accuracy)}` : "Learned");
      if (job?.state === "cancelled") say("Learning was cancelled");
    });
    events.onmessage = (event) => {
      const job = JSON.parse(event.data);
      const read = job.step === "images" && job.done === job.total;
      $("step").textContent = `${(read ? null : STEPS[job.step]) ?? "Learning"} …`;
      if (job.total > 0 && job.done < job.total) {
        $("progress").max = job.total;
        $("progress").value = job.done;
      } else $("progress").removeAttribute("value");
      if (ENDED.includes(job.state)) end(job);
    };
    events.onerror = () => { if (this.events === events) end(null); };
  }

  show() {
    const { fitted } = this.page.project;
    const { path } = this.page;
    $("nothing").hidden = Boolean(fitted) || !$("job").hidden;
    $("downloads").hidden = !fitted;
    $("get-csv").href = `${path}/export/labels.csv`;
    $("get-file").href = `${path}/export/classifier.polyshot`;
    $("get-onnx").href = `${path}/export/classifier.onnx`;
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
    const { project, images } = this.page;
    const now = new Map(images.map((image) => [image.id, image.label]));
    const key = (one) => `${project.id}/${one.image}/${one.label}`;
    const left = suspects.filter((one) => !this.fine.has(key(one)) && now.get(one.image) === one.label);
    $("suspects").hidden = !left.length;
    $("suspects").querySelector("summary").textContent = left.length === 1
      ? "One example looks mislabelled" : `${left.length} examples look mislabelled`;
    $("suspects").querySelector("ul").replaceChildren(...left.map((one) => {
      const move = el("button", { type: "button", textContent: `It is ${one.likely}` });
      move.addEventListener("click", trying(() => this.page.move(one.image, one.likely)));
      const right = el("button", { type: "button", className: "plain", textContent: "It is right", "aria-label": `It is right, ${one.label}` });
      right.addEventListener("click", () => {
        this.fine.add(key(one));
        localStorage.setItem("fine", JSON.stringify([...this.fine]));
        this.showSuspects(suspects);
      });
      return el("li", {}, el("img", { src: thumbnail(project.id, one.image), alt: `An example of ${one.label}` }),
        el("div", {}, `${one.label}, but looks like ${one.likely} (${percent(one.probability)})`, el("br"), move, right));
    }));
  }
}
