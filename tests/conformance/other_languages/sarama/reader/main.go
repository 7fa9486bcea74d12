// Reads partition 0 of a topic with sarama: reader BOOTSTRAP TOPIC COUNT. Prints the values as JSON.
package main

import (
	"log"
	"os"
	"strconv"
	"time"

	"conformance.test/shared"
	"github.com/IBM/sarama"
)

const limit = 170 * time.Second

func main() {
	bootstrap, topic := os.Args[1], os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	shared.Must(err)
	config := sarama.NewConfig()
	config.Version = sarama.V2_1_0_0 // zstd
	config.Consumer.Return.Errors = true
	consumer, err := sarama.NewConsumer([]string{bootstrap}, config)
	shared.Must(err)
	partition, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
	shared.Must(err)
	values := []string{}
	over := time.After(limit)
	for len(values) < count {
		select {
		case message := <-partition.Messages():
			values = append(values, string(message.Value))
		case err := <-partition.Errors():
			shared.Must(err)
		case <-over:
			log.Fatalln(len(values), "of", count, "records")
		}
	}
	shared.Say(map[string]any{"values": values})
}
