#!/usr/bin/env python3
"""Fetches what the dashboard takes from npm and writes it beside this file.

    dashboard/vendor/update.py

Needs npm and the registry; nothing else of Penstock does. Each package has an exact version and the digest that the
registry gave for it when it was chosen. Three things are changed on the way, each of them here: lines that name source
maps go, preact's hooks import preact by a path (there is no bundler to find it by name), and the coastline becomes an
SVG path of tenths of a degree.
"""

import base64
import hashlib
import io
import json
import pathlib
import subprocess
import tarfile
import tempfile

HERE = pathlib.Path(__file__).resolve().parent

PACKAGES = {
    "preact@11.2.0": "/HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg==",
    "htm@3.1.1": "983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==",
    "uplot@1.6.32": "KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
    "world-atlas@2.0.2": "IXfV0qwlKXpckz1FhwXVwKRjiIhOnWttOskm5CtxMsjgE/MXAYRHWJqgXOpM8IkcPBoXnyTU5lFHcYa5ChG0LQ==",
}


def fetch(package, digest):
    """The files of a package, by their path, after its digest was compared."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        (packed,) = pathlib.Path(folder).iterdir()
        packed = packed.read_bytes()
    found = base64.b64encode(hashlib.sha512(packed).digest()).decode()
    if found != digest:
        raise SystemExit(f"{package} has the digest {found} and not the one that is known: look at what has changed")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        return {one.name: archive.extractfile(one).read().decode("utf-8", "replace") for one in archive if one.isfile()}


def script(text):
    kept = [line for line in text.splitlines() if not line.startswith("//# sourceMappingURL")]
    return "\n".join(kept).strip() + "\n"


def unwrapped(ring):
    """A ring without its last point, going on past 180 degrees where it crosses them; one around a pole ends there."""
    (turn, before), points = (0, ring[0][0]), []
    for x, y in ring:
        if abs(x - before) > 1800:
            turn += 3600 if x < before else -3600
        before = x
        points.append((x + turn, y))
    if turn == 0:
        return points[:-1]
    pole = 900 if points[0][1] > 0 else -900
    return [*points, (points[-1][0], pole), (points[0][0], pole)]


def coastline(topology):
    """Land as one SVG path: longitude and negative latitude in tenths of a degree, relative after each move."""
    topology = json.loads(topology)
    (scale_x, scale_y), (shift_x, shift_y) = topology["transform"]["scale"], topology["transform"]["translate"]
    arcs = []
    for arc in topology["arcs"]:
        x = y = 0
        points = []
        for step_x, step_y in arc:
            x, y = x + step_x, y + step_y
            points.append((round(10 * (x * scale_x + shift_x)), round(-10 * (y * scale_y + shift_y))))
        arcs.append(points)
    path = []
    (land,) = topology["objects"].values()
    for shape in land["geometries"]:
        polygons = [shape["arcs"]] if shape["type"] == "Polygon" else shape["arcs"]
        for ring in (ring for polygon in polygons for ring in polygon):
            points = []
            for number in ring:
                arc = arcs[number] if number >= 0 else arcs[~number][::-1]
                points.extend(arc[1:] if points else arc)
            points = unwrapped([one for at, one in enumerate(points) if at == 0 or one != points[at - 1]])
            if len(points) < 4:
                continue
            (x, y), rest = points[0], points[1:]
            steps = []
            for next_x, next_y in rest:
                steps.append(f"{next_x - x} {next_y - y}")
                x, y = next_x, next_y
            path.append(f"M{points[0][0]} {points[0][1]}l{' '.join(steps)}z".replace(" -", "-"))
    return "".join(path)


def main():
    preact, htm, uplot, atlas = (fetch(*package) for package in PACKAGES.items())
    hooks = script(preact["package/hooks/dist/hooks.mjs"])
    if hooks.count('from"preact"') != 1:
        raise SystemExit("preact's hooks import preact in another way than they did: mend the line below")
    files = {
        "preact.js": script(preact["package/dist/preact.mjs"]),
        "hooks.js": hooks.replace('from"preact"', 'from"./preact.js"'),
        "htm.js": script(htm["package/dist/htm.module.js"]),
        "uplot.js": script(uplot["package/dist/uPlot.esm.js"]),
        "uplot.css": uplot["package/dist/uPlot.min.css"].strip() + "\n",
        "coastline.js": "// Natural Earth 1:110m land, public domain, by way of world-atlas: see README.md.\n"
        + f'export const coastline =\n  "{coastline(atlas["package/land-110m.json"])}";\n',
        "LICENSES.txt": "\n\n".join(
            f"{name}\n{'-' * len(name)}\n\n{files['package/LICENSE'].strip()}"
            for name, files in zip(PACKAGES, (preact, htm, uplot, atlas))
        )
        + "\n",
    }
    sums = []
    for name, text in sorted(files.items()):
        (HERE / name).write_text(text)
        sums.append(f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n")
    (HERE / "SHA256SUMS").write_text("".join(sums))


if __name__ == "__main__":
    main()
