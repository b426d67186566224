"""Problems of a set of photos: wrong labels, near duplicates, leaks, outliers, poor quality. Found
before any training, and settled by a person on a page; every change can be undone."""
