"""Train an image classifier on folders of photos and identify new ones.

Usage: python examples/photo_classifier.py my_photos new_photos trained
Make photos to try it on with: python examples/digit_photos.py my_photos
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
