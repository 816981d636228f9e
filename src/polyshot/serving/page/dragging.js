// Photos are dragged from where they are to the class that they show.

const KIND = "application/x-polyshot-image";

export function carry(node, image) {
  node.addEventListener("dragstart", (event) => {
    event.dataTransfer.setData(KIND, String(image));
    event.dataTransfer.effectAllowed = "move";
  });
}

// The photo of the page that was dropped; 0 where it was something else.
export function carried(event) {
  return Number(event.dataTransfer.getData(KIND));
}

export function target(node, take) {
  node.addEventListener("dragover", (event) => {
    event.preventDefault();
    node.classList.add("over");
  });
  node.addEventListener("dragleave", (event) => {
    if (!node.contains(event.relatedTarget)) node.classList.remove("over");
  });
  node.addEventListener("drop", (event) => {
    event.preventDefault();
    event.stopPropagation();
    node.classList.remove("over");
    take(event);
  });
}
