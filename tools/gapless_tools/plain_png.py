"""PNG files without an image library: of samples that the library does not write, and where there is none."""

import struct
import zlib


def png_chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def plain_png(width, height, compressed_rows, bits=8, colour_type=2):
    """The file around rows that are compressed already, each behind its filter's byte. Colour type 2 is RGB."""
    header = struct.pack(">IIBBBBB", width, height, bits, colour_type, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", compressed_rows) + png_chunk(b"IEND", b"")
