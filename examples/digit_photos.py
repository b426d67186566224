"""Write scikit-learn's handwritten digits as photos, one folder per class, to try `clew patterns`.

Usage: python examples/digit_photos.py digits
Then: clew patterns train --data digits --network tiny --epochs 15
"""

import sys
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "digits")
digits = load_digits()
for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
    (folder / str(label)).mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray((pixels * 15.9).astype("uint8")).resize((32, 32), Image.BICUBIC)
    picture.save(folder / str(label) / f"{number:04}.png")
print(f"{len(digits.images):,} photos in {folder}")
