// A list that draws its items when they come near: ten thousand thumbnails stay smooth.

import { el } from "/page/api.js";

const STEP = 24;

export class Gallery {
  // `draw` makes the node of an item; `keyOf` tells it from others: a node whose key is there again stays.
  constructor(list, draw, keyOf) {
    Object.assign(this, { list, draw, keyOf, items: [], drawn: 0, nodes: new Map() });
    this.end = el("li", { className: "end", hidden: true, "aria-hidden": "true" });
    list.append(this.end);
    this.watcher = new IntersectionObserver((seen) => {
      if (seen.some((one) => one.isIntersecting)) this.grow(STEP);
    }, { rootMargin: "600px" });
  }

  show(items) {
    this.items = items;
    this.place(Math.max(STEP, this.drawn));
  }

  grow(count) {
    this.place(this.drawn + count);
  }

  place(count) {
    const shown = this.items.slice(0, count);
    const nodes = new Map(shown.map((item) => {
      const key = this.keyOf(item);
      return [key, this.nodes.get(key) ?? this.draw(item)];
    }));
    for (const [key, node] of this.nodes) if (!nodes.has(key)) node.remove();
    let next = this.list.firstChild;
    for (const node of nodes.values()) {
      if (node === next) next = next.nextSibling;
      else this.list.insertBefore(node, next);
    }
    if (next !== this.end) this.list.insertBefore(this.end, next);
    this.nodes = nodes;
    this.drawn = shown.length;
    this.end.hidden = this.drawn === this.items.length;
    this.watcher.unobserve(this.end);
    if (!this.end.hidden) this.watcher.observe(this.end);
  }
}
