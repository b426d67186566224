"""Train an image classifier on folders of photos and identify new ones.

Usage: python examples/photo_classifier.py my_photos new_photos trained
To try it without photos of your own:
    python examples/digit_photos.py my_photos
    mkdir new_photos && cp my_photos/*/00*.png new_photos
"""

import sys

from clew import patterns

data, photos, out = sys.argv[1:] or ("my_photos", "new_photos", "trained")
result = patterns.train(data, out=out, network="tiny", epochs=5)
print(result)

classifier = patterns.load_classifier(out)
print(len(classifier.classes), "classes:", ", ".join(classifier.classes))

for photo in patterns.identify(photos, model=out):
    print(photo.name, photo.label, f"{photo.confidence:.0%}")
