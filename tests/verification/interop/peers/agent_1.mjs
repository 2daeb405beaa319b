// An agent on @a2a-js/sdk 1.x: node agent_1.mjs --port 9000 --modules DIR
import { load, port, pushes, released } from './peer.mjs';

const { default: express } = await load('express');
const server = await load('@a2a-js/sdk/server');
const { agentCardHandler, jsonRpcHandler, restHandler, UserBuilder } =
  await load('@a2a-js/sdk/server/express');
const { AgentCard, Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent } =
  await load('@a2a-js/sdk');

const card = AgentCard.fromJSON({
  name: 'Working agent', description: 'Works.', version: '1.0.0',
  supportedInterfaces: ['JSONRPC', 'HTTP+JSON'].map((protocolBinding) => (
    { url: `http://127.0.0.1:${port}/`, protocolBinding, protocolVersion: '1.0' }
  )),
  capabilities: { pushNotifications: pushes, streaming: true },
  defaultInputModes: ['text/plain'], defaultOutputModes: ['text/plain'], skills: [],
});

const { AgentEvent } = server;
const executor = {
  async execute(context, bus) {
    const { taskId, contextId, userMessage } = context;
    const now = () => new Date().toISOString();
    const status = (state) => bus.publish(AgentEvent.statusUpdate(TaskStatusUpdateEvent.fromJSON({
      taskId, contextId, status: { state, timestamp: now() },
    })));
    if (!context.task) {
      bus.publish(AgentEvent.task(Task.fromJSON({
        id: taskId, contextId, history: [Message.toJSON(userMessage)],
        status: { state: 'TASK_STATE_SUBMITTED', timestamp: now() },
      })));
      if (Message.toJSON(userMessage).parts[0].text === 'wait') { // for a config, another message
        status('TASK_STATE_INPUT_REQUIRED');
        return bus.finished();
      }
    }
    status('TASK_STATE_WORKING');
    await released();
    bus.publish(AgentEvent.artifactUpdate(TaskArtifactUpdateEvent.fromJSON({
      taskId, contextId, lastChunk: true,
      artifact: { artifactId: 'result-1', name: 'result', parts: [{ text: 'héllo <b>&' }] },
    })));
    status('TASK_STATE_COMPLETED');
    bus.finished();
  },
  async cancelTask() {},
};

const store = new server.InMemoryPushNotificationStore();
const handler = new server.DefaultRequestHandler(
  card, new server.InMemoryTaskStore(), executor, undefined,
  ...(pushes ? [store, new server.DefaultPushNotificationSender(store)] : []),
);
const app = express();
const options = { requestHandler: handler, userBuilder: UserBuilder.noAuthentication };
const [rpc, rest] = [jsonRpcHandler(options), restHandler(options)];
app.use('/.well-known/agent-card.json', agentCardHandler({ agentCardProvider: handler }));
app.use('/', (request, ...more) => (request.path === '/' ? rpc : rest)(request, ...more));
app.listen(port, '127.0.0.1');
