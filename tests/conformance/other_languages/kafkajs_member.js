// A member of a group with kafkajs: node kafkajs_member.js OPTIONS (JSON). Prints assignments and
// records as lines of JSON; ends with the line "close" on stdin. See tests/conformance/groups/members.py.
const { Kafka, logLevel } = require('kafkajs')
const { createInterface } = require('readline')

const options = { session_ms: 10000, ...JSON.parse(process.argv[2]) }
const kafka = new Kafka({ brokers: options.bootstrap.split(','), logLevel: logLevel.NOTHING })
const consumer = kafka.consumer({ groupId: options.group, sessionTimeout: options.session_ms,
  rebalanceTimeout: 20000, heartbeatInterval: 300, metadataMaxAge: 1000,
  maxWaitTimeInMs: 100 }) // it sends no heartbeat during a fetch
const say = (event, fields) => process.stdout.write(JSON.stringify({ event, ...fields }) + '\n')
let owned = []

const given_back = () => {
  if (owned.length) say('revoked', { partitions: owned, generation: -1 })
  owned = []
}
consumer.on(consumer.events.REBALANCING, given_back)
consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
  given_back()
  owned = Object.entries(payload.memberAssignment)
    .flatMap(([topic, indexes]) => indexes.map((index) => [topic, index]))
  say('assigned', { partitions: owned, generation: -1, member: payload.memberId })
})
consumer.on(consumer.events.COMMIT_OFFSETS, () => say('committed'))
consumer.on(consumer.events.CRASH, ({ payload }) => say('error', { name: payload.error.name }))

const main = async () => {
  await consumer.connect()
  await consumer.subscribe({ topics: options.topics, fromBeginning: true })
  await consumer.run({ autoCommitThreshold: 1, eachMessage: async ({ topic, partition, message }) => {
    say('record', { topic, partition, offset: Number(message.offset), value: message.value.toString() })
  } })
  createInterface({ input: process.stdin }).once('line', async () => {
    await consumer.disconnect()
    say('closed')
    process.exit(0)
  })
}
main().catch((error) => { console.error(error); process.exit(1) })
