// Questions that go to /v1/chat/completions: about several pictures, and to text models.
import { ApiError, events, failure, headers } from "/web/api.js";

// `body`: that of a query in Moondream's API, whose picture is replaced by all of them.
export function chatBody(body, pictures) {
  const { question, image_url: _, settings, ...rest } = body;
  const parts = pictures.map((url) => ({ type: "image_url", image_url: { url } }));
  const content = parts.length > 0 ? [...parts, { type: "text", text: question }] : question;
  return { messages: [{ role: "user", content }], ...rest, ...settings };
}

// As ask() of api.js; the times are those that are seen from here.
export async function askChat(body, { key, signal, onText }) {
  const began = performance.now();
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: headers(key),
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok) throw await failure(response);
  let first = 0;
  let usage = null;
  let reasoning = null;
  for await (const event of events(response)) {
    if (event.error) throw new ApiError(event.error.message);
    const delta = event.choices?.[0]?.delta;
    if (delta?.reasoning || delta?.reasoning_details) {
      reasoning ??= { text: "", grounding: [] };
      reasoning.text += delta.reasoning ?? "";
      reasoning.grounding = delta.reasoning_details?.grounding ?? reasoning.grounding;
    }
    const text = delta?.content;
    if (text) {
      first ||= performance.now();
      onText(text);
    }
    usage = event.usage ?? usage;
  }
  if (usage === null) throw new ApiError("the stream broke off");
  const end = performance.now();
  return {
    reasoning,
    metrics: {
      ttft_ms: (first || end) - began,
      decode_time_ms: end - (first || end),
      input_tokens: usage.prompt_tokens,
      output_tokens: usage.completion_tokens,
    },
  };
}
