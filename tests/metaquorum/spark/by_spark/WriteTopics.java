import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Topics as Java's own client writes them, for readers to be compared on. Names begin with PREFIX:
 *
 *   none gzip snappy lz4 zstd   two partitions; null and empty keys and values, headers of all kinds
 *   compacted                   few keys written many times, tombstones, small segments
 *   append-time                 message.timestamp.type=LogAppendTime
 *   transactions                two transactional producers that commit and abort in turns, and a plain one
 *   open                        as that; the last transaction is left open
 *
 *   java -cp "$(tool --classpath)" WriteTopics.java BOOTSTRAP PREFIX
 */
public class WriteTopics {
    static final long TIME = System.currentTimeMillis() - 100_000_000L; // younger than any retention
    static String bootstrap;

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static KafkaProducer<byte[], byte[]> producer(String... settings) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", bootstrap);
        config.put("linger.ms", "20");
        for (int i = 0; i < settings.length; i += 2) config.put(settings[i], settings[i + 1]);
        return new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static ProducerRecord<byte[], byte[]> record(String topic, int number) {
        byte[] key = number % 7 == 0 ? null : number % 11 == 0 ? new byte[0] : bytes("key-" + number % 50);
        byte[] value = number % 13 == 0 ? null : number % 17 == 0 ? new byte[0]
            : bytes("value " + number + " ".repeat(number % 300));
        RecordHeaders headers = new RecordHeaders();
        if (number % 3 == 0) headers.add("trace", bytes("id-" + number));
        if (number % 6 == 0) headers.add("nothing", null).add("", new byte[0]).add("trace", bytes("again"));
        if (number % 9 == 0) headers.add("wörld", new byte[] {0, (byte) 0xff});
        return new ProducerRecord<>(topic, number % 2, TIME + 1000L * number - number % 5 * 3000L, key, value, headers);
    }

    static void write(String topic, int count, String... settings) {
        try (KafkaProducer<byte[], byte[]> producer = producer(settings)) {
            for (int number = 0; number < count; number++) {
                producer.send(record(topic, number));
                if (number % 500 == 499) producer.flush();
            }
        }
    }

    static void transactions(String topic, boolean leavesOneOpen) {
        List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            producers.add(producer("transactional.id", topic + "-" + i, "transaction.timeout.ms", "900000", "compression.type", i == 0 ? "none" : "lz4"));
            producers.get(i).initTransactions();
        }
        try (KafkaProducer<byte[], byte[]> plain = producer()) {
            for (int round = 0; round < 12; round++) {
                for (KafkaProducer<byte[], byte[]> one : producers) one.beginTransaction();
                for (int number = 0; number < 40; number++) {
                    producers.get(number % 2).send(record(topic, 1000 * round + number));
                    if (number % 10 == 0) plain.send(record(topic, 1000 * round + 500 + number));
                    if (number % 20 == 0) for (KafkaProducer<byte[], byte[]> one : producers) one.flush();
                }
                plain.flush();
                for (int i = 0; i < 2; i++) {
                    if ((round + i) % 3 == 0) producers.get(i).abortTransaction();
                    else producers.get(i).commitTransaction();
                }
            }
            if (leavesOneOpen) {
                producers.get(0).beginTransaction();
                for (int number = 0; number < 30; number++) producers.get(0).send(record(topic, 90_000 + number));
                producers.get(0).flush();
                for (int number = 0; number < 30; number++) plain.send(record(topic, 91_000 + number));
            }
        }
        if (!leavesOneOpen) for (KafkaProducer<byte[], byte[]> one : producers) one.close();
    }

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        String prefix = arguments[1];
        Map<String, String> compacted = Map.of("cleanup.policy", "compact", "segment.bytes", "1048576", "segment.ms", "100",
            "min.cleanable.dirty.ratio", "0.01", "delete.retention.ms", "1", "max.compaction.lag.ms", "100");
        List<NewTopic> topics = new ArrayList<>();
        String[] codecs = {"none", "gzip", "snappy", "lz4", "zstd"};
        for (String codec : codecs) topics.add(new NewTopic(prefix + codec, 2, (short) 1));
        topics.add(new NewTopic(prefix + "compacted", 2, (short) 1).configs(compacted));
        topics.add(new NewTopic(prefix + "append-time", 2, (short) 1).configs(Map.of("message.timestamp.type", "LogAppendTime")));
        topics.add(new NewTopic(prefix + "transactions", 2, (short) 1));
        topics.add(new NewTopic(prefix + "open", 2, (short) 1));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.createTopics(topics).all().get();
        }
        for (String codec : codecs) write(prefix + codec, 3000, "compression.type", codec);
        write(prefix + "append-time", 1000);
        for (int pass = 0; pass < 4; pass++) {
            try (KafkaProducer<byte[], byte[]> producer = producer("compression.type", "zstd")) {
                for (int number = 0; number < 400; number++) {
                    byte[] key = bytes("key-" + (pass == 3 ? "last" : number % (40 + 30 * pass)));
                    byte[] value = number % 19 == 0 ? null : bytes("pass " + pass + " number " + number);
                    producer.send(new ProducerRecord<>(prefix + "compacted", number % 2, TIME + number, key, value));
                    if (number % 50 == 0) producer.flush();
                }
            }
            Thread.sleep(150); // the next record is of another segment, by its segment.ms
        }
        transactions(prefix + "transactions", false);
        transactions(prefix + "open", true);
        System.exit(0); // with a transaction open
    }
}
