"""What a served classifier counts besides requests. Nothing of a photo is in it."""

from clew.pages.api.metrics import Counter, Histogram, RequestMetrics
from clew.patterns.identification.recognize import Recognition

_PATHS = ("/", "/identify", "/corrections", "/model", "/healthz", "/readyz", "/metrics")
_SHARES = tuple(place / 10 for place in range(1, 11))


class PhotoMetrics(RequestMetrics):
    """Everything that is counted."""

    def __init__(self) -> None:
        super().__init__(_PATHS)
        self.photos = Counter("clew_photos_total", "Identified photos by class and state.")
        self.corrections = Counter("clew_corrections_total", "Corrections that were kept.")
        self.confidence = Histogram(
            "clew_confidence", "Probability of the most likely class.", _SHARES
        )

    def count_photo(self, found: Recognition) -> None:
        label, confidence = found.best[0]
        doubt = "doubtful" if found.is_doubtful else "confident"
        self.photos.add(label=label, state="unknown" if found.is_unknown else doubt)
        self.confidence.observe(confidence)
