// A webhook in Node that verifies pushkit's notifications with `jose` and a remote JWK Set:
// node receiver.mjs --port 9000 --modules DIR --jwks http://127.0.0.1:9001/.well-known/jwks.json
//   --issuer http://127.0.0.1:9001
import { createHash } from 'node:crypto';
import { argument, load, port, webhook } from './peer.mjs';

const { createRemoteJWKSet, jwtVerify } = await load('jose');
const keys = createRemoteJWKSet(new URL(argument('jwks')));

webhook(async ({ headers, url }, body) => {
  const audience = `http://127.0.0.1:${port}${url}`;
  const bearer = headers.authorization?.replace(/^Bearer /, '');
  const jwt = headers['x-a2a-signature'] ?? bearer;
  const { payload } = await jwtVerify(jwt, keys, { issuer: argument('issuer'), audience });
  if (payload.request_body_sha256 !== createHash('sha256').update(body).digest('hex')) {
    throw new Error('the signed hash is not the body\'s');
  }
  if (payload.jti !== headers['webhook-id']) throw new Error('the ids differ');
  return { seq: payload.seq, token: headers['x-a2a-token'] };
});
