#!/usr/bin/env python3
"""Draws the processes of a run at four places and the connections between them, as an SVG for docs/how-it-works.md.

    scripts/draw_topology.py > docs/pictures/topology.svg
"""
import sys

sys.dont_write_bytecode = True
from svg_picture import Picture  # noqa: E402

WIDTH, HEIGHT, BOX_WIDTH, BOX_HEIGHT = 960, 520, 250, 112
# name: (x, y of its box, title, members, note)
PLACES = {
    "eu": (24, 132, "site eu", ("replica eu-1", "replica eu-2"), ""),
    "home": (686, 132, "a third place", ("reducer",), "owns chunks, trains nothing"),
    "ap": (24, 376, "site ap", ("replica ap-1",), "behind NAT: only dials out"),
    "us": (686, 376, "site us", ("replica us-1",), "behind NAT: only dials out"),
}
MESH = [("eu", "home"), ("eu", "ap"), ("eu", "us"), ("home", "ap"), ("home", "us")]
COORDINATOR = (350, 16, 260, 62)


def ends(one, other):
    """Points at the facing edges of two boxes."""
    points = []
    for here, there in ((one, other), (other, one)):
        (x, y, *_), (to_x, to_y, *_) = PLACES[here], PLACES[there]
        side_by_side = to_x != x
        edge_x = x + (BOX_WIDTH if to_x > x else 0) if side_by_side else x + BOX_WIDTH / 2
        edge_y = y + BOX_HEIGHT / 2 + (20 if to_y > y else -20 if to_y < y else 0) if side_by_side else y + (BOX_HEIGHT if to_y > y else 0)
        points.append((edge_x, edge_y))
    return points


def main():
    picture = Picture(
        WIDTH, HEIGHT, "The processes of a run",
        "A coordinator has a control connection to every member. Site eu has the replicas eu-1 and eu-2, a third place has a "
        "reducer; both can be dialled. Sites ap and us, with one replica each, are behind NAT and only dial out. Paths of "
        "the mesh connect every pair of places except ap and us, which cannot reach each other: the reducer relays their chunks.")
    x, y, width, height = COORDINATOR
    for name, (to_x, to_y, *_) in PLACES.items():
        begin = (x + (20 if to_x < x else width - 20), y + height)
        end = (to_x + (BOX_WIDTH - 40 if to_x < x else 40), to_y) if name in ("eu", "home") else \
            (to_x + (BOX_WIDTH if to_x < x else 0), to_y + 8)
        picture.line([begin, end], "line", dashed=True)
    for one, other in MESH:
        picture.line(ends(one, other), "second", width=2.5)
    (_, home_y), (ap_x, ap_y) = ends("home", "ap")
    home_x = PLACES["home"][0]
    us_x = home_x + BOX_WIDTH / 2
    picture.line([(ap_x, ap_y + 16), (home_x, home_y + 16)], "first", "both", 2, dashed=True)
    picture.line([(us_x + 18, PLACES["home"][1] + BOX_HEIGHT), (us_x + 18, PLACES["us"][1])], "first", "both", 2, dashed=True)
    for place_x, place_y, title, members, note in PLACES.values():
        picture.box(place_x, place_y, BOX_WIDTH, BOX_HEIGHT, "box", "line", dashed="NAT" in note)
        picture.text(place_x + 14, place_y + 24, title, bold=True)
        for index, member in enumerate(members):
            picture.box(place_x + 14 + index * 114, place_y + 38, 108, 28, "compute")
            picture.text(place_x + 68 + index * 114, place_y + 57, member, anchor="middle")
        picture.text(place_x + 14, place_y + 92, note, "faint")
    picture.box(x, y, width, height, "box", "line")
    picture.text(x + width / 2, y + 26, "coordinator", anchor="middle", bold=True)
    picture.text(x + width / 2, y + 46, "forms views, carries no parameters", "faint", "middle")
    for index, (colour, dashed, text) in enumerate([
            ("second", False, "mesh: contributions and results"), ("first", True, "ap and us, relayed by the reducer"),
            ("line", True, "control: views, heartbeats, records")]):
        row = 446 + 22 * index
        picture.line([(300, row - 4), (340, row - 4)], colour, width=2, dashed=dashed)
        picture.text(350, row, text)
    print(picture)


if __name__ == "__main__":
    main()
