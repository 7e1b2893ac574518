// @openai/agents: a `RealtimeSession` over its WebSocket transport, as its documentation shows it.

import { tool } from "@openai/agents";
import { OpenAIRealtimeWebSocket, RealtimeAgent, RealtimeSession } from "@openai/agents/realtime";
import { z } from "zod";
import { ask, check, Log, Microphone, play } from "./scene.mjs";

const weather = tool({
  name: "get_weather",
  description: "The weather in a city.",
  parameters: z.object({ city: z.string().default("Paris") }),
  execute: async () => "sunny and 21 degrees",
});

async function talking(options, scene, tools = []) {
  const agent = new RealtimeAgent({ name: "Guide", instructions: "Answer in one short sentence.", tools });
  const url = `${options.url}/v1/realtime?model=${options.model}`;
  const transport = new OpenAIRealtimeWebSocket({ url });
  const session = new RealtimeSession(agent, { transport, model: options.model });
  const log = new Log(options.patience);
  session.on("transport_event", (event) => log.add(event.type, event));
  for (const kind of ["audio", "audio_interrupted", "agent_tool_end"]) {
    session.on(kind, (...told) => log.add(kind, told));
  }
  session.on("error", (error) => log.add("error", String(error?.error ?? error)));
  transport.on("connection_change", (status) => status === "disconnected" && log.end("disconnected"));
  let mic;
  try {
    await session.connect({ apiKey: "k", url });
    const echo = (await log.next("session.updated")).session;
    check(echo.audio.input.turn_detection.type === "semantic_vad", echo);
    mic = new Microphone(options, (piece) =>
      session.sendAudio(piece.buffer.slice(piece.byteOffset, piece.byteOffset + piece.length)),
    );
    return await scene({ session, log, mic });
  } finally {
    mic?.stop();
    session.close();
  }
}

const conversation = (options) =>
  talking(options, async ({ session, log, mic }) => {
    session.sendMessage("What is the capital of France?");
    const typed = await log.spokenAnswer();
    mic.say("question");
    await log.next("input_audio_buffer.committed");
    const spoken = await log.spokenAnswer();
    const users = session.history.filter((item) => item.type === "message" && item.role === "user");
    check(users.length === 2, session.history);
    return `'${typed}'; '${spoken}'`;
  });

const interruption = (options) =>
  talking(options, async ({ session, log, mic }) => {
    mic.say("story");
    const first = await log.next("response.output_audio.delta");
    mic.say("interruption");
    await log.next("audio_interrupted");
    const again = await log.spokenAnswer();
    const truncated = log.seen.filter(([kind]) => kind === "conversation.item.truncated").map(([, event]) => event);
    check(truncated.length === 1 && truncated[0].item_id === first.item_id, truncated);
    session.sendMessage("Tell me about the sea.");
    const sea = await log.next("response.output_audio.delta");
    session.interrupt();
    await log.next("response.done", (event) => event.response.id === sea.response_id);
    session.sendMessage("Tell me about the moon.");
    await log.spokenAnswer();
    return `truncated at ${truncated[0].audio_end_ms} ms, then '${again}'`;
  });

const tools = (options) =>
  talking(
    options,
    async ({ log, mic }) => {
      mic.say("weather");
      if (!options.model.startsWith("cascade")) {
        await log.spokenAnswer(); // `loopback-talk` calls in its second turn
        mic.say("weather");
      }
      const [, , called, result] = await log.next("agent_tool_end");
      check(result === "sunny and 21 degrees", result);
      const words = await log.spokenAnswer();
      check(!options.model.startsWith("cascade") || words.toLowerCase().includes("sunny"), words);
      return `${called.name}, then '${words}'`;
    },
    [weather],
  );

const dropped = (options) =>
  talking(options, async ({ log, mic }) => {
    mic.say("story");
    await log.next("response.output_audio.delta");
    ask("cut");
    return log.ended();
  });

const leave = (options) =>
  talking(options, async ({ session, log }) => {
    session.sendMessage("Hello.");
    return log.spokenAnswer();
  });

await play({ conversation, interruption, tools, dropped, leave });
