// Moves a partition with kafkajs: kafkajs_moves.js BOOTSTRAP TOPIC. Prints the answers as JSON.
//
// The topic has two partitions with the replicas 1 and 2. kafkajs cannot cancel a move.
const { Kafka, logLevel } = require('kafkajs')

const [bootstrap, topic] = process.argv.slice(2)
const seen = {}

async function main() {
  const kafka = new Kafka({ brokers: bootstrap.split(','), logLevel: logLevel.NOTHING })
  const admin = kafka.admin()
  await admin.connect()
  const error = async call => {
    try {
      await call
      return 'NONE'
    } catch (e) {
      return e.errors[0].type
    }
  }
  const move = (partition, replicas) =>
    error(
      admin.alterPartitionReassignments({
        topics: [{ topic, partitionAssignment: [{ partition, replicas }] }],
      })
    )
  const listed = async () => {
    const found = await admin.listPartitionReassignments({
      topics: [{ topic, partitions: [0, 1, 9] }],
    })
    return found.topics
  }
  seen.unknownPartition = await move(9, [1])
  seen.unknownWorker = await move(0, [1, 9])
  seen.twice = await move(0, [1, 1])
  seen.listedBefore = await listed()
  seen.move = await move(0, [3, 2])
  do {
    await new Promise(resolve => setTimeout(resolve, 50))
    const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
    const moved = topics[0].partitions.find(each => each.partitionId === 0)
    seen.replicas = [moved.replicas, moved.isr.sort()]
  } while (seen.replicas[0].includes(1) || (await listed()).length > 0)
  await admin.disconnect()
  console.log(JSON.stringify(seen))
}

main().catch(e => {
  console.error(e)
  process.exit(1)
})
