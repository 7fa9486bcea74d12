import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Java's consumer with all partitions of a topic assigned: `consumer-perf-test` can only subscribe,
 * which needs consumer groups. Prints records, bytes of values, and seconds from the assignment on.
 *
 *   java -cp "$(tool --classpath)" Consume.java BOOTSTRAP TOPIC RECORDS [CONFIG=VALUE ...]
 */
public class Consume {
    public static void main(String[] arguments) {
        long wanted = Long.parseLong(arguments[2]), records = 0, bytes = 0;
        Map<String, Object> config = new HashMap<>(Map.of("bootstrap.servers", arguments[0]));
        for (int i = 3; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            config.put(pair[0], pair[1]);
        }
        ByteArrayDeserializer plain = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config, plain, plain)) {
            List<TopicPartition> partitions = consumer.partitionsFor(arguments[1]).stream()
                .map(each -> new TopicPartition(each.topic(), each.partition())).toList();
            long began = System.nanoTime(), last = began;
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            while (records < wanted && System.nanoTime() - last < 30e9) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    records++;
                    bytes += record.value().length;
                    last = System.nanoTime();
                }
            }
            System.out.println(records + " " + bytes + " " + (last - began) / 1e9);
        }
    }
}
