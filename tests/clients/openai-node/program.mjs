// openai (npm): `OpenAIRealtimeWS`, as its documentation shows it. It always dials wss.

import OpenAI from "openai";
import { OpenAIRealtimeWS } from "openai/realtime/ws";
import { ask, check, Log, Microphone, play } from "./scene.mjs";

const WEATHER = {
  type: "function",
  name: "get_weather",
  description: "The weather in a city.",
  parameters: { type: "object", properties: { city: { type: "string" } } },
};

async function talking(options, scene, session = {}) {
  const client = new OpenAI({ baseURL: `${options.url.replace("wss", "https")}/v1`, apiKey: "k" });
  const realtime = new OpenAIRealtimeWS({ model: options.model }, client);
  const log = new Log(options.patience);
  realtime.on("event", (event) => log.add(event.type, event));
  realtime.on("error", (error) => log.add("error", { message: String(error) }));
  realtime.socket.on("close", (code) => log.end(`closed with ${code}`));
  let mic;
  try {
    await log.next("session.created");
    const instructions = "Answer in one short sentence.";
    realtime.send({ type: "session.update", session: { type: "realtime", instructions, ...session } });
    const echo = (await log.next("session.updated")).session;
    check(echo.instructions === instructions, echo);
    mic = new Microphone(options, (piece) =>
      realtime.send({ type: "input_audio_buffer.append", audio: piece.toString("base64") }),
    );
    const type = (text) => {
      const item = { type: "message", role: "user", content: [{ type: "input_text", text }] };
      realtime.send({ type: "conversation.item.create", item });
      realtime.send({ type: "response.create" });
    };
    return await scene({ realtime, log, mic, type });
  } finally {
    mic?.stop();
    realtime.close();
  }
}

const conversation = (options) =>
  talking(options, async ({ log, mic, type }) => {
    type("What is the capital of France?");
    const typed = await log.spokenAnswer();
    mic.say("question");
    await log.next("input_audio_buffer.committed");
    return `'${typed}'; '${await log.spokenAnswer()}'`;
  });

const interruption = (options) =>
  talking(options, async ({ realtime, log, mic, type }) => {
    mic.say("story");
    const first = await log.next("response.output_audio.delta");
    mic.say("interruption");
    await log.next("input_audio_buffer.speech_started");
    const cut = { item_id: first.item_id, content_index: 0, audio_end_ms: 300 };
    realtime.send({ type: "conversation.item.truncate", ...cut });
    const truncated = await log.next("conversation.item.truncated", (event) => event.item_id === first.item_id);
    check(truncated.audio_end_ms <= 300, truncated);
    const again = await log.spokenAnswer();
    const [, ended] = log.seen.find(([kind]) => kind === "response.done");
    check(ended.response.id === first.response_id, ended);
    type("Tell me about the sea.");
    await log.next("response.output_audio.delta");
    realtime.send({ type: "response.cancel" });
    const { response } = await log.next("response.done");
    check(response.status === "cancelled" && response.status_details.reason === "client_cancelled", response);
    return `${ended.response.status}, then '${again}'`;
  });

const tools = (options) =>
  talking(
    options,
    async ({ realtime, log, mic }) => {
      mic.say("weather");
      if (!options.model.startsWith("cascade")) {
        await log.spokenAnswer(); // `loopback-talk` calls in its second turn
        mic.say("weather");
      }
      const call = await log.next("response.function_call_arguments.done");
      await log.next("response.done", (event) => event.response.id === call.response_id);
      const item = { type: "function_call_output", call_id: call.call_id, output: "sunny and 21 degrees" };
      realtime.send({ type: "conversation.item.create", item });
      realtime.send({ type: "response.create" });
      const words = await log.spokenAnswer();
      check(!options.model.startsWith("cascade") || words.toLowerCase().includes("sunny"), words);
      return `${call.name}(${call.arguments}), then '${words}'`;
    },
    { tools: [WEATHER], tool_choice: "auto" },
  );

const dropped = (options) =>
  talking(options, async ({ log, mic }) => {
    mic.say("story");
    await log.next("response.output_audio.delta");
    ask("cut");
    const why = await log.ended();
    check(why === "closed with 1006", why);
    return why;
  });

const leave = (options) =>
  talking(options, async ({ log, type }) => {
    type("Hello.");
    return log.spokenAnswer();
  });

await play({ conversation, interruption, tools, dropped, leave });
