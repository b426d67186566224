"""Building blocks of every report and web page: HTML, SVG, and the guarded local server."""
