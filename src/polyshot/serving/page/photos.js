// Photos from files and folders, and their way to the service.

import { ask, complain, say } from "/page/api.js";

const AT_ONCE = 8;
const BYTES = 64 * 2 ** 20;
const PATIENCE = 3;  // requests that fail before the others are not tried any more
const isPhoto = (file) => file.type.startsWith("image/") || /\.(jpe?g|png|webp|gif|bmp|tiff?|avif)$/i.test(file.name);

// Everything that was dropped: files, and folders by their name.
export async function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const files = [...transfer.files];  // before the first await: it is empty afterwards
  if (!entries.length) return { loose: files.filter(isPhoto), folders: new Map() };
  const loose = [];
  const folders = new Map();
  for (const entry of entries) {
    if (entry.isDirectory) await sortInto(entry, folders);
    else loose.push(await new Promise((done, fail) => entry.file(done, fail)));
  }
  return { loose: loose.filter(isPhoto), folders };
}

async function sortInto(folder, folders) {
  const reader = folder.createReader();
  for (;;) {
    const some = await new Promise((done, fail) => reader.readEntries(done, fail));
    if (!some.length) return;
    for (const entry of some) {
      if (entry.isDirectory) await sortInto(entry, folders);
      else {
        const file = await new Promise((done, fail) => entry.file(done, fail));
        if (isPhoto(file)) collect(folders, folder.name, file);
      }
    }
  }
}

function collect(folders, name, file) {
  if (!folders.has(name)) folders.set(name, []);
  folders.get(name).push(file);
}

export function chosen(files) {
  const folders = new Map();
  for (const file of [...files].filter(isPhoto)) {
    collect(folders, (file.webkitRelativePath || "").split("/").at(-2) ?? "", file);
  }
  return folders;
}

export function pick(input, then) {
  input.value = "";
  input.onchange = () => then([...input.files].filter(isPhoto));
  input.click();
}

// A few photos at a time, and not too many bytes: a request has its limits.
function* batches(files) {
  let batch = [];
  let bytes = 0;
  for (const file of files) {
    if (batch.length === AT_ONCE || (batch.length && bytes + file.size > BYTES)) {
      yield batch;
      batch = [];
      bytes = 0;
    }
    batch.push(file);
    bytes += file.size;
  }
  if (batch.length) yield batch;
}

// Sends photos; `kept` hears which were kept, and how many were sent.
export async function send(project, label, files, kept) {
  const query = label === null ? "" : `?label=${encodeURIComponent(label)}`;
  const refused = [];
  let sent = 0;
  let failed = 0;  // one after the other
  for (const batch of batches(files)) {
    const form = new FormData();
    for (const file of batch) form.append("images", file, file.name);
    try {
      const found = await ask("POST", `/api/projects/${project}/images${query}`, form);
      refused.push(...found.refused.map((one) => one.detail));
      kept(found.images, batch.length);
      failed = 0;
    } catch (error) {
      refused.push(error.message);
      kept([], batch.length);
      failed += 1;
    }
    sent += batch.length;
    say(`${sent} of ${files.length} photos sent`);
    if (failed === PATIENCE && sent < files.length) {
      refused.unshift(`The last ${files.length - sent} photos were not sent.`);
      break;
    }
  }
  if (refused.length) {
    const reasons = [...new Set(refused)];
    const more = reasons.length > 3 ? ` … and ${reasons.length - 3} more.` : "";
    complain(reasons.slice(0, 3).join(" ") + more);
  }
}
