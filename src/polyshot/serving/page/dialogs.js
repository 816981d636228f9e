// Dialogs: a question, a photo, the camera.

import { $, complain, el, thumbnail } from "/page/api.js";

async function closed(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  dialog.querySelector("input:not([hidden])")?.select();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  return dialog.returnValue;
}

// Asks for a text, or only whether: the text, true, or nothing.
export async function question(title, text) {
  $("question-title").textContent = title;
  $("question-text").hidden = text === undefined;
  $("question-text").value = text ?? "";
  if (await closed($("question")) !== "yes") return undefined;
  return text === undefined ? true : $("question-text").value.trim();
}

$("question-text").addEventListener("keydown", (event) => {
  if (event.key === "Enter") {
    event.preventDefault();
    $("question").close("yes");
  }
});

// Shows a photo; what is to be done with it ("move", "delete" or ""), and the class that was chosen.
export async function look(project, image) {
  $("photo-title").textContent = image.file || "Photo";
  $("photo-image").src = thumbnail(project.id, image.id);
  $("photo-image").alt = `${image.file || "photo"}, ${image.label}`;
  $("photo-label").replaceChildren(
    ...project.classes.map((one) => el("option", { textContent: one.name, selected: one.name === image.label })),
  );
  const what = await closed($("photo"));
  return { what, label: $("photo-label").value };
}

export async function camera(title, take) {
  if (!navigator.mediaDevices) {
    complain("Browsers lend the camera only to pages on this machine (localhost) or over HTTPS.");
    return;
  }
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: 1280 } } });
  } catch {
    complain("There is no camera that the page may use: allow it in the browser.");
    return;
  }
  const video = $("video");
  $("camera-title").textContent = title;
  $("taken").textContent = "";
  $("take").disabled = true;
  video.onloadeddata = () => {
    $("take").disabled = false;
    $("take").focus();
  };
  video.srcObject = stream;
  let count = 0;
  $("take").onclick = () => {
    const canvas = el("canvas", { width: video.videoWidth, height: video.videoHeight });
    canvas.getContext("2d").drawImage(video, 0, 0);
    canvas.toBlob((blob) => {
      count += 1;
      $("taken").textContent = count === 1 ? "1 photo taken" : `${count} photos taken`;
      take(new File([blob], `camera-${Date.now()}.jpg`, { type: "image/jpeg" }));
    }, "image/jpeg", 0.92);
  };
  $("camera-close").onclick = () => $("camera").close();
  await closed($("camera"));
  video.srcObject = null;
  stream.getTracks().forEach((track) => track.stop());
}
