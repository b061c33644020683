// Streams that keep the device at work while somebody watches it. Their answers are thrown away.

export class BackgroundLoad {
  // `ask(signal)` resolves when one answer has ended.
  constructor(ask) {
    this.ask = ask;
    this.streams = [];
  }

  setStreams(count) {
    while (this.streams.length > count) this.streams.pop().abort();
    while (this.streams.length < count) {
      const stream = new AbortController();
      this.streams.push(stream);
      this.#run(stream.signal);
    }
  }

  async #run(signal) {
    while (!signal.aborted) {
      try {
        await this.ask(signal);
      } catch {
        if (!signal.aborted) await new Promise((resolve) => setTimeout(resolve, 500));
      }
    }
  }
}
