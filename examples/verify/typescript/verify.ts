import { createHash } from 'node:crypto';
import { createLocalJWKSet, jwtVerify, type JSONWebKeySet, type JWTPayload } from 'jose';

const algorithms = ['ES256', 'ES384', 'EdDSA', 'RS256', 'PS256'];

/**
 * Checks the signature, issuer, audience, time and body of a notification. The caller still has to
 * compare the token, and to remember `jti`.
 *
 * `keys` are those of the sender, each with its `alg`: jose accepts no other algorithm for it. For a
 * set behind a URL, make `createRemoteJWKSet(url)` once.
 */
export async function verify(
  headers: Headers, body: Uint8Array, keys: JSONWebKeySet,
  issuer: string, audience: string, now: Date,
): Promise<JWTPayload> {
  const bearer = /^bearer +(\S+)$/i.exec(headers.get('authorization') ?? '');
  const compact = headers.get('x-a2a-signature') ?? bearer?.[1];
  if (compact === undefined) throw new Error('no JWT');
  const { payload } = await jwtVerify(compact, createLocalJWKSet(keys), {
    algorithms, issuer, audience, currentDate: now, clockTolerance: 60,
    requiredClaims: ['iat', 'exp', 'jti'],
  });
  if (payload.request_body_sha256 !== createHash('sha256').update(body).digest('hex')) {
    throw new Error('signed over another body');
  }
  if (Math.abs(now.getTime() / 1000 - payload.iat!) > 300) throw new Error('the time is out of range');
  if (typeof payload.jti !== 'string' || payload.jti === '') throw new Error('no jti');
  if ((headers.get('webhook-id') ?? payload.jti) !== payload.jti) {
    throw new Error('webhook-id and jti differ');
  }
  return payload;
}
