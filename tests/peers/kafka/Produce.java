import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Java's producer at a steady rate, until its input ends. Prints a line for each acknowledgement: the partition and the
 * Unix time in milliseconds; or "failed" and the error.
 *
 *   java -cp "$(tool --classpath)" Produce.java BOOTSTRAP TOPIC RECORDS_PER_SECOND [CONFIG=VALUE ...]
 */
public class Produce {
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> config = new HashMap<>(Map.of("bootstrap.servers", arguments[0]));
        for (int i = 3; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            config.put(pair[0], pair[1]);
        }
        long pauseMs = 1000 / Long.parseLong(arguments[2]);
        ByteArraySerializer plain = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config, plain, plain)) {
            int partitions = producer.partitionsFor(arguments[1]).size();
            for (long i = 0; System.in.available() == 0; i++) {
                var record = new ProducerRecord<byte[], byte[]>(arguments[1], (int) (i % partitions), null, new byte[100]);
                producer.send(record, (at, error) -> {
                    System.out.println(error == null ? at.partition() + " " + System.currentTimeMillis() : "failed " + error);
                    System.out.flush();
                });
                Thread.sleep(pauseMs);
            }
        }
    }
}
