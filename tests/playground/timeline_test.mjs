// How the playground accounts for the device's time, without a browser: node timeline_test.mjs
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

const source = readFileSync(new URL("../../web/timeline.js", import.meta.url), "utf8");
const { accountFor, lengthText, rowsText } = await import("data:text/javascript," + encodeURIComponent(source));

const step = (kind, forward, sampling) => ({ kind, forward, sampling });
const steps = [
  step("encode", [100, 200], [200, 200]),
  step("prefill", [250, 300], [300, 310]),
  step("decode", [700, 800], [800, 820]),
];
const gaps = [
  { state: "starved", span: [0, 100] }, // before the first step
  { state: "bubble", phase: "launch", span: [200, 250] },
  { state: "bubble", phase: "commit", span: [310, 330] },
  { state: "starved", span: [330, 400] },
  { state: "preparing", span: [400, 690] },
  { state: "bubble", phase: "other", span: [690, 700] },
];
const account = accountFor(steps, gaps);
assert.equal(account.busy, 100 + 50 + 10 + 100 + 20);
assert.equal(account.bubble, 50 + 20 + 10);
assert.equal(account.starved, 70);
assert.equal(account.preparing, 290);
assert.deepEqual(
  account.parts.map(({ name }) => name),
  ["fill", "bubble", "fill", "sampling", "bubble", "starved", "preparing", "bubble", "forward", "sampling"],
);
// One behind the other, without holes: nothing is hidden.
account.parts.slice(1).forEach((part, i) => assert.equal(part.begin, account.parts[i].end));
assert.deepEqual(accountFor([], gaps).parts, []);
// What stands below the strip.
assert.deepEqual([lengthText(1.25e6), lengthText(999.9e6), lengthText(90e9)], ["1.3 ms", "999.9 ms", "90.0 s"]);
assert.deepEqual([rowsText(1), rowsText(0), rowsText(16)], ["1 row", "0 rows", "16 rows"]);
console.log("the timeline accounts for all of the time");
