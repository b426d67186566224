"""A trained classifier behind an API and a page: photos in, classes out, corrections to review."""
