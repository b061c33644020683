// The request on the page as code that does the same. Files are PICTURE-1.png and so on: pages do not learn their paths.

const kEndings = { "image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "image/gif": "gif" };

export function fileNames(types) {
  return types.map((type, index) => `PICTURE-${index + 1}.${kEndings[type]}`);
}

// In single quotes of a shell.
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

// JSON, and Python of the same value.
const literal = (value) => JSON.stringify(value).replaceAll("\u2028", "\\u2028").replaceAll("\u2029", "\\u2029");
function pythonLiteral(value) {
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null) return "None";
  if (Array.isArray(value)) return `[${value.map(pythonLiteral).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, one]) => `${literal(name)}: ${pythonLiteral(one)}`).join(", ")}}`;
  }
  return literal(value);
}

// Walks through a body; each picture's URL becomes what `picture(i)` says, as an expression of the language.
function withPictures(value, picture, render, count = { now: 0 }) {
  if (Array.isArray(value)) return `[${value.map((one) => withPictures(one, picture, render, count)).join(", ")}]`;
  if (value !== null && typeof value === "object") {
    const fields = Object.entries(value).map(([name, one]) =>
      `${literal(name)}: ${isPicture(one) ? picture(count.now++) : withPictures(one, picture, render, count)}`);
    return `{${fields.join(", ")}}`;
  }
  return render(value);
}

const isPicture = (value) => typeof value === "string" && value.startsWith("data:image/");

function curl({ path, body, files, origin, key }) {
  const variables = files.map((file, i) => `IMAGE_${i + 1}=$(base64 -w0 ${file})\n`).join("");
  // In single quotes, which end around each variable.
  const parts = withPictures(body, (i) => `"data:image/png;base64,\0${i + 1}\0"`, literal);
  const text = quoted(parts).replace(/\0(\d+)\0/g, (_, i) => `'"$IMAGE_${i}"'`);
  const header = key ? " -H \"Authorization: Bearer $KEY\"" : "";
  return `${key ? "KEY=...\n" : ""}${variables}echo ${text} |\n` +
    `  curl -sN ${origin}${path} -H 'Content-Type: application/json'${header} -d @-`;
}

function python({ skill, path, body, files, origin, key }) {
  if (path.endsWith("/chat/completions")) return openaiPython({ body, files, origin, key });
  const { image_url, stream, question, length, object, ...rest } = body;
  const field = { query: "answer", caption: "caption", point: "points", detect: "objects", segment: "path" }[skill];
  const values = { question, length, object, ...rest };
  const named = Object.entries(values).filter(([, value]) => value !== undefined)
    .map(([name, value]) => `${name}=${pythonLiteral(value)}`);
  const all = [...(image_url ? [literal(files[0])] : []), ...named].join(", ");
  return `import gapless\n\nmodel = gapless.vl(endpoint=${literal(origin)}${key ? ', api_key="..."' : ""})\n` +
    `print(model.${skill}(${all})["${field}"])`;
}

function openaiPython({ body, files, origin, key }) {
  const { messages, stream, stream_options, ...rest } = body;
  const known = ["temperature", "top_p", "seed", "max_tokens"];
  const entries = Object.entries(rest);
  const direct = entries.filter(([name]) => known.includes(name)).map(([name, value]) => `${name}=${pythonLiteral(value)}`);
  const extra = Object.fromEntries(entries.filter(([name]) => !known.includes(name)));
  if (Object.keys(extra).length > 0) direct.push(`extra_body=${pythonLiteral(extra)}`);
  const content = withPictures(messages, (i) => `picture(${literal(files[i])})`, pythonLiteral);
  const reader = files.length === 0 ? "" : "import base64\n\n";
  const picture = files.length === 0 ? "" :
    "\ndef picture(path):\n    return \"data:image/png;base64,\" + base64.b64encode(open(path, \"rb\").read()).decode()\n\n";
  return `${reader}from openai import OpenAI\n${picture}\nclient = OpenAI(base_url=${literal(origin + "/v1")}, api_key=${key ? '"..."' : '"none"'})\n` +
    `answer = client.chat.completions.create(${[`model=client.models.list().data[0].id`, `messages=${content}`, ...direct].join(", ")})\n` +
    `print(answer.choices[0].message.content)`;
}

function node({ path, body, files, origin, key }) {
  const { stream, stream_options, ...rest } = body;
  const picture = files.length === 0 ? "" :
    'import { readFileSync } from "node:fs";\n\n' +
    'const picture = (path) => "data:image/png;base64," + readFileSync(path, "base64");\n';
  const text = withPictures(rest, (i) => `picture(${literal(files[i])})`, literal);
  const header = key ? ', Authorization: "Bearer ..."' : "";
  return `${picture}const response = await fetch(${literal(origin + path)}, {\n  method: "POST",\n` +
    `  headers: { "Content-Type": "application/json"${header} },\n  body: JSON.stringify(${text}),\n});\n` +
    "console.log(await response.json());";
}

// `request`: {skill, path, body, files, origin, key: whether one is needed}.
export const snippets = { curl, Python: python, Node: node };
