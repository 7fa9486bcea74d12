"""What was acknowledged of the metadata stays; the image is what the log says."""

from simulations.checkers import Checker
from simulations.history import Topic
from simulations.room import Room


class AcknowledgedChangesStay(Checker):
    """A created topic is there with its id until its deletion is asked for, then it may be gone;
    once that is acknowledged it is, for ever."""

    invariant = "M3"

    def __init__(self, room: Room) -> None:
        super().__init__(room)
        self._asked: set[str] = set()
        self._there: dict[bytes, Topic] = {}
        self._deleted: set[bytes] = set()

    def create_asked(self, name: str) -> None:
        self._asked.add(name)

    def created(self, topic: Topic) -> None:
        self._there[topic.topic_id] = topic

    def deleted(self, topic: Topic) -> None:
        self._there.pop(topic.topic_id, None)
        self._deleted.add(topic.topic_id)

    def seen(self, topics: dict[str, tuple[bytes, int]]) -> None:
        """This is what the node says there is: name -> id and number of partitions."""
        for topic in self._there.values():
            if not topic.delete_asked:
                self.compare(
                    topics.get(topic.name) == (topic.topic_id, topic.partitions),
                    "{} was created with {} partitions, and now is {}",
                    topic,
                    topic.partitions,
                    topics.get(topic.name),
                )
        for name, (topic_id, _) in topics.items():
            self.compare(name in self._asked, "nobody asked for {}", name)
            self.compare(topic_id not in self._deleted, "{} was deleted and is there", name)
