// An agent on @a2a-js/sdk 0.3.x: node agent_0_3.mjs --port 9000 --modules DIR
import { load, port, pushes, released } from './peer.mjs';

const { default: express } = await load('express');
const server = await load('@a2a-js/sdk/server');
const { A2AExpressApp } = await load('@a2a-js/sdk/server/express');

const card = {
  name: 'Working agent', description: 'Works.', url: `http://127.0.0.1:${port}/`, version: '1.0.0',
  protocolVersion: '0.3.0', capabilities: { pushNotifications: pushes, streaming: true },
  defaultInputModes: ['text/plain'], defaultOutputModes: ['text/plain'], skills: [],
};

const executor = {
  async execute(context, bus) {
    const { taskId, contextId, userMessage } = context;
    const status = (state, final) => bus.publish({
      kind: 'status-update', taskId, contextId, final,
      status: { state, timestamp: new Date().toISOString() },
    });
    if (!context.task) {
      bus.publish({
        kind: 'task', id: taskId, contextId, history: [userMessage],
        status: { state: 'submitted', timestamp: new Date().toISOString() },
      });
      if (userMessage.parts[0].text === 'wait') { // for a config, and another message
        status('input-required', true);
        return bus.finished();
      }
    }
    status('working', false);
    await released();
    bus.publish({
      kind: 'artifact-update', taskId, contextId, lastChunk: true,
      artifact: { artifactId: 'result-1', name: 'result', parts: [{ kind: 'text', text: 'héllo <b>&' }] },
    });
    status('completed', true);
    bus.finished();
  },
  async cancelTask() {},
};

const store = new server.InMemoryPushNotificationStore();
const handler = new server.DefaultRequestHandler(
  card, new server.InMemoryTaskStore(), executor, undefined,
  ...(pushes ? [store, new server.DefaultPushNotificationSender(store)] : []),
);
const app = new A2AExpressApp(handler).setupRoutes(express());
app.listen(port, '127.0.0.1');
