// A classifier that `polyshot export` wrote, in a browser: bytes of an ONNX file and pictures in,
// labels out. Needs onnxruntime-web (npm install) and nothing else.

import * as ort from "./node_modules/onnxruntime-web/dist/ort.wasm.min.mjs";

ort.env.wasm.wasmPaths = new URL("./node_modules/onnxruntime-web/dist/", import.meta.url).href;
ort.env.wasm.numThreads = 1; // more need a page that is isolated from other origins

/** Load a classifier from the bytes of its file (an ArrayBuffer). */
export async function load(bytes) {
  const about = metadata(new Uint8Array(bytes));
  if (!about.classes) throw new Error("This is no classifier that polyshot export wrote.");
  const session = await ort.InferenceSession.create(bytes);
  return {
    classes: JSON.parse(about.classes),
    none: about.none ?? "none of these",
    sides: JSON.parse(about.resize).sides, // by the names of the inputs
    session,
  };
}

/** Classify one picture (a File or Blob): its label, its probability, and all of them. */
export async function classify(classifier, picture) {
  const pixels = await decode(picture);
  const feeds = {};
  for (const [name, side] of Object.entries(classifier.sides)) {
    feeds[name] = new ort.Tensor("uint8", fit(pixels, side), [1, side, side, 3]);
  }
  const found = await classifier.session.run(feeds);
  const probabilities = Array.from(found.probabilities.data);
  const best = probabilities.indexOf(Math.max(...probabilities));
  const isNone = Boolean(found.none?.data[0]);
  return {
    label: isNone ? classifier.none : classifier.classes[best],
    probability: isNone ? null : probabilities[best],
    probabilities,
  };
}

/** Decode a picture upright, on white where it is transparent: {data: RGBA, width, height}. */
export async function decode(picture) {
  const options = { imageOrientation: "from-image", colorSpaceConversion: "none" };
  const bitmap = await createImageBitmap(picture, options);
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white";
  context.fillRect(0, 0, bitmap.width, bitmap.height);
  context.drawImage(bitmap, 0, 0);
  return context.getImageData(0, 0, bitmap.width, bitmap.height);
}

/** Crop to the largest square in the middle and bring it to side x side: RGB, row by row.
 *
 * As Pillow's ImageOps.fit with its bicubic filter, which is wider the more an image shrinks; what
 * a canvas does by itself differs from browser to browser.
 */
export function fit({ data, width, height }, side) {
  const square = Math.min(width, height);
  const across = weights(width, (width - square) / 2, square, side);
  const down = weights(height, (height - square) / 2, square, side);
  const rows = new Uint8ClampedArray(height * side * 3); // clamped: rounds, and stays in 0 to 255
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < side; x++) {
      const { first, values } = across[x];
      for (let c = 0; c < 3; c++) {
        let sum = 0;
        for (let k = 0; k < values.length; k++) sum += values[k] * data[4 * (y * width + first + k) + c];
        rows[3 * (y * side + x) + c] = sum;
      }
    }
  }
  const made = new Uint8ClampedArray(side * side * 3);
  for (let y = 0; y < side; y++) {
    const { first, values } = down[y];
    for (let i = 0; i < 3 * side; i++) {
      let sum = 0;
      for (let k = 0; k < values.length; k++) sum += values[k] * rows[3 * side * (first + k) + i];
      made[3 * side * y + i] = sum;
    }
  }
  return new Uint8Array(made.buffer);
}

/** For each pixel of one axis: the first pixel that it is made of, and how much each counts. */
function weights(size, start, length, side) {
  const scale = length / side;
  const wide = Math.max(1, scale);
  return Array.from({ length: side }, (_, i) => {
    const centre = start + (i + 0.5) * scale;
    const first = Math.max(0, Math.floor(centre - 2 * wide + 0.5));
    const last = Math.min(size, Math.floor(centre + 2 * wide + 0.5));
    const values = [];
    for (let x = first; x < last; x++) values.push(bicubic((x - centre + 0.5) / wide));
    const total = values.reduce((a, b) => a + b);
    return { first, values: values.map((value) => value / total) };
  });
}

function bicubic(x) {
  const a = -0.5;
  x = Math.abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

/** Read the metadata of an ONNX file, which onnxruntime-web does not show: field 14 of the model. */
export function metadata(bytes) {
  const found = {};
  for (const [field, part] of fields(bytes)) {
    if (field !== 14) continue;
    const entry = Object.fromEntries(fields(part));
    found[text(entry[1])] = text(entry[2]);
  }
  return found;
}

const text = (bytes) => new TextDecoder().decode(bytes ?? new Uint8Array());

/** List the fields of a protocol buffer that have bytes: pairs of number and content. */
function* fields(bytes) {
  let at = 0;
  const varint = () => {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      if (at >= bytes.length) throw new Error("This is no ONNX file.");
      const byte = bytes[at++];
      value += (byte & 127) * factor;
      if (byte < 128) return value;
    }
  };
  while (at < bytes.length) {
    const key = varint();
    const kind = key % 8;
    if (kind === 0) varint();
    else if (kind === 1) at += 8;
    else if (kind === 5) at += 4;
    else if (kind === 2) {
      const length = varint();
      yield [Math.floor(key / 8), bytes.subarray(at, at + length)];
      at += length;
    } else throw new Error("This is no ONNX file.");
  }
}
