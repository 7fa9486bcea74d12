// Produces, consumes and administers a node with franz-go: main BOOTSTRAP TOPIC. Prints its results
// as JSON.
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"time"

	"conformance.test/shared"
	"conformance/protocol"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const partitions = 3

func administer(ctx context.Context, admin *kadm.Client, topic string) map[string]any {
	seen := map[string]any{}
	retention, soon, seven := "60000", "soon", "7"
	_, err := admin.CreateTopic(ctx, 1, 1, map[string]*string{"retention.ms": &retention}, topic)
	shared.Must(err)
	_, err = admin.CreateTopic(ctx, 1, 1, nil, topic)
	seen["again"] = protocol.Name(err)
	grown, err := admin.UpdatePartitions(ctx, partitions, topic)
	shared.Must(err)
	shared.Must(grown.Error())
	fewer, err := admin.UpdatePartitions(ctx, 2, topic)
	shared.Must(err)
	seen["fewer"] = protocol.Name(fewer.Error())

	altered, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{
		{Op: kadm.SetConfig, Name: "flush.messages", Value: &seven},
		{Op: kadm.DeleteConfig, Name: "retention.ms"},
	}, topic)
	shared.Must(err)
	shared.Must(altered[0].Err)
	altered, err = admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{
		{Op: kadm.SetConfig, Name: "retention.ms", Value: &soon}}, topic)
	shared.Must(err)
	seen["badConfig"] = protocol.Name(altered[0].Err)
	// Kafka acknowledges a change before it is in force.
	for tries := 0; tries < 100; tries++ {
		described, err := admin.DescribeTopicConfigs(ctx, topic)
		shared.Must(err)
		configs := map[string]string{}
		for _, config := range described[0].Configs {
			configs[config.Key] = config.Source.String() + " " + config.MaybeValue()
		}
		seen["flush"], seen["retention"] = configs["flush.messages"], configs["retention.ms"]
		if seen["flush"] == "DYNAMIC_TOPIC_CONFIG 7" {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	users, err := admin.DescribeUserSCRAMs(ctx, "nobody")
	shared.Must(err)
	seen["scram"] = protocol.Name(users["nobody"].Err)
	rules, err := admin.DescribeACLs(ctx, kadm.NewACLs().AnyResource().Allow().Deny().
		AllowHosts().DenyHosts().Operations().ResourcePatternType(kadm.ACLPatternAny))
	shared.Must(err)
	seen["acls"] = protocol.Name(rules[0].Err)
	return seen
}

// Batches of every codec, with keys and headers; the results of the idempotent producer.
func produce(ctx context.Context, bootstrap, topic string) {
	codecs := map[string]kgo.CompressionCodec{"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}
	for codec, compression := range codecs {
		client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.RecordPartitioner(kgo.ManualPartitioner()),
			kgo.ProducerBatchCompression(compression), kgo.ProducerLinger(5*time.Millisecond))
		shared.Must(err)
		var records []*kgo.Record
		for number := 0; number < 100*partitions; number++ {
			records = append(records, &kgo.Record{Topic: topic, Partition: int32(number % partitions),
				Key: []byte(codec), Value: []byte(fmt.Sprintf("%s %d", codec, number)),
				Headers: []kgo.RecordHeader{{Key: "codec", Value: []byte(codec)}}})
		}
		shared.Must(client.ProduceSync(ctx, records...).FirstErr())
		client.Close()
	}
}

// Every record once, in order within each partition, by a consumer with fetch sessions.
func consume(ctx context.Context, bootstrap, topic string) map[string]any {
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	shared.Must(err)
	defer client.Close()
	counts, next, inOrder := map[string]int{}, map[int32]int64{}, true
	for total := 0; total < 5*100*partitions; {
		fetches := client.PollFetches(ctx)
		shared.Must(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			total++
			if len(record.Headers) == 1 && string(record.Headers[0].Value) == string(record.Key) {
				counts[string(record.Key)]++
			}
			inOrder = inOrder && record.Offset == next[record.Partition]
			next[record.Partition] = record.Offset + 1
		})
	}
	return map[string]any{"consumed": counts, "inOrder": inOrder}
}

func offsets(ctx context.Context, admin *kadm.Client, topic string) any {
	deleted, err := admin.DeleteRecords(ctx, kadm.Offsets{topic: {0: {Topic: topic, Partition: 0, At: 30}}})
	shared.Must(err)
	shared.Must(deleted.Error())
	first, err := admin.ListStartOffsets(ctx, topic)
	shared.Must(err)
	last, err := admin.ListEndOffsets(ctx, topic)
	shared.Must(err)
	var rows [][]int64
	for partition := int32(0); partition < partitions; partition++ {
		low, _ := first.Lookup(topic, partition)
		high, _ := last.Lookup(topic, partition)
		rows = append(rows, []int64{low.Offset, high.Offset})
	}
	return rows
}

func logs(ctx context.Context, admin *kadm.Client, topic string) any {
	dirs, err := admin.DescribeAllLogDirs(ctx, nil)
	shared.Must(err)
	var found []int
	dirs.Each(func(dir kadm.DescribedLogDir) {
		dir.Topics.Each(func(each kadm.DescribedLogDirPartition) {
			if each.Topic == topic && each.Size > 0 {
				found = append(found, int(each.Partition))
			}
		})
	})
	sort.Ints(found)
	return found
}

func main() {
	bootstrap, topic := os.Args[1], os.Args[2]
	ctx, stop := context.WithTimeout(context.Background(), 170*time.Second)
	defer stop()
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap))
	shared.Must(err)
	admin := kadm.NewClient(client)
	seen := administer(ctx, admin, topic)
	produce(ctx, bootstrap, topic)
	for key, value := range consume(ctx, bootstrap, topic) {
		seen[key] = value
	}
	seen["offsets"] = offsets(ctx, admin, topic)
	seen["logs"] = logs(ctx, admin, topic)

	removed, err := admin.DeleteTopics(ctx, topic)
	shared.Must(err)
	shared.Must(removed.Error())
	shared.Say(seen)
}
