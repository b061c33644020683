"""Writes src/text/testdata/chat_goldens.json: conversations, and what transformers makes of them with chat templates.

python tools/chat_goldens.py --templates DIR

DIR holds llama3.jinja, llama31.jinja, llama32.jinja and qwen3.jinja: the templates that come with those models' weights. Where the
committed goldens were made those could not be had: they are of rewrites that behave as the published ones are known to.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

OUT = Path(__file__).parents[1] / "src/text/testdata/chat_goldens.json"
TODAY = "22 Nov 2026"

U, A, S = "user", "assistant", "system"
CONVERSATIONS = [
    [(U, "Hello")],
    [(S, "Be brief."), (U, "Hello"), (A, "Hi."), (U, "And now?")],
    [(S, "  Be brief.\n\n"), (U, "\t Hello \u00a0\u3000\n"), (A, " Hi.\u2009 "), (U, " x\u200b ")],
    [(U, "Hello"), (S, "From now on be brief."), (U, "And now?")],
    [(S, "One."), (S, "Two."), (U, "Hello")],
    [(U, ""), (A, ""), (U, "\u65e5\u672c\u8a9e \U0001f600 {{ messages }} {% if %}")],
    [(U, "1+1?"), (A, "<think>\nEasy.\n</think>\n\nTwo."), (U, "2+2?")],
    [(U, "1+1?"), (A, "<think>\nEasy.</think>\n\n\nTwo.</think>\nYes."), (U, "2+2?")],
    [(U, "1+1?"), (A, "Two, </think>, you see <think>"), (U, "2+2?")],
    [(U, "Call it."), (A, "<think>\n\nHm.\n\n</think>\n\n\nCalling."), (U, "<tool_response>3</tool_response>")],
    [(U, "Call it."), (A, "Calling."), (U, "<tool_response>3</tool_response>")],
    [(U, "<tool_response>3</tool_response>")],
    [(U, "<tool_response>3</tool_response>"), (A, "<think>Hm</think>So."), (U, "<tool_response>4</tool_response> more")],
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--templates", type=Path, required=True)
    folder = parser.parse_args().templates
    cases = []
    for path in sorted(folder.glob("*.jinja")):
        jinja = path.read_text()
        for conversation in CONVERSATIONS:
            messages = [{"role": role, "content": text} for role, text in conversation]
            for thinking in (True, False) if path.stem == "qwen3" else (True,):
                options = {} if thinking else {"enable_thinking": False}
                if path.stem == "llama32":
                    options["date_string"] = TODAY
                rendered, _ = render_jinja_template(
                    [messages], chat_template=jinja, add_generation_prompt=True, bos_token="<|begin_of_text|>", **options
                )
                cases.append({"template": path.stem, "messages": messages, "thinking": thinking, "rendered": rendered[0]})
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps({"today": TODAY, "cases": cases}, indent=1) + "\n")
    print(f"{OUT}: {len(cases)} cases")


if __name__ == "__main__":
    main()
