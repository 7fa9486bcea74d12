// Administers a node with kafkajs: node kafkajs_admin.js BOOTSTRAP TOPIC. Prints its results as JSON.
const { Kafka, logLevel, ConfigResourceTypes, AclResourceTypes, AclOperationTypes,
  AclPermissionTypes, ResourcePatternTypes } = require('kafkajs')

const [bootstrap, topic] = process.argv.slice(2)
const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.NOTHING, retry: { retries: 5 } })
const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
const seen = {}

const settled = (promise) => promise.then(() => 'ok', (error) => error.type || error.name)
const value = async (admin, name) => {
  const { resources } = await admin.describeConfigs({
    includeSynonyms: false, resources: [{ ...resource, configNames: [name] }] })
  return resources[0].configEntries[0].configValue
}
const becomes = async (admin, name, wanted) => { // Kafka acknowledges it before it is in force
  for (let tries = 0; tries < 100 && (await value(admin, name)) !== wanted; tries++) {
    await new Promise((done) => setTimeout(done, 50))
  }
  return value(admin, name)
}

const main = async () => {
  const admin = kafka.admin()
  const producer = kafka.producer({ allowAutoTopicCreation: false })
  await admin.connect()
  await producer.connect()
  seen.created = await admin.createTopics({ topics: [{ topic, numPartitions: 1 }] })
  await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
  seen.partitions = (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length
  seen.fewer = await settled(admin.createPartitions({ topicPartitions: [{ topic, count: 2 }] }))
  await admin.alterConfigs({ validateOnly: false,
    resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '60000' }] }] })
  seen.retention = await becomes(admin, 'retention.ms', '60000')
  seen.badConfig = await settled(admin.alterConfigs({ validateOnly: false,
    resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: 'soon' }] }] }))
  const messages = [...Array(5).keys()].map((n) => ({ value: `${n}`, partition: 0 }))
  await producer.send({ topic, messages })
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '3' }] })
  const offsets = await admin.fetchTopicOffsets(topic)
  seen.offsets = offsets.filter((each) => each.partition === 0).map((each) => [each.low, each.high])
  seen.acls = await settled(admin.describeAcls({ resourceType: AclResourceTypes.ANY,
    resourcePatternType: ResourcePatternTypes.ANY, operation: AclOperationTypes.ANY,
    permissionType: AclPermissionTypes.ANY }))
  await admin.deleteTopics({ topics: [topic] })
  seen.left = (await admin.listTopics()).includes(topic)
  await producer.disconnect()
  await admin.disconnect()
  console.log(JSON.stringify(seen))
}

main().catch((error) => { console.error(error); process.exit(1) })
