"""Classify photos with an exported model, without clew: pip install onnxruntime pillow.

clew patterns export --model trained --out model.onnx
python classify_onnx.py model.onnx photo.jpg
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession(sys.argv[1])
about = session.get_modelmeta().custom_metadata_map
classes, size = json.loads(about["classes"]), int(about["image_size"])
for name in sys.argv[2:]:
    photo = ImageOps.exif_transpose(Image.open(name)).convert("RGB")
    pixels = np.asarray(photo.resize((size, size), Image.Resampling.LANCZOS))
    [probabilities] = session.run(["probabilities"], {"image": pixels[None]})[0]
    best = probabilities.argmax()
    print(f"{name}: {classes[best]} ({probabilities[best]:.1%})")
