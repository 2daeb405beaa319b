// Runs beside one release of @a2a-js/sdk: signs and verifies as it does. See peer_python.py.
//
// A card reaches the SDK's functions as plain JSON, or as what AgentCard.fromJSON makes of it, which
// is what its types ask for: an argument says which.
import { createPrivateKey, createPublicKey } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [folder, shape] = process.argv.slice(2);
const sdk = await import(
  pathToFileURL(createRequire(`${folder}/package.json`).resolve('@a2a-js/sdk')).href
);
console.debug = () => {};

const order = JSON.parse(readFileSync(0, 'utf8'));
const publicKey = createPublicKey(order.public_pem);
const privateKey = createPrivateKey(order.private_pem);
const shaped = (card) => (shape === 'instance' ? sdk.AgentCard.fromJSON(card) : card);
const verify = sdk.verifyAgentCardSignature(async () => publicKey);
const sign = sdk.generateAgentCardSignature(privateKey, { alg: 'ES256', kid: 'key-1', typ: 'JOSE' });

const answer = { verified: {}, signed: {}, failed: {} };
for (const [name, card] of Object.entries(order.verify)) {
  try {
    await verify(shaped(card));
    answer.verified[name] = null;
  } catch (error) {
    answer.verified[name] = String(error.message);
  }
}
for (const [name, card] of Object.entries(order.sign)) {
  try {
    const signed = await sign(shaped(card));
    answer.signed[name] = shape === 'instance' ? sdk.AgentCard.toJSON(signed) : signed;
  } catch (error) {
    answer.failed[name] = String(error.message);
  }
}
process.stdout.write(JSON.stringify(answer));
