// `make docs`: names and questions, as a reader types them, to the built site's own search: `site_questions.json`.
// The first hit has to be, for a name, the page with its section, and for a question one of the pages that answer it.
import fs from 'node:fs'
import path from 'node:path'
import vm from 'node:vm'

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
const { names, questions } = JSON.parse(fs.readFileSync(new URL('site_questions.json', import.meta.url), 'utf8'))
let failed = 0

async function check(typed, isRight, expected) {
  const { data } = await ask(2, typed)
  const hits = (data.items ?? []).map((page) => page.map((section) => section.location))
  if (hits.length && isRight(hits[0])) return
  failed += 1
  console.log(`${typed}: expected ${expected}, found ${hits.slice(0, 3).map((page) => page[0]).join(', ') || 'nothing'}`)
}

// The first page is shown with its best sections.
for (const [name, sections] of names) {
  await check(name, (page) => page.slice(0, 3).some((each) => sections.some((section) => each.startsWith(section))), sections.join(' or '))
}
for (const [, typed, pages] of questions) {
  await check(typed, ([hit]) => pages.includes(hit.split('#')[0]), pages.join(' or '))
}
const asked = names.length + questions.length
console.log(`${names.length} names and ${questions.length} questions: ${asked - failed} of ${asked} are answered by the first hit`)
process.exit(failed ? 1 : 0)
