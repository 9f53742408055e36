// An editor with the official TypeScript SDK. It prints what it received as JSON.
//
// Usage: typescript_sdk.mjs WORKSPACE GATE COMMAND...   GATE is the pipe at which the tool of the prompt "gate" waits.

import { spawn } from "node:child_process";
import { promises as fs } from "node:fs";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";

const [workspace, gate, command, ...args] = process.argv.slice(2);
const updates = [];
const permissions = [];
const receipts = [];
const waiting = [];

function store(messages, message) {
  messages.push(message);
  for (const check of [...waiting]) check();
}

function until(condition) {
  return new Promise((resolve) => {
    const check = () => {
      if (!condition()) return;
      waiting.splice(waiting.indexOf(check), 1);
      resolve();
    };
    waiting.push(check);
    check();
  });
}

const textOf = (kind) =>
  updates.filter((update) => update.sessionUpdate === kind).map((update) => update.content.text).join("");

async function play(agent) {
  const received = {};
  const first = await agent.request("initialize", {
    protocolVersion: acp.PROTOCOL_VERSION,
    clientCapabilities: { elicitation: { form: {} } },
    _meta: { receipts: true },
  });
  received.initialize = [first.protocolVersion, first.agentInfo.name, first.agentCapabilities.loadSession];
  const { sessionId } = await agent.request("session/new", { cwd: workspace, mcpServers: [] });
  received.new = Boolean(sessionId);
  const prompt = (text) => agent.request("session/prompt", { sessionId, prompt: [{ type: "text", text }] });
  received.prompt = (await prompt("hello")).stopReason;
  received.updates = textOf("agent_message_chunk");
  received.permission = [(await prompt("write")).stopReason, permissions[0].content[0].newText];
  updates.length = 0;
  const streaming = prompt("stream");
  await until(() => textOf("agent_message_chunk"));
  await agent.notify("session/cancel", { sessionId });
  received.cancel = (await streaming).stopReason;
  updates.length = 0;
  const gated = prompt("gate");
  await until(() => updates.some((update) => update.sessionUpdate === "tool_call"));
  const steered = await agent.request("_session/steering", { sessionId, prompt: [{ type: "text", text: "steered" }] });
  const second = prompt("and this");
  await fs.writeFile(gate, "open");
  received.steer = steered.outcome;
  received.second = [(await gated).stopReason, (await second).stopReason];
  const line = steered._meta.chain.lineId;
  received.receipt = receipts.filter((receipt) => receipt.id === line).map((receipt) => receipt.state);
  await agent.request("session/close", { sessionId });
  updates.length = 0;
  await agent.request("session/load", { sessionId, cwd: workspace, mcpServers: [] });
  received.load = textOf("user_message_chunk").startsWith("hello");
  const listed = await agent.request("session/list", { cwd: workspace });
  received.list = listed.sessions.length === 1 && listed.sessions[0].sessionId === sessionId;
  return { ...received, ...(await playOffers(agent)) };
}

// Returns what a session offers: options, commands, forms and its deletion.
async function playOffers(agent) {
  const received = {};
  const current = (options) => Object.fromEntries(options.map((option) => [option.id, option.currentValue]));
  const offer = () => updates.find((update) => update.sessionUpdate === "available_commands_update");
  updates.length = 0;
  const { sessionId, configOptions } = await agent.request("session/new", { cwd: workspace, mcpServers: [] });
  const said = async (text) => {
    updates.length = 0;
    await agent.request("session/prompt", { sessionId, prompt: [{ type: "text", text }] });
    return textOf("agent_message_chunk");
  };
  const set = (configId, value) => agent.request("session/set_config_option", { sessionId, configId, value });
  await until(offer);
  const { availableCommands } = offer();
  received.options = [current(configOptions), current((await set("model", "other")).configOptions)];
  received.commands = [availableCommands[0].name, (await said("/status")).includes("nothing is running")];
  received.form = await said("ask");
  received.chain = current((await set("chain", "review")).configOptions);
  const list = async () => (await agent.request("session/list", { cwd: workspace })).sessions;
  for (const each of await list()) await agent.request("session/delete", { sessionId: each.sessionId });
  received.delete = await list();
  return received;
}

const server = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"] });
const stream = acp.ndJsonStream(Writable.toWeb(server.stdin), Readable.toWeb(server.stdout));
const app = acp
  .client({ name: "test" })
  .onNotification("session/update", (cx) => store(updates, cx.params.update))
  .onNotification("_chain/receipt", (params) => params, (cx) => store(receipts, cx.params))
  .onRequest("session/request_permission", (cx) => {
    store(permissions, cx.params.toolCall);
    return { outcome: { outcome: "selected", optionId: cx.params.options[0].optionId } };
  })
  .onRequest("elicitation/create", (cx) => {
    const options = cx.params.requestedSchema.properties.choice.oneOf;
    return { action: "accept", content: { choice: options[options.length - 1].const } };
  });
console.log(JSON.stringify(await app.connectWith(stream, play)));
server.stdin.end();
