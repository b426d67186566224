// The model runs in this browser: no photo leaves it.
import * as ort from "./ort.wasm.bundle.min.mjs";
import { Refused } from "./api.js";

const MOST_SIDE = 1600; // of the photo before it is squeezed: larger ones take long, and gain nothing
const LOBES = 3;
let session = null;

export async function open(wait) {
  wait("The model is loading …");
  const info = await (await load("model.json")).json();
  ort.env.wasm.numThreads = 1; // more require headers that a plain web server does not send
  ort.env.wasm.wasmPaths = { wasm: new URL("./ort-wasm-simd-threaded.wasm", import.meta.url).href };
  session = await ort.InferenceSession.create(await (await load(info.file)).arrayBuffer());
  return { ...info, heat_maps: false, corrections: false, max_bytes: 100e6 };
}

async function load(path) {
  const reply = await fetch(path).catch(() => null);
  if (!reply?.ok) throw new Refused(`${path} cannot be loaded: serve this folder with a web server, such as python -m http.server.`);
  return reply;
}

export async function identify(file, info) {
  const photo = await draw(file);
  const size = info.image_size;
  const pixels = new ort.Tensor("uint8", squeeze(photo, size), [1, size, size, 3]);
  const results = await session.run({ [info.input]: pixels });
  const chances = Array.from(results[info.output].data);
  const best = chances.map((probability, place) => ({ class: info.classes[place], probability }));
  best.sort((a, b) => b.probability - a.probability);
  const { class: label, probability: confidence } = best[0];
  const unknown = info.typicality in results && results[info.typicality].data[0] < info.unknown;
  return { label, confidence, unknown, doubtful: unknown || confidence < info.threshold, best: best.slice(0, info.top_k), preview: photo.toDataURL("image/jpeg", 0.85) };
}

// Upright, over white, as when the model was trained.
async function draw(file) {
  const image = await createImageBitmap(file).catch(() => { throw new Refused("This browser cannot read the photo: it is damaged, or of a kind that the browser does not know."); });
  const scale = Math.min(1, MOST_SIDE / Math.max(image.width, image.height));
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width, image.height].map((side) => Math.max(1, Math.round(side * scale)));
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.fillStyle = "white";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  image.close();
  return canvas;
}

// The whole photo as a square of RGB bytes, filtered by Lanczos as Pillow does it: the browser's own
// filter is another one, and the model would see another photo.
function squeeze(canvas, size) {
  const { width, height } = canvas;
  const given = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  const wide = new Float32Array(height * size * 3), columns = weigh(width, size);
  for (let y = 0; y < height; y++) {
    columns.forEach(([first, weights], x) => {
      for (let color = 0; color < 3; color++) {
        let sum = 0;
        for (let place = 0; place < weights.length; place++) sum += weights[place] * given[4 * (y * width + first + place) + color];
        wide[3 * (y * size + x) + color] = Math.min(255, Math.max(0, Math.round(sum)));
      }
    });
  }
  const pixels = new Uint8Array(size * size * 3), row = 3 * size;
  weigh(height, size).forEach(([first, weights], y) => {
    for (let place = 0; place < row; place++) {
      let sum = 0;
      for (let line = 0; line < weights.length; line++) sum += weights[line] * wide[(first + line) * row + place];
      pixels[y * row + place] = Math.min(255, Math.max(0, Math.round(sum)));
    }
  });
  return pixels;
}

// For each of `size` positions: the first of `length` values that it is made of, and their weights.
function weigh(length, size) {
  const scale = length / size, wide = Math.max(1, scale), reach = LOBES * wide;
  return Array.from({ length: size }, (_, position) => {
    const center = (position + 0.5) * scale;
    const first = Math.max(0, Math.floor(center - reach + 0.5)), end = Math.min(length, Math.floor(center + reach + 0.5));
    const weights = Array.from({ length: end - first }, (_, place) => lanczos((first + place - center + 0.5) / wide));
    const sum = weights.reduce((total, weight) => total + weight, 0);
    return [first, weights.map((weight) => weight / sum)];
  });
}

const sinc = (value) => (value === 0 ? 1 : Math.sin(Math.PI * value) / (Math.PI * value));
const lanczos = (value) => (Math.abs(value) < LOBES ? sinc(value) * sinc(value / LOBES) : 0);
