// The server's API: what the page asks it.
import { isLoading, read, remove } from "./api.js";

// The model, once it is loaded; `wait` is called with words while it is not.
export async function open(wait) {
  while (await isLoading()) {
    wait("The model is loading …");
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
  return { ...(await read("model")), corrections: true };
}

const path = (where, file, more) => `${where}?${new URLSearchParams({ name: file.name.slice(-255) || "photo", ...more })}`;

export const identify = (file, info) => read(path("identify", file, { preview: true, heat_map: info.heat_maps }), file);
export const correct = (file, label) => read(path("corrections", file, { label }), file);
export const takeBack = (id) => remove(`corrections/${id}`);
