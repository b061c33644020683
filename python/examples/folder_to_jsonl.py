"""Captions of all pictures of a folder, one JSON object a line, as `datasets` loads them.

    pip install gapless
    python folder_to_jsonl.py PICTURES captions.jsonl
    datasets.load_dataset("json", data_files="captions.jsonl")

Started once more it goes on where it ended.
"""

import sys
from pathlib import Path

import gapless

ENDINGS = {".jpg", ".jpeg", ".png", ".webp", ".gif"}


def main(folder: str, out: str) -> None:
    pictures = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in ENDINGS)
    requests = [{"id": str(path.relative_to(folder)), "skill": "caption", "image": path, "length": "short"}
                for path in pictures]
    answers = gapless.batch(requests, out, resume=Path(out).exists(), log=sys.stderr)
    failed = sum("error" in answer for answer in answers)
    print(f"{len(answers) - failed} captions, {failed} pictures that could not be read")


if __name__ == "__main__":
    main(*sys.argv[1:])
