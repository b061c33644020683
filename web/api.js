// The server's Moondream API.

export class ApiError extends Error {
  constructor(message, status = null) {
    super(message);
    this.status = status;
  }
}

export function headers(key) {
  const made = { "Content-Type": "application/json" };
  if (key) made["Authorization"] = `Bearer ${key}`;
  return made;
}

export async function failure(response) {
  let message = `the server answered ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // It is no answer of ours: the status has to do.
  }
  return new ApiError(message, response.status);
}

export async function servedModel(key) {
  const response = await fetch("/v1/models", { headers: headers(key) });
  if (!response.ok) throw await failure(response);
  return (await response.json()).data[0];
}

// The names of its skills.
export async function skillsOfModel(key) {
  const response = await fetch("/model_info", { headers: headers(key) });
  if (!response.ok) throw await failure(response);
  return (await response.json()).skills;
}

// Of a device; empty: the first one.
const ofDevice = (device) => (device ? `?device=${encodeURIComponent(device)}` : "");

// null: the server shows no timeline.
export async function timeline(key, device) {
  const response = await fetch("/debug/timeline" + ofDevice(device), { headers: headers(key) });
  if (response.status === 404) return null;
  if (!response.ok) throw await failure(response);
  return response.json();
}

// Of all devices; answers the timeline of this one.
export async function setDepth(key, depth, device) {
  const response = await fetch("/debug/depth" + ofDevice(device), {
    method: "POST",
    headers: headers(key),
    body: JSON.stringify({ depth }),
  });
  if (!response.ok) throw await failure(response);
  return response.json();
}

export async function trace(key) {
  const response = await fetch("/debug/trace", { headers: headers(key) });
  if (!response.ok) throw await failure(response);
  return response.blob();
}

// The data of each server-sent event of a response, as objects.
export async function* events(response) {
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  let text = "";
  while (true) {
    const { done, value } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const event = text.slice(0, end);
      text = text.slice(end + 2);
      if (event.startsWith("data: {")) yield JSON.parse(event.slice(6));
    }
  }
}

// Asks; onText gets text as it comes, onPath what there is of a segment. The result is the answer's object.
export async function ask(skill, body, { key, signal, onText, onPath }) {
  const response = await fetch(`/v1/${skill}`, {
    method: "POST",
    headers: headers(key),
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw await failure(response);
  if (!body.stream) return response.json();
  const segment = { path: "", bbox: null };
  for await (const event of events(response)) {
    if (event.error) throw new ApiError(event.error.message);
    if (event.type === "bbox") segment.bbox = event.bbox;
    else if (event.type === "path_delta") onPath({ ...segment, path: (segment.path += event.chunk) });
    else if (event.chunk) onText(event.chunk);
    if (event.completed) return event;
  }
  throw new ApiError("the stream broke off");
}
