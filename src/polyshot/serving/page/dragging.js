// Photos are dragged from where they are to the class that they show.

export function carry(node, image) {
  node.addEventListener("dragstart", (event) => {
    event.dataTransfer.setData("application/x-polyshot-image", String(image));
    event.dataTransfer.effectAllowed = "move";
  });
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
