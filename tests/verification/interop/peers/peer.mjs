// What the peers in Node do alike: their options, the packages of a release, work, and webhooks.
import { existsSync } from 'node:fs';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';

export const argument = (name) => process.argv[process.argv.indexOf(`--${name}`) + 1];
export const port = Number(argument('port'));
export const pushes = argument('sender') !== 'none'; // otherwise, with a gateway in front

const require = createRequire(`${argument('modules')}/package.json`);
export const load = (name) => import(pathToFileURL(require.resolve(name)).href);

// Work takes as long as a test wants: while there is a file `hold` in the agent's folder.
export const released = async () => {
  while (existsSync(`${argument('folder')}/hold`)) await sleep(20);
};

// Serves a webhook: a line of JSON on standard output for each notification, with what `verify` says.
export const webhook = (verify) => createServer((request, response) => {
  const chunks = [];
  request.on('data', (chunk) => chunks.push(chunk));
  request.on('end', async () => {
    try {
      const said = await verify(request, Buffer.concat(chunks));
      console.log(JSON.stringify({ ok: true, ...said }));
      response.writeHead(202).end();
    } catch (error) {
      console.log(JSON.stringify({ ok: false, reason: String(error) }));
      response.writeHead(401).end();
    }
  });
}).listen(port, '127.0.0.1');
