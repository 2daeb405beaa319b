// `make docs`: questions, as a reader types them, to the built site's own search. The first hit has to answer.
import fs from 'node:fs'
import path from 'node:path'
import vm from 'node:vm'

// Half of them about options, codes and deployment. Any of the pages is an answer.
const QUESTIONS = [
  ['How long does the sender retry, and when does it give up?', 'retry schedule', ['reference/sender-options/', 'sending/']],
  ['Which option sets the timeout of an attempt?', 'attempt timeout', ['reference/sender-options/']],
  ['What is the largest body that the receiver accepts?', 'max body', ['reference/receiver-settings/', 'receiver/', 'receiver-trust/']],
  ['How do commands know the database?', 'PUSHKIT_DATABASE', ['outbox/', 'reference/command-line/']],
  ['What does this code mean, and what mends it?', 'wrong_audience', ['reference/codes/']],
  ['What is a full backlog?', 'backlog_full', ['reference/codes/']],
  ['How does the receiver read its senders again without a restart?', 'reload senders', ['receiver-trust/', 'receiver/']],
  ['How do I put the receiver behind nginx?', 'nginx', ['deploy/']],
  ['How does systemd run a worker?', 'systemd', ['deploy/']],
  ['What does Kubernetes probe?', 'readiness probe', ['deploy/', 'operations/']],
  ['How do I upgrade?', 'upgrade', ['upgrading/']],
  ['How do I run several workers?', 'worker processes', ['sending/', 'reference/command-line/']],
  ['How do I rotate a signing key?', 'rotate key', ['keys/']],
  ['How does Prometheus get the metrics?', 'prometheus', ['operations/']],
  ['How do I allow webhooks on an intranet?', 'private network', ['destinations/']],
  ['How do I send dead letters again?', 'redrive dead letters', ['sending/', 'receiver-storage/', 'outbox/']],
  ['How do I verify a signed agent card?', 'verify card', ['cards/']],
  ['How do I receive in FastAPI?', 'fastapi', ['receiver/', 'receiving/']],
  ['How do I encrypt tokens in the database?', 'encrypt tokens', ['secrets/']],
  ['What keeps a webhook out of my network?', 'ssrf', ['destinations/']],
  ['How do I find out what my receiver does wrong?', 'doctor', ['terminal/']],
  ['Where does the receiver remember ids?', 'redis replay', ['receiver-storage/']],
  ['What happens to a failing destination?', 'circuit breaker', ['reference/sender-options/', 'destinations/', 'sending/']],
  ['How do I go back to the version before?', 'downgrade', ['migrations/', 'upgrading/']],
  ['How do I protect the dashboard?', 'dashboard token', ['dashboard/']],
]

const site = process.argv[2] ?? 'site'
const workers = path.join(site, 'assets/javascripts/workers')
const [worker] = fs.readdirSync(workers).filter((name) => /^search\..*\.js$/.test(name))
const answers = []
let listener
const scope = {
  addEventListener: (type, called) => { if (type === 'message') listener = called },
  postMessage: (message) => answers.shift()(message),
  importScripts: () => {},
  location: new URL('http://localhost/'),
  ...{ console, performance, setTimeout, URL },
}
scope.self = scope
vm.runInNewContext(fs.readFileSync(path.join(workers, worker), 'utf8'), scope)

function ask(type, data) {
  return new Promise((resolve) => { answers.push(resolve); listener({ data: { type, data } }) })
}

const index = JSON.parse(fs.readFileSync(path.join(site, 'search/search_index.json'), 'utf8'))
await ask(0, { ...index, options: { suggest: false } })
let failed = 0
for (const [question, typed, pages] of QUESTIONS) {
  const { data } = await ask(2, typed)
  const hits = (data.items ?? []).map((page) => page[0].location)
  if (!pages.some((page) => hits[0]?.split('#')[0] === page)) {
    failed += 1
    console.log(`${question} (${typed}): expected ${pages.join(' or ')}, found ${hits.slice(0, 3).join(', ')}`)
  }
}
console.log(`${QUESTIONS.length - failed} of ${QUESTIONS.length} questions are answered by the first hit`)
process.exit(failed ? 1 : 0)
