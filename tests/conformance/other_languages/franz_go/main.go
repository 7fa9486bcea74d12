// Produces, consumes and administers a node with franz-go: main BOOTSTRAP TOPIC. Prints its results
// as JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"sort"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const partitions = 3

func must(err error) {
	if err != nil {
		log.Fatalln(err)
	}
}

// The error's name in the protocol; empty without an error.
func name(err error) string {
	var known *kerr.Error
	if err == nil {
		return ""
	}
	if errors.As(err, &known) {
		return known.Message
	}
	return err.Error()
}

func administer(ctx context.Context, admin *kadm.Client, topic string) map[string]any {
	seen := map[string]any{}
	retention, soon, seven := "60000", "soon", "7"
	_, err := admin.CreateTopic(ctx, 1, 1, map[string]*string{"retention.ms": &retention}, topic)
	must(err)
	_, err = admin.CreateTopic(ctx, 1, 1, nil, topic)
	seen["again"] = name(err)
	grown, err := admin.UpdatePartitions(ctx, partitions, topic)
	must(err)
	must(grown.Error())
	fewer, err := admin.UpdatePartitions(ctx, 2, topic)
	must(err)
	seen["fewer"] = name(fewer.Error())

	altered, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{
		{Op: kadm.SetConfig, Name: "flush.messages", Value: &seven},
		{Op: kadm.DeleteConfig, Name: "retention.ms"},
	}, topic)
	must(err)
	must(altered[0].Err)
	altered, err = admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{
		{Op: kadm.SetConfig, Name: "retention.ms", Value: &soon}}, topic)
	must(err)
	seen["badConfig"] = name(altered[0].Err)
	// Kafka acknowledges a change before it is in force.
	for tries := 0; tries < 100; tries++ {
		described, err := admin.DescribeTopicConfigs(ctx, topic)
		must(err)
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
	must(err)
	seen["scram"] = name(users["nobody"].Err)
	rules, err := admin.DescribeACLs(ctx, kadm.NewACLs().AnyResource().Allow().Deny().
		AllowHosts().DenyHosts().Operations().ResourcePatternType(kadm.ACLPatternAny))
	must(err)
	seen["acls"] = name(rules[0].Err)
	return seen
}

// Batches of every codec, with keys and headers; the results of the idempotent producer.
func produce(ctx context.Context, bootstrap, topic string) {
	codecs := map[string]kgo.CompressionCodec{"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}
	for codec, compression := range codecs {
		client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.RecordPartitioner(kgo.ManualPartitioner()),
			kgo.ProducerBatchCompression(compression), kgo.ProducerLinger(5*time.Millisecond))
		must(err)
		var records []*kgo.Record
		for number := 0; number < 100*partitions; number++ {
			records = append(records, &kgo.Record{Topic: topic, Partition: int32(number % partitions),
				Key: []byte(codec), Value: []byte(fmt.Sprintf("%s %d", codec, number)),
				Headers: []kgo.RecordHeader{{Key: "codec", Value: []byte(codec)}}})
		}
		must(client.ProduceSync(ctx, records...).FirstErr())
		client.Close()
	}
}

// Every record once, in order within each partition, by a consumer with fetch sessions.
func consume(ctx context.Context, bootstrap, topic string) map[string]any {
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	must(err)
	defer client.Close()
	counts, next, inOrder := map[string]int{}, map[int32]int64{}, true
	for total := 0; total < 5*100*partitions; {
		fetches := client.PollFetches(ctx)
		must(fetches.Err())
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
	must(err)
	must(deleted.Error())
	first, err := admin.ListStartOffsets(ctx, topic)
	must(err)
	last, err := admin.ListEndOffsets(ctx, topic)
	must(err)
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
	must(err)
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
	must(err)
	admin := kadm.NewClient(client)
	seen := administer(ctx, admin, topic)
	produce(ctx, bootstrap, topic)
	for key, value := range consume(ctx, bootstrap, topic) {
		seen[key] = value
	}
	seen["offsets"] = offsets(ctx, admin, topic)
	seen["logs"] = logs(ctx, admin, topic)

	removed, err := admin.DeleteTopics(ctx, topic)
	must(err)
	must(removed.Error())
	must(json.NewEncoder(os.Stdout).Encode(seen))
}
