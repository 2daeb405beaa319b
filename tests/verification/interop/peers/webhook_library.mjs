// A webhook in Node that verifies Standard Webhooks with a library:
// node webhook_library.mjs --port 9000 --modules DIR --library standardwebhooks|svix --secret whsec_…
import { argument, load, webhook } from './peer.mjs';

const { Webhook } = await load(argument('library'));
const library = new Webhook(argument('secret'));

webhook(({ headers }, body) => { library.verify(body.toString(), headers); });
