// A webhook in Node that verifies Standard Webhooks with a library:
// node webhook_library.mjs --port 9000 --modules DIR --library standardwebhooks|svix --secret whsec_…
// One line of JSON per notification on standard output.
import { createServer } from 'node:http';
import { createRequire } from 'node:module';

const argument = (name) => process.argv[process.argv.indexOf(`--${name}`) + 1];
const require = createRequire(`${argument('modules')}/package.json`);
const { Webhook } = require(argument('library'));
const webhook = new Webhook(argument('secret'));

createServer((request, response) => {
  const chunks = [];
  request.on('data', (chunk) => chunks.push(chunk));
  request.on('end', () => {
    try {
      webhook.verify(Buffer.concat(chunks).toString(), request.headers);
      console.log(JSON.stringify({ ok: true, id: request.headers['webhook-id'] }));
      response.writeHead(202).end();
    } catch (error) {
      console.log(JSON.stringify({ ok: false, reason: String(error) }));
      response.writeHead(401).end();
    }
  });
}).listen(Number(argument('port')), '127.0.0.1');
