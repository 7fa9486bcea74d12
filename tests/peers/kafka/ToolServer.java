import java.io.*;
import java.net.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's commands one after the other in this JVM, which spares their start: a command takes a tenth of a CPU
 * second instead of half a second.
 *
 * A request on standard input: the number of words (int), the words (the main class, and the arguments of its main
 * method), and the standard input of the command. The answer on standard output: the exit code (int), and the standard
 * output and standard error of the command. Texts are a length (int) and that many bytes. Ends at the end of its input.
 *
 * The classes of the commands are loaded again for each command, because some keep state in static fields
 * (ConsoleConsumer.messageCount); those of the clients are loaded once. A command that calls System.exit, as the
 * verifiable clients do, ends this JVM.
 */
public class ToolServer {
    private static final int RUNNING = -1;

    /** Thrown by Exit.exit, so that a command ends as if the JVM did. */
    private static final class Ended extends Error {
        Ended() {
            super("the command has ended", null, false, false);
        }
    }

    /** Loads the commands' own classes, and leaves all others to the class path. */
    private static final class Commands extends URLClassLoader {
        private static final String[] OWN = {"org.apache.kafka.tools.", "kafka.admin.", "kafka.tools."};

        Commands(URL[] jars) {
            super(jars, ToolServer.class.getClassLoader());
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            synchronized (getClassLoadingLock(name)) {
                if (Arrays.stream(OWN).anyMatch(name::startsWith)) {
                    Class<?> loaded = findLoadedClass(name);
                    try {
                        return loaded != null ? loaded : findClass(name);
                    } catch (ClassNotFoundException e) {
                        // as all others
                    }
                }
                return super.loadClass(name, resolve);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        DataInputStream requests = new DataInputStream(new BufferedInputStream(System.in));
        DataOutputStream answers = new DataOutputStream(new BufferedOutputStream(System.out));
        List<URL> jars = new ArrayList<>();
        for (String path : System.getProperty("java.class.path").split(File.pathSeparator)) {
            String name = new File(path).getName();
            if (name.matches("kafka-tools-\\d.*\\.jar|kafka_.*\\.jar")) {
                jars.add(new File(path).toURI().toURL());
            }
        }
        while (true) {
            int count;
            try {
                count = requests.readInt();
            } catch (EOFException e) {
                System.exit(0);
                return;
            }
            List<String> words = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                words.add(new String(text(requests), StandardCharsets.UTF_8));
            }
            InputStream input = new ByteArrayInputStream(text(requests));
            ByteArrayOutputStream output = new ByteArrayOutputStream();
            ByteArrayOutputStream errors = new ByteArrayOutputStream();
            PrintStream out = new PrintStream(output, true);
            PrintStream err = new PrintStream(errors, true);
            System.setIn(input);
            System.setOut(out);
            System.setErr(err);
            int code = run(words, jars.toArray(new URL[0]));
            out.flush();
            err.flush();
            answers.writeInt(code);
            for (ByteArrayOutputStream each : List.of(output, errors)) {
                byte[] bytes = each.toByteArray();
                answers.writeInt(bytes.length);
                answers.write(bytes);
            }
            answers.flush();
        }
    }

    private static byte[] text(DataInputStream from) throws IOException {
        byte[] bytes = new byte[from.readInt()];
        from.readFully(bytes);
        return bytes;
    }

    /** Run the command; return its exit code. */
    private static int run(List<String> words, URL[] jars) throws IOException {
        AtomicInteger code = new AtomicInteger(RUNNING);
        List<Runnable> hooks = Collections.synchronizedList(new ArrayList<>());
        Exit.Procedure exit = (status, message) -> {
            code.compareAndSet(RUNNING, status);
            throw new Ended();
        };
        Exit.setExitProcedure(exit);
        Exit.setHaltProcedure(exit);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        try (Commands commands = new Commands(jars)) {
            Thread.currentThread().setContextClassLoader(commands);
            try {
                String[] arguments = words.subList(1, words.size()).toArray(new String[0]);
                commands.loadClass(words.get(0)).getMethod("main", String[].class).invoke(null, (Object) arguments);
                code.compareAndSet(RUNNING, 0);
            } catch (java.lang.reflect.InvocationTargetException e) {
                if (code.compareAndSet(RUNNING, 1)) { // otherwise thrown by `exit`, or because of it
                    System.err.print("Exception in thread \"main\" ");
                    e.getCause().printStackTrace();
                }
            } catch (ReflectiveOperationException e) {
                code.compareAndSet(RUNNING, 1);
                e.printStackTrace();
            }
            for (Runnable hook : List.copyOf(hooks)) {
                try {
                    hook.run();
                } catch (Ended e) {
                    // it has ended already
                }
            }
        } finally {
            Thread.currentThread().setContextClassLoader(ToolServer.class.getClassLoader());
        }
        return code.get();
    }
}
