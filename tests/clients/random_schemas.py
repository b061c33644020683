"""JSON Schemas drawn at random."""


def random_schema(rng, depth=0):
    """Of what a schema is mostly made of; small, so that answers end."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "pattern"]
    if depth < 3:
        kinds += ["object", "object", "array", "anyOf"]
    kind = "object" if depth == 0 else rng.choice(kinds)
    if kind == "string":
        return {"type": "string", "minLength": rng.randint(0, 3), "maxLength": rng.randint(3, 8)}
    if kind == "integer":
        low = rng.randint(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 300)}
    if kind == "number":
        return {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.01}
    if kind == "enum":
        return {"enum": rng.sample([None, True, 0, -7, "a", "b\"c", "é", [1], {"k": "v"}], rng.randint(1, 4))}
    if kind == "pattern":
        return {"type": "string", "pattern": rng.choice([r"^[a-c]{2,4}$", r"^\d\d-\d\d$", "^(yes|no)$"])}
    if kind == "object":
        names = rng.sample(["a", "b", "name", "kind", "long name", "ä"], rng.randint(1, 4))
        return {
            "type": "object",
            "properties": {name: random_schema(rng, depth + 1) for name in names},
            "required": names[: rng.randint(0, len(names))],
            "additionalProperties": False,
        }
    if kind == "array":
        least = rng.randint(0, 2)
        return {"type": "array", "items": random_schema(rng, depth + 1), "minItems": least, "maxItems": least + rng.randint(0, 2)}
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth + 1) for _ in range(2)]}
    return {"type": kind}
