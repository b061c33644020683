#!/usr/bin/env python3
"""Makes the tables of fields in docs/http_api.md, and docs/openapi.json, of docs/http_api.toml.

    tools/api_tables.py              fails where one of them is not what that file says (tests/pages/pages_test.py asks)
    tools/api_tables.py --update     writes both anew; in the page between <!-- fields: NAME --> and <!-- end -->

Needs nothing but Python 3.11.
"""

import copy
import json
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "docs/http_api.toml"
PAGE = ROOT / "docs/http_api.md"
OPENAPI = ROOT / "docs/openapi.json"


def load():
    return tomllib.loads(SOURCE.read_text(encoding="utf-8"))


# ---- the page

def table(group):
    head = group["head"]
    lines = ["| " + " | ".join(head).rstrip() + " |", "|" + "---|" * len(head)]
    for row in group["rows"]:
        if "text" not in row:
            continue
        cells = [row.get("shown", ", ".join(f"`{name}`" for name in row["names"]))]
        if "default" in head:
            cells.append(row.get("default", ""))
        lines.append("| " + " | ".join([*cells, row["text"]]) + " |")
    return "\n".join(lines).replace("|  |", "| |") + "\n"


def with_tables(page, source):
    return re.sub(r"<!-- fields: (\w+) -->\n.*?<!-- end -->",
                  lambda mark: f"<!-- fields: {mark[1]} -->\n{table(source['fields'][mark[1]])}<!-- end -->",
                  page, flags=re.DOTALL)


# ---- OpenAPI

def or_null(schema):
    """Whatever it is, or null."""
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return {**schema, "type": types if "null" in types else [*types, "null"]}
    if "enum" in schema:
        return {"enum": [*schema["enum"], None]}
    if "const" in schema:
        return {"enum": [schema["const"], None]}
    return {"anyOf": [schema, {"type": "null"}]}


def properties(rows, source, required=()):
    """{name: schema} of rows of fields, and the names of those that must be there."""
    found, needed = {}, []
    for row in rows:
        for name in row["names"]:
            if "like" in row:
                schema = next(one["schema"] for one in source["fields"][row["like"]]["rows"] if name in one["names"])
            else:
                schema = row["schema"]
            must = row.get("required", False) or name in required
            found[name] = copy.deepcopy(schema) if must else or_null(copy.deepcopy(schema))
            if must:
                needed.append(name)
    return found, needed


def an_object(found, needed=()):
    schema = {"type": "object", "properties": found}
    if needed:
        schema["required"] = list(needed)
    return schema


def request_schema(path, source):
    rows = [row for group in path.get("groups", []) for row in source["fields"][group]["rows"]]
    left_out = path.get("without", [])
    rows = [{**row, "names": [name for name in row["names"] if name not in left_out]} for row in rows]
    return an_object(*properties(rows + path.get("fields", []), source, path.get("requires", [])))


def responses(path):
    error = {"$ref": "#/components/schemas/" + ("ollama_error" if path.get("ollama") else "error")}
    failure = {"content": {"application/json": {"schema": error}}}
    found = {}
    if "answer" in path:
        content = {"application/json": {"schema": an_object(path["answer"], [name for name in path["answer"] if name not in path.get("optional", [])])}}
        if "stream" in path:
            # A schema of server-sent events would be one event's, and OpenAPI 3.1 has no words for that.
            events = path["stream"] == "text/event-stream"
            content[path["stream"]] = {} if events else {"schema": {"type": "string"}}
        found["200"] = {"description": "The answer", "content": content}
    elif "media" in path:
        found["200"] = {"description": "The answer", "content": {path["media"]: {"schema": {"type": "string"}}}}
    found["4XX"] = {"description": "The request cannot be answered", **failure}
    found["5XX"] = {"description": "The server cannot answer", **failure}
    return found


def operation(path, source):
    made = {"summary": path["about"], "operationId": path["method"] + re.sub(r"\W+", "_", path["path"]).rstrip("_")}
    if "also" in path:
        made["description"] = "Also: " + ", ".join(path["also"])
    if path.get("open"):
        made["security"] = []
    names = re.findall(r"\{(\w+)\}", path["path"])
    if names:
        made["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    if path["method"] == "post":
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": request_schema(path, source)}}}
    made["responses"] = responses(path)
    return made


def openapi(source):
    schemas = copy.deepcopy(source["schemas"])
    for group in ("settings", "ollama_options"):
        schemas[group] = an_object(*properties(source["fields"][group]["rows"], source))
    paths = {}
    for path in source["path"]:
        paths.setdefault(path["path"], {})[path["method"]] = operation(path, source)
    return {
        "openapi": "3.1.0",
        "info": {**source["info"], "version": "1", "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "servers": [{"url": "/"}],
        "security": [{}, {"key": []}],
        "paths": paths,
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}, "schemas": schemas},
    }


def main():
    source = load()
    wanted = {PAGE: with_tables(PAGE.read_text(encoding="utf-8"), source), OPENAPI: json.dumps(openapi(source), indent=1) + "\n"}
    stale = [file for file, text in wanted.items() if not file.exists() or file.read_text(encoding="utf-8") != text]
    if sys.argv[1:] == ["--update"]:
        for file in stale:
            file.write_text(wanted[file], encoding="utf-8")
            print(f"api_tables: wrote {file.relative_to(ROOT)}")
    elif stale:
        names = ", ".join(str(file.relative_to(ROOT)) for file in stale)
        sys.exit(f"api_tables: {names}: not what docs/http_api.toml says; tools/api_tables.py --update writes it anew")


if __name__ == "__main__":
    main()
