// Administers a node with sarama: main BOOTSTRAP TOPIC. Prints its results as JSON.
package main

import (
	"os"
	"time"

	"conformance.test/shared"
	"conformance/protocol"
	"github.com/IBM/sarama"
)

func value(admin sarama.ClusterAdmin, topic, name string) string {
	entries, err := admin.DescribeConfig(sarama.ConfigResource{
		Type: sarama.TopicResource, Name: topic, ConfigNames: []string{name}})
	shared.Must(err)
	return entries[0].Value
}

// Kafka acknowledges a change before it is in force.
func becomes(admin sarama.ClusterAdmin, topic, name, wanted string) string {
	for tries := 0; tries < 100 && value(admin, topic, name) != wanted; tries++ {
		time.Sleep(50 * time.Millisecond)
	}
	return value(admin, topic, name)
}

func main() {
	bootstrap, topic := os.Args[1], os.Args[2]
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	client, err := sarama.NewClient([]string{bootstrap}, config)
	shared.Must(err)
	admin, err := sarama.NewClusterAdminFromClient(client)
	shared.Must(err)
	seen := map[string]any{}

	shared.Must(admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false))
	shared.Must(admin.CreatePartitions(topic, 3, nil, false))
	seen["fewer"] = protocol.Code(admin.CreatePartitions(topic, 2, nil, false))
	listed, err := admin.ListTopics()
	shared.Must(err)
	seen["partitions"] = listed[topic].NumPartitions

	retention, soon := "60000", "soon"
	shared.Must(admin.AlterConfig(sarama.TopicResource, topic, map[string]*string{"retention.ms": &retention}, false))
	seen["retention"] = becomes(admin, topic, "retention.ms", retention)
	seen["badConfig"] = admin.AlterConfig(sarama.TopicResource, topic, map[string]*string{"retention.ms": &soon}, false).Error()
	seven := "7"
	shared.Must(admin.IncrementalAlterConfig(sarama.TopicResource, topic, map[string]sarama.IncrementalAlterConfigsEntry{
		"flush.messages": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &seven},
		"retention.ms":   {Operation: sarama.IncrementalAlterConfigsOperationDelete},
	}, false))
	seen["flush"] = becomes(admin, topic, "flush.messages", seven)
	seen["retentionAfter"] = becomes(admin, topic, "retention.ms", "604800000")

	producer, err := sarama.NewSyncProducerFromClient(client)
	shared.Must(err)
	for number := 0; number < 5; number++ {
		_, _, err := producer.SendMessage(&sarama.ProducerMessage{
			Topic: topic, Partition: 0, Value: sarama.StringEncoder("value")})
		shared.Must(err)
	}
	shared.Must(admin.DeleteRecords(topic, map[int32]int64{0: 3}))
	low, err := client.GetOffset(topic, 0, sarama.OffsetOldest)
	shared.Must(err)
	high, err := client.GetOffset(topic, 0, sarama.OffsetNewest)
	shared.Must(err)
	seen["offsets"] = []int64{low, high}

	dirs, err := admin.DescribeLogDirs([]int32{1})
	shared.Must(err)
	for _, dir := range dirs[1] {
		for _, each := range dir.Topics {
			if each.Topic == topic {
				seen["logs"] = len(each.Partitions)
			}
		}
	}
	users, err := admin.DescribeUserScramCredentials([]string{"nobody"})
	shared.Must(err)
	seen["scram"] = int(users[0].ErrorCode)

	shared.Must(admin.DeleteTopic(topic))
	shared.Must(admin.Close())
	shared.Say(seen)
}
