// Reads partition 0 of a topic with franz-go: reader BOOTSTRAP TOPIC COUNT. Prints the values as JSON.
package main

import (
	"context"
	"os"
	"strconv"
	"time"

	"conformance.test/shared"
	"github.com/twmb/franz-go/pkg/kgo"
)

const limit = 170 * time.Second

func main() {
	bootstrap, topic := os.Args[1], os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	shared.Must(err)
	ctx, stop := context.WithTimeout(context.Background(), limit)
	defer stop()
	start := map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.ConsumePartitions(start))
	shared.Must(err)
	defer client.Close()
	values := []string{}
	for len(values) < count {
		fetches := client.PollFetches(ctx)
		shared.Must(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) { values = append(values, string(record.Value)) })
	}
	shared.Say(map[string]any{"values": values})
}
