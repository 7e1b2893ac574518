// What the programs of the npm clients share: see scene.py, whose rules hold here too.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";

export const RATE_HZ = 24_000;
const PIECE_MS = 50;
const PIECE_BYTES = (RATE_HZ * 2 * PIECE_MS) / 1000;

export function check(holds, told) {
  if (!holds) throw new Error(typeof told === "string" ? told : JSON.stringify(told));
}

/** Have the runner do something to the world. */
export function ask(what) {
  console.log(JSON.stringify({ do: what }));
}

/** Play the scene that the command line names, print its outcome, and exit. */
export async function play(scenes) {
  const text = { type: "string" };
  const options = { scene: text, url: text, model: text, sounds: text, patience: { type: "string", default: "60" } };
  const { values } = parseArgs({ options });
  const given = { ...values, patience: Number(values.patience) };
  try {
    const note = await within(scenes[given.scene](given), given.patience * 4, "the scene did not end");
    console.log(JSON.stringify({ passed: true, note }));
    process.exit(0);
  } catch (error) {
    console.error(error);
    console.log(JSON.stringify({ passed: false, note: String(error).slice(0, 600) }));
    process.exit(1);
  }
}

function within(promise, seconds, told) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(told)), seconds * 1000);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** Sends sound at the pace of speech, silence between the sentences. */
export class Microphone {
  #due = Buffer.alloc(0);
  #on = true;

  constructor(options, send) {
    this.sounds = options.sounds;
    this.send = send;
    this.#run();
  }

  say(name) {
    this.#due = Buffer.concat([this.#due, readFileSync(join(this.sounds, `${name}.pcm`))]);
  }

  stop() {
    this.#on = false;
  }

  async #run() {
    const start = performance.now();
    for (let pieces = 1; this.#on; pieces++) {
      const piece = Buffer.alloc(PIECE_BYTES);
      this.#due.copy(piece, 0, 0, PIECE_BYTES);
      this.#due = this.#due.subarray(PIECE_BYTES);
      try {
        this.send(piece);
      } catch (error) {
        console.error(`the microphone stopped: ${error}`); // the scene has its own word for a lost socket
        return;
      }
      await sleep(Math.max(0, start + pieces * PIECE_MS - performance.now()));
    }
  }
}

/** What a client handed to its application, in order. */
export class Log {
  seen = [];
  #next = 0;
  #over = null;
  #wake = () => {};

  constructor(patience) {
    this.patience = patience;
  }

  add(kind, event) {
    this.seen.push([kind, event]);
    this.#wake();
  }

  end(why) {
    this.#over ??= why;
    this.#wake();
  }

  /** The next event of this kind. An `error` on the way is a failure. */
  async next(kind, where = () => true) {
    const last = () => JSON.stringify(this.seen.slice(-12).map(([name]) => name));
    return within(this.#find(kind, where), this.patience, `${kind} did not come`).catch((error) => {
      throw new Error(`${error.message}; the last were ${last()}`);
    });
  }

  async #find(kind, where) {
    for (;;) {
      while (this.#next < this.seen.length) {
        const [name, event] = this.seen[this.#next++];
        if (name === kind && where(event)) return event;
        check(name !== "error" || kind === "error", `an error while waiting for ${kind}: ${JSON.stringify(event)}`);
      }
      check(this.#over === null, `over (${this.#over}) while waiting for ${kind}`);
      await this.#more();
    }
  }

  /** Why it is over. */
  async ended() {
    const over = async () => {
      while (this.#over === null) await this.#more();
      return this.#over;
    };
    return within(over(), this.patience, "the loss of the connection was not told");
  }

  #more() {
    return new Promise((resolve) => {
      this.#wake = resolve;
    });
  }

  /** The next response: its transcript, its audio in bytes, its `response.done`. */
  async answer() {
    const begun = (await this.next("response.created")).response.id;
    const done = await this.next("response.done", (event) => event.response.id === begun);
    const of = (kind) => this.seen.filter(([name, event]) => name === kind && event.response_id === begun);
    const words = of("response.output_audio_transcript.delta").map(([, event]) => event.delta).join("");
    const audio = of("response.output_audio.delta")
      .map(([, event]) => Buffer.from(event.delta, "base64").length)
      .reduce((sum, size) => sum + size, 0);
    return { words, audio, response: done.response };
  }

  async spokenAnswer() {
    const { words, audio, response } = await this.answer();
    check(response.status === "completed" && words.trim() && audio > 4800, { words, audio, response });
    return words;
  }
}
