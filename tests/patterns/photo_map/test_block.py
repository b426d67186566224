"""The map as a block of a page."""

import json
import re
from typing import Any

import numpy as np

from clew.patterns.photo_map.block import (
    COLUMNS,
    SIDE,
    Coloring,
    PhotoMap,
    draw_map,
    draw_sheet,
    embed_sheet,
)


def read_data(html: str) -> dict[str, Any]:
    [text] = re.findall(r'class="map-data">(.*?)</script>', html)
    return json.loads(text)


def test_a_hostile_file_name_stays_data() -> None:
    name = "</script><script>alert(1)</script>\ud800.jpg"
    html = draw_map(
        PhotoMap(
            positions=np.array([[0.5, 1.0]], np.float32),
            names=[name],
            colorings=[Coloring(name="class", groups=("<b>",), of=[0])],
        )
    )
    html.encode()
    data = read_data(html)
    assert data["names"] == [name] and data["x"] == [2048] and data["y"] == [4095]
    assert "<b>" not in html


def test_thumbnails_of_many_photos_are_one_image() -> None:
    images = np.zeros((COLUMNS + 1, 8, 8, 3), np.uint8)
    sheet = embed_sheet(draw_sheet(images, len(images)), len(images))
    assert sheet is not None and sheet.side == SIDE and sheet.count == COLUMNS + 1
    assert embed_sheet(draw_sheet([], 0), 0) is None
