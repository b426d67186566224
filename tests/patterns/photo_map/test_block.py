"""The map as a block of a page."""

import json
import re
from typing import Any

import numpy as np

from clew.patterns.photo_map.block import COLUMNS, SIDE, Coloring, draw_map, draw_sheet


def read_data(html: str) -> dict[str, Any]:
    [text] = re.findall(r'class="map-data">(.*?)</script>', html)
    return json.loads(text)


def test_a_hostile_file_name_stays_data() -> None:
    name = "</script><script>alert(1)</script>\ud800.jpg"
    coloring = Coloring(name="class", groups=("<b>",), of=[0])
    html = draw_map(np.array([[0.5, 1.0]], np.float32), [name], [coloring])
    html.encode()
    data = read_data(html)
    assert data["names"] == [name] and data["x"] == [2048] and data["y"] == [4095]
    assert "<b>" not in html and data["thumbnails"] is None


def test_thumbnails_of_many_photos_are_one_image() -> None:
    images = np.zeros((COLUMNS + 1, 8, 8, 3), np.uint8)
    sheet, names = draw_sheet(images, len(images)), [f"{one}.png" for one in range(len(images))]
    thumbnails = read_data(draw_map(np.zeros((len(names), 2), np.float32), names, [], sheet=sheet))
    assert thumbnails["thumbnails"]["side"] == SIDE
    assert thumbnails["thumbnails"]["count"] == COLUMNS + 1
    assert draw_sheet([], 0) == b""
