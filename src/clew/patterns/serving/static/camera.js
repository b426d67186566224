// The camera: a picture of what it sees, and a photo of it as a file.
import { at, forgive } from "./api.js";

let stream = null;

export function startCamera(take, refuse) {
  at("open-camera").addEventListener("click", () => open(refuse));
  at("close-camera").addEventListener("click", close);
  at("shoot").addEventListener("click", () => shoot(take));
}

async function open(refuse) {
  forgive();
  if (!navigator.mediaDevices) return refuse("This browser gives no camera to this page: it requires https, or an address of this machine.");
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: { ideal: 1280 } } });
  } catch (error) {
    return refuse(error.name === "NotAllowedError" ? "The browser does not allow the camera: allow it in the address bar." : "No camera was found.");
  }
  at("video").srcObject = stream;
  at("camera").hidden = false;
  at("drop").hidden = true;
  at("shoot").focus();
  return true;
}

function close() {
  for (const track of stream?.getTracks() ?? []) track.stop();
  stream = null;
  at("video").srcObject = null;
  at("camera").hidden = true;
  at("drop").hidden = false;
  at("open-camera").focus();
}

function shoot(take) {
  const video = at("video"), canvas = document.createElement("canvas");
  if (!video.videoWidth) return; // its first picture has not come yet
  [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
  canvas.getContext("2d").drawImage(video, 0, 0);
  const name = `camera-${new Date().toISOString().slice(0, 19).replace(/[T:]/g, "-")}.jpg`;
  canvas.toBlob((blob) => take(new File([blob], name, { type: "image/jpeg" })), "image/jpeg", 0.92);
}
