// A mock server of models from npm, told what to answer to which message. Prints its address.
import { LLMock } from "@copilotkit/aimock";

const mock = new LLMock({ port: 0, logLevel: "silent", chunkSize: 7 });
const look = (key) => ({ name: "desk__look", arguments: JSON.stringify({ key }) });
mock.on({ userMessage: "Use tools", hasToolResult: false }, { toolCalls: [look("a"), look("b")] });
mock.on({ userMessage: "Use tools", hasToolResult: true }, { content: "Both were looked up." });
mock.on({ userMessage: "Answer by schema" }, { content: '{"n": 3}' });
mock.on({ userMessage: "Do both", hasToolResult: false }, { content: "I look.", toolCalls: [look("c")] });
mock.on({ userMessage: "Do both", hasToolResult: true }, { content: '{"n": 4}' });
const long = "This model's maximum context length is 8192 tokens. However, your messages have 9000 tokens.";
mock.on({ userMessage: "Too long" }, {
  error: { message: long, type: "invalid_request_error", code: "context_length_exceeded" }, status: 400,
});
mock.on({ userMessage: "Be cut" }, { content: "half of an ans", finishReason: "length" });
mock.on({ userMessage: "Be slow" }, { content: "word ".repeat(400) }, { latency: 1000 });
mock.on({ userMessage: "Hello" }, { content: "Grüße, 世界 🎉" });
await mock.start();
console.log(mock.url);
