// The server's Moondream API.

export class ApiError extends Error {}

function headers(key) {
  const made = { "Content-Type": "application/json" };
  if (key) made["Authorization"] = `Bearer ${key}`;
  return made;
}

async function failure(response) {
  try {
    const body = await response.json();
    return new ApiError(body.error.message);
  } catch {
    return new ApiError(`the server answered ${response.status}`);
  }
}

export async function servedModel(key) {
  const response = await fetch("/v1/models", { headers: headers(key) });
  if (!response.ok) throw await failure(response);
  return (await response.json()).data[0];
}

// null: the server shows no timeline.
export async function timeline(key) {
  const response = await fetch("/debug/timeline", { headers: headers(key) });
  if (response.status === 404) return null;
  if (!response.ok) throw await failure(response);
  return response.json();
}

export async function setDepth(key, depth) {
  const response = await fetch("/debug/depth", {
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
async function* events(response) {
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
      if (event.startsWith("data: ")) yield JSON.parse(event.slice(6));
    }
  }
}

// Asks; onText gets text as it comes. The result is the answer's object.
export async function ask(skill, body, { key, signal, onText }) {
  const response = await fetch(`/v1/${skill}`, {
    method: "POST",
    headers: headers(key),
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw await failure(response);
  if (!body.stream) return response.json();
  for await (const event of events(response)) {
    if (event.error) throw new ApiError(event.error.message);
    if (event.chunk) onText(event.chunk);
    if (event.completed) return event;
  }
  throw new ApiError("the stream broke off");
}
