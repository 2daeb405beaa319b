// @a2a-js/sdk's own sender, unsigned and in memory: node a2a_js.mjs MODULES '{"ports": [8080], …}'
// The load is that of sides.py, and so is what is printed.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const require = createRequire(`${process.argv[2]}/package.json`);
const load = JSON.parse(process.argv[3]);
const at = (name) => import(pathToFileURL(require.resolve(name)).href);
const server = await at('@a2a-js/sdk/server');
const { StreamResponse, TaskPushNotificationConfig } = await at('@a2a-js/sdk');

const context = new server.ServerCallContext({ requestedVersion: '1.0' });
const store = new server.InMemoryPushNotificationStore();
const sender = new server.DefaultPushNotificationSender(store);
const text = 'x'.repeat(load.body_bytes ?? 0);
const message = text && { messageId: 'm', role: 'ROLE_AGENT', parts: [{ text }] };
for (let task = 0; task < load.tasks; task++) {
  const url = `http://127.0.0.1:${load.ports[task % load.ports.length]}/hook`;
  const config = TaskPushNotificationConfig.fromJSON({ id: 'bench', taskId: `task-${task}`, url });
  await store.save(`task-${task}`, context, config);
}

console.log = console.info = () => {}; // it tells of every notification
const waits = [];
const seconds = () => Number(process.hrtime.bigint()) / 1e9;
const used = () => { const { user, system } = process.cpuUsage(); return (user + system) / 1e6; };
const [began, cpu] = [seconds(), used()];

async function one(task) {
  for (let n = 0; n < Math.floor(load.updates / load.tasks); n++) {
    const asked = seconds();
    await sender.send(StreamResponse.fromJSON({
      statusUpdate: {
        taskId: `task-${task}`, contextId: 'context-0123456789',
        status: { state: 'TASK_STATE_WORKING', ...(message && { message }) },
        metadata: { sent: String(process.hrtime.bigint()) },
      },
    }), context);
    waits.push(seconds() - asked);
  }
}

await Promise.all(Array.from({ length: load.tasks }, (_, task) => one(task)));
const cost = { seconds: seconds() - began, cpu: used() - cpu, waits };
const peak_mib = process.resourceUsage().maxRSS / 1024;
process.stdout.write(JSON.stringify({ ...cost, peak_mib }), () => process.exit(0));
