// The client of @a2a-js/sdk 1.x registers push configs, and says what it got:
// node configs_1.mjs --modules DIR configs --url URL --binding JSONRPC --version 1.0 --hook URL
import { argument, load } from './peer.mjs';

const { ClientFactory } = await load('@a2a-js/sdk/client');
const { TaskNotFoundError } = await load('@a2a-js/sdk/errors');
const { AgentCard, TaskPushNotificationConfig } = await load('@a2a-js/sdk');

const client = await new ClientFactory().createFromAgentCard(AgentCard.fromJSON({
  name: 'agent', description: 'Works.', version: '1', capabilities: { pushNotifications: true },
  defaultInputModes: ['text/plain'], defaultOutputModes: ['text/plain'], skills: [],
  supportedInterfaces: [{
    url: argument('url'), protocolBinding: argument('binding'), protocolVersion: argument('version'),
  }],
}));
const create = async (id, taskId) => TaskPushNotificationConfig.toJSON(
  await client.createTaskPushNotificationConfig(TaskPushNotificationConfig.fromJSON({
    id, taskId, url: argument('hook'), token: 'tok-interop-1',
    authentication: { scheme: 'Bearer', credentials: 'cred-interop-1' },
  })),
);
const named = { tenant: '', taskId: 'task-1', id: 'gone' };
const read = async () =>
  TaskPushNotificationConfig.toJSON(await client.getTaskPushNotificationConfig(named));
const list = async () => (await client.listTaskPushNotificationConfig({
  tenant: '', taskId: 'task-1', pageSize: 10, pageToken: '',
})).configs.map(TaskPushNotificationConfig.toJSON);
const notFound = (error) => error instanceof TaskNotFoundError;

const said = { created: [await create('kept', 'task-1'), await create('gone', 'task-1')] };
Object.assign(said, { read: await read(), before: await list() });
await client.deleteTaskPushNotificationConfig(named);
said.after = await list();
said.missing = await read().then(() => false, notFound);
said.foreign = await create('c', 'nobodys').then(() => false, notFound);
process.stdout.write(JSON.stringify(said));
