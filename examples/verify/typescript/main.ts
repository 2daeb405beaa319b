// Verifies the vectors in DIRECTORY: node main.js DIRECTORY. Prints a line of JSON for each.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { verify } from './verify.js';

const read = (name: string) => JSON.parse(readFileSync(join(process.argv[2], name), 'utf8'));
const { now, senders, vectors } = read('notifications.json');
const keys = read('jwks.json');

for (const { id, request } of vectors) {
  const { profile, schemes, issuer, audience } = senders.find(
    (sender: { name: string }) => sender.name === request.sender,
  );
  if (profile !== 'standard' || !schemes.includes('jwt')) continue;
  const body = new TextEncoder().encode(request.body);
  const result = await verify(
    new Headers(request.headers), body, keys, issuer, audience, new Date(now * 1000),
  ).then(
    () => ({ id, accepted: true }),
    (error: unknown) => ({ id, accepted: false, reason: String(error) }),
  );
  console.log(JSON.stringify(result));
}
