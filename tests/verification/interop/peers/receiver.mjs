// A webhook in Node that verifies pushkit's notifications with `jose` and a remote JWK Set:
// node receiver.mjs --port 9000 --modules DIR --jwks http://127.0.0.1:9001/.well-known/jwks.json
//   --issuer http://127.0.0.1:9001
// One line of JSON per notification on standard output.
import { createHash } from 'node:crypto';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const argument = (name) => process.argv[process.argv.indexOf(`--${name}`) + 1];
const require = createRequire(`${argument('modules')}/package.json`);
const { createRemoteJWKSet, jwtVerify } = await import(pathToFileURL(require.resolve('jose')).href);
const keys = createRemoteJWKSet(new URL(argument('jwks')));
const port = Number(argument('port'));

async function verify({ headers, url }, body) {
  const audience = `http://127.0.0.1:${port}${url}`;
  const bearer = headers.authorization?.replace(/^Bearer /, '');
  const jwt = headers['x-a2a-signature'] ?? bearer;
  const { payload } = await jwtVerify(jwt, keys, { issuer: argument('issuer'), audience });
  if (payload.request_body_sha256 !== createHash('sha256').update(body).digest('hex')) {
    throw new Error('the signed hash is not the body\'s');
  }
  if (payload.jti !== headers['webhook-id']) throw new Error('the ids differ');
  return payload;
}

createServer((request, response) => {
  const chunks = [];
  request.on('data', (chunk) => chunks.push(chunk));
  request.on('end', async () => {
    const body = Buffer.concat(chunks);
    try {
      const { jti, seq, taskId } = await verify(request, body);
      console.log(JSON.stringify({ ok: true, id: jti, seq, taskId, token: request.headers['x-a2a-token'] }));
      response.writeHead(202).end();
    } catch (error) {
      console.log(JSON.stringify({ ok: false, reason: String(error) }));
      response.writeHead(401).end();
    }
  });
}).listen(port, '127.0.0.1');
