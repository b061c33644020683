#!/usr/bin/env python3
"""Makes the golden values that the image tests compare with, from Pillow.

    python3 tools/image_goldens.py          # needs pillow >= 13.0 and numpy

Writes src/image/testdata/* (small encoded pictures) and src/image/pillow_goldens.h: what Pillow
decodes from them and what it resizes the tests' own pattern to. Rerun only when a case is added;
a new version of Pillow's encoders changes the files.
"""

import math
import pathlib
import struct
import zlib

import numpy as np
import PIL
from gapless_tools.plain_png import plain_png
from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "src" / "image" / "testdata"
HEADER = ROOT / "src" / "image" / "pillow_goldens.h"

CROP, PATCH, MARGIN, MAX_CROPS = 378, 14, 4, 12
WINDOW, RIM = CROP - 2 * MARGIN * PATCH, 2 * MARGIN * PATCH


def pattern(width, height):
    """Hard noise in every other 8x8 field, a gradient in the rest; test_pattern.cpp makes the same."""
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    x, y, c = (v.astype(np.uint32) for v in (x, y, c))
    h = (x * np.uint32(73856093)) ^ (y * np.uint32(19349663)) ^ (c * np.uint32(83492791))
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0x5BD1E995)
    h ^= h >> np.uint32(15)
    noisy = ((x // 8 + y // 8) & 1) == 1
    return np.where(noisy, h & 255, (3 * x + 5 * y + 40 * c) & 255).astype(np.uint8)


def fnv1a(array):
    value = 0xCBF29CE484222325
    for byte in np.ascontiguousarray(array).tobytes():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def resize(array, width, height):
    return np.asarray(Image.fromarray(array).resize((width, height), Image.Resampling.LANCZOS))


def select_tiling(width, height):
    w, h = width - RIM, height - RIM
    if h <= WINDOW or w <= WINDOW:
        return 1, 1
    a, b = math.ceil(h / WINDOW), math.ceil(w / WINDOW)
    if a * b > MAX_CROPS:
        r = math.sqrt(MAX_CROPS / (a * b))
        return max(1, math.floor(a * r)), max(1, math.floor(b * r))
    p = max(math.floor(math.sqrt(MAX_CROPS * h / w)), a)
    q = max(math.floor(math.sqrt(MAX_CROPS * w / h)), b)
    if p * q > MAX_CROPS:
        if q > p:
            q = math.floor(MAX_CROPS / p)
        else:
            p = math.floor(MAX_CROPS / q)
    return max(1, p), max(1, q)


def crops(array):
    rows, cols = select_tiling(array.shape[1], array.shape[0])
    made = [resize(array, CROP, CROP)]
    if rows * cols > 1:
        canvas = resize(array, WINDOW * cols + RIM, WINDOW * rows + RIM)
        for r in range(rows):
            for c in range(cols):
                y, x = WINDOW * r, WINDOW * c
                made.append(canvas[y : y + CROP, x : x + CROP])
    return rows, cols, np.stack(made)


def png_16(samples, colour_type):
    """A PNG of 16-bit samples: Pillow reads it, but writes none with alpha."""
    height, width, _ = samples.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    return plain_png(width, height, zlib.compress(rows), bits=16, colour_type=colour_type)


def gif_on_canvas(file, width, height, left, top):
    """The same GIF with its first picture elsewhere on a canvas of another size."""
    data = bytearray(file.read_bytes())
    struct.pack_into("<HH", data, 6, width, height)
    palette_bytes = 3 << ((data[10] & 7) + 1) if data[10] & 0x80 else 0
    at = 13 + palette_bytes
    while data[at] != ord(","):  # blocks before the picture
        at += 2
        while data[at]:
            at += 1 + data[at]
        at += 1
    struct.pack_into("<HH", data, at + 1, left, top)
    return bytes(data)


def write_pictures():
    picture = pattern(37, 29)
    rgb = Image.fromarray(picture)
    alpha = Image.fromarray(np.dstack([picture, picture[:, ::-1, 0]]))
    second = Image.fromarray(255 - picture)
    DATA.mkdir(exist_ok=True)
    rgb.save(DATA / "ycc444.jpg", quality=90, subsampling=0)
    rgb.save(DATA / "ycc422.jpg", quality=85, subsampling=1)
    rgb.save(DATA / "ycc420.jpg", quality=75, subsampling=2)
    rgb.save(DATA / "restart.jpg", quality=75, subsampling=2, restart_marker_blocks=2)
    rgb.save(DATA / "progressive.jpg", quality=80, progressive=True)
    rgb.save(DATA / "rgb.jpg", quality=80, keep_rgb=True)
    rgb.convert("L").save(DATA / "grey.jpg", quality=80)
    inks = np.dstack([picture, picture[:, ::-1, 0] // 2])
    Image.fromarray(inks, "CMYK").save(DATA / "cmyk.jpg", quality=80)
    rgb.quantize(16, method=Image.Quantize.FASTOCTREE).save(DATA / "palette.png", transparency=3)
    rgb.convert("1", dither=Image.Dither.NONE).save(DATA / "one_bit.png")
    alpha.convert("LA").save(DATA / "grey_alpha.png")
    alpha.save(DATA / "rgba.png")
    rgb.save(DATA / "rgb_transparent.png", transparency=tuple(int(c) for c in picture[5, 7]))
    rgb.convert("L").save(DATA / "grey_transparent.png", transparency=int(picture[5, 7, 0]))
    # Half of the palette is see-through, each entry to another degree.
    quantized = rgb.quantize(16, method=Image.Quantize.FASTOCTREE)
    quantized.save(DATA / "palette_alpha.png", transparency=bytes(range(0, 256, 32)))
    deep = np.dstack([picture, picture[:, ::-1, 0]]).astype(np.uint16) * 257 - (picture[..., :1] // 3)
    (DATA / "rgba_16.png").write_bytes(png_16(deep, 6))
    (DATA / "grey_alpha_16.png").write_bytes(png_16(deep[..., 2:], 4))
    rgb.save(DATA / "lossy.webp", quality=70)
    alpha.save(DATA / "lossy_alpha.webp", quality=70)
    alpha.save(DATA / "lossless_alpha.webp", lossless=True, exact=True)
    alpha.save(DATA / "animated.webp", save_all=True, append_images=[second], quality=70)
    quantized.save(DATA / "plain.gif", interlace=0)
    quantized.save(DATA / "interlaced.gif", interlace=1, transparency=3, comment=b"a comment")
    (DATA / "on_canvas.gif").write_bytes(gif_on_canvas(DATA / "interlaced.gif", 50, 40, 7, 5))
    (DATA / "beyond_canvas.gif").write_bytes(gif_on_canvas(DATA / "plain.gif", 20, 10, 3, 2))
    rgb.convert("L").save(DATA / "grey.gif")
    rgb.save(DATA / "animated.gif", save_all=True, append_images=[second], duration=100, loop=0)


def main():
    if int(PIL.__version__.split(".")[0]) < 13:
        raise SystemExit("Pillow 13 or newer is needed: older ones resize tall pictures in another order")
    write_pictures()
    out = [
        "// Made by tools/image_goldens.py with Pillow " + PIL.__version__ + "; do not edit.",
        "// clang-format off",
        "#pragma once",
        "",
        "#include <cstdint>",
        "",
        "namespace gapless {",
        "",
        "// fnv1a is over the RGB bytes, row by row.",
        "struct DecodeGolden {",
        "  const char* file;",
        "  int width, height;",
        "  std::uint64_t fnv1a;",
        "};",
        "inline constexpr DecodeGolden kDecodeGoldens[] = {",
    ]
    for path in sorted(DATA.iterdir()):
        with Image.open(path) as image:
            rgb = np.asarray(image.convert("RGB"))
        out.append(f'    {{"{path.name}", {rgb.shape[1]}, {rgb.shape[0]}, {fnv1a(rgb):#018x}}},')
    out += [
        "};",
        "",
        "struct ResizeGolden {",
        "  int width, height, out_width, out_height;",
        "  std::uint8_t first_pixel[3], last_pixel[3];",
        "  std::uint64_t fnv1a;",
        "};",
        "inline constexpr ResizeGolden kResizeGoldens[] = {",
    ]
    for w, h, ow, oh in [
        (64, 48, 64, 48),  # nothing to do
        (64, 48, 31, 48),  # horizontal only
        (64, 48, 64, 100),  # vertical only
        (100, 75, 37, 29),  # down
        (37, 29, 100, 75),  # up
        (50, 90, 80, 30),  # up and down, vertical first
        (48, 292, 3, 52),  # both down, vertical first
        (139, 270, 20, 30),  # 240 rows over 2 x 119 columns: just vertical first
        (140, 270, 20, 30),  # ... the tie: horizontal first
        (1, 97, 5, 40),
        (97, 1, 40, 5),
        (1, 1, 9, 7),
        (9, 7, 1, 1),
        (15, 33, 16, 12),  # either side of one block of lanes
        (17, 33, 15, 12),
        (200, 150, 378, 378),
        (640, 480, 378, 378),
    ]:
        r = resize(pattern(w, h), ow, oh)
        first, last = (", ".join(str(v) for v in r[i, i]) for i in (0, -1))
        out.append(f"    {{{w}, {h}, {ow}, {oh}, {{{first}}}, {{{last}}}, {fnv1a(r):#018x}}},")
    out += [
        "};",
        "",
        "struct CropsGolden {",
        "  int width, height, rows, cols;",
        "  std::uint64_t fnv1a;  // over all distinct crops, the global one first",
        "};",
        "inline constexpr CropsGolden kCropsGoldens[] = {",
    ]
    for w, h in [(378, 378), (300, 2000), (400, 390), (800, 600), (600, 800), (720, 1600), (1400, 1000)]:
        rows, cols, made = crops(pattern(w, h))
        out.append(f"    {{{w}, {h}, {rows}, {cols}, {fnv1a(made):#018x}}},")
    out += ["};", "", "}  // namespace gapless", ""]
    HEADER.write_text("\n".join(out))


if __name__ == "__main__":
    main()
