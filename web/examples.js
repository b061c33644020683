// Prompts to begin with.
export const examples = {
  query: ["What is in the picture?", "How many circles are there?", "What does the text say?"],
  several: ["Which picture has more circles?", "Which picture has a heart?"], // of a query about more than one picture
  point: ["circle", "heart", "square"],
  detect: ["circle", "heart", "square"],
  segment: ["circle", "heart"],
  chat: ["Tell me a story.", "What is a pipeline bubble?"],
};
