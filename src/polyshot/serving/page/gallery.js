// A list that draws its items when they come near: ten thousand thumbnails stay smooth.

import { el } from "/page/api.js";

const STEP = 24;

export class Gallery {
  constructor(list, draw) {
    this.list = list;
    this.draw = draw;
    this.items = [];
    this.drawn = 0;
    this.end = el("li", { role: "presentation" });
    this.end.style.minHeight = "1px";
    this.watcher = new IntersectionObserver((seen) => {
      if (seen.some((one) => one.isIntersecting)) this.more();
    }, { rootMargin: "600px" });
  }

  show(items, keep = false) {
    const wanted = keep ? Math.max(STEP, this.drawn) : STEP;
    this.items = items;
    this.drawn = 0;
    this.list.replaceChildren(this.end);
    this.more(wanted);
  }

  more(count = STEP) {
    const next = this.items.slice(this.drawn, this.drawn + count);
    this.end.before(...next.map((item) => this.draw(item)));
    this.drawn += next.length;
    this.watcher.unobserve(this.end);
    if (this.drawn < this.items.length) this.watcher.observe(this.end);
    else this.end.remove();
  }
}
