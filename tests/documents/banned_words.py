"""Words and forms that this project's prose does without, and what to write instead.

Plain technical English: the subject is named, the verb is active, the noun is the field's. A rule
that finds good prose is a bad rule: narrow it here, and say why.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.documents.prose import Prose


@dataclass(frozen=True)
class Rule:
    pattern: re.Pattern[str]
    instead: str


def _word(pattern: str, instead: str) -> Rule:
    return Rule(re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), instead)


# Anywhere: docstrings, comments, messages, documents.
WORDS = (
    _word(r"whoever|whomever", "name the party: a client that, the reader, a caller that"),
    _word(r"whatever", "name the thing, or: any"),
    _word(
        r"nobody|somebody|anybody|everybody|everyone|someone|anyone|no one",
        "name the party: no client, another worker, all voters",
    ),
    _word(r"whom", "name the party: the client that, the leader that"),
    _word(r"(?:is|are|was|were|be|been|being|gets?) told", "is notified, receives, learns"),
    _word(r"told", "distinguished (told apart), notified, reported, specified"),
    _word(r"tells?", "distinguishes (tells apart), reports, sends"),
    _word(r"(?:is|are|was|were) heard|hears?|heard (?:of|from)", "receives, is notified of"),
    _word(r"in good order", "cleanly"),
    _word(r"beside the loop", "in a worker thread"),
    _word(r"beside(?![ -]Kafka| a real Kafka| Apache Kafka)", "next to, in addition to, outside"),
    _word(r"anew", "again, empty, from scratch"),
    _word(r"once more", "again"),
    _word(r"any more", "no longer"),
    _word(
        r"(?<!=)ours(?!=)|theirs|of its own accord", "name the owner: this worker's, the client's"
    ),
    _word(r"(?:is|are|was|were) gone|has gone|have gone", "is deleted, is closed, has stopped"),
    _word(r"news", "change, notification, event"),
    _word(r"wish(?:es)?|wished", "request, requested"),
    _word(r"troubles?", "fault, failure"),
    _word(r"nonsense|rubbish|(?<!collect )garbage(?! collect)", "malformed bytes, random bytes"),
    _word(r"so many|so much|so few|so long|so often|so old", "give the number, or its name"),
    _word(r"lacks?|lacking|lacked", "is missing, does not have"),
    _word(r"stands? for|stood for", "represents, means"),
    _word(r"goes on|go on|went on", "continues"),
    _word(r"crowds?", "many clients"),
    _word(r"the like|and such", "name them"),
    _word(r"shows? who|who it is|who they are|who he is|whom it believes", "authenticates"),
    _word(r"comes? by|came by", "arrives at, connects to"),
    _word(r"let in|lets in", "authenticated, accepted"),
    _word(r"on trial", "provisional"),
    _word(r"had to have", "rewrite"),
    _word(r"what (?:came|comes|became|becomes|is to become) of", "the result of, the outcome of"),
    _word(r"takes? (?:it|them|him|one|this) for", "treats as"),
    _word(r"(?:is|are|was) taken for", "is treated as"),
    _word(r"left alone|leaves? (?:it|them) alone", "is not changed"),
    _word(r"be it|for good|at its word|at fault|at hand|by and by", "rewrite"),
    _word(r"says? so|said so|saying so", "reports it, prints the reason"),
    _word(r"as it (?:came|comes|lies)|as they (?:came|come|lie)", "unchanged"),
    _word(r"lies|lie(?= (?:in|on|there|behind|below|before|within))", "is stored, is"),
    _word(r"(?:give|gives|gave|given) away|hand(?:s|ed)? out", "returns, transfers"),
    _word(r"tend(?:s|ed|ing)? (?:its|the|to them|workers)", "maintains"),
    _word(r"council|nation|reign|roll call|fleet|keeper|eyes|entrance", "see the glossary"),
    _word(r"riddles?|mend(?:s|ed|ing)?", "fix"),
    _word(r"hence|thus|thereby|lest|whence|whither|thence|nought", "plain words"),
    _word(r"goes? without|does? without|make(?:s)? do", "does not need, does not use"),
    _word(r"in vain|for nought|nothing of the kind|a word on|word of", "plain words"),
    _word(r"stands?(?! for)|stood(?! for)", "is listed, stops, exists"),
    _word(r"(?:is|are|was|were) (?:not )?there", "exists, is missing, is installed"),
    _word(r"sound", "valid, intact"),
    _word(r"passed over", "skipped"),
    _word(r"(?:is|are|was|were) noted|as noted", "is recorded, is logged"),
    _word(r"(?:brought|brings?|bringing) along", "includes, adds"),
    _word(r"for people", "for readers, as text"),
    _word(r"for ever|surely|for sure|wherever", "permanently, certainly, if: or leave it out"),
    _word(r"(?:is|are|was|were) to be", "must be, will be, or the verb itself"),
    _word(r"know(?:s|n)? of|knew of", "has received, has, knows"),
    _word(r"asks? again", "retries, requests again"),
    _word(r"may go(?! into| to| through| offline)", "may be removed, may be deleted"),
    # "There is no topic" is plain; "a worker that is no voter" is not.
    _word(
        r"(?<!there )(?:is|are|was|were) no (?!longer|more|better|later|earlier|larger|\w+ than)",
        "is not a, are not",
    ),
    # A follower is behind its leader, and servers are behind a listener.
    _word(
        r"(?:append\w*|before and|stored|written) (?:it |them |anything )?behind"
        r"|behind (?:the|all) others",
        "after",
    ),
)

# At the start of a sentence: a riddle where a noun belongs.
_SENTENCE_STARTS = (
    Rule(
        re.compile(r"(?:^|(?<=[.:;!?]\s))(?:Who|Whose|Whom)\b(?![^.!?]*\?)"),
        "name the subject: 'A fenced worker cannot be a leader.'",
    ),
    Rule(
        re.compile(r"(?:^|(?<=[.:;!?]\s))What\b(?![^.!?]*\?)"),
        "name the subject: 'Records that ...', 'Return the ...'",
    ),
)

_ERRORS = r"[A-Z]\w*(?:Error|Exception|Warning|Cancelled)"
_BARE_ERRORS = Rule(
    re.compile(rf"(?:^|[.;:]\s+){_ERRORS}(?:(?:,| or| and)? {_ERRORS})*(?:[.;]|:\s|\s*$)"),
    "write: Raises StorageError if the directory fails.",
)
# The first word of a function's docstring is a verb in the imperative. A verb that is missing here
# is added; a noun is not.
_VERB_LIST = """
abandon abort accept acknowledge add adjust administer admit advance allocate allow alter
answer append apply arm ask assert assign attach authenticate average become begin bind block
bound break bring buffer build cache call cancel change charge check choose classify clean
clear close collect combine commit compare compile complete compress compute connect consume
convert copy corrupt count crash create cut cycle damage decide declare decode decompress
decorate decrypt define delay delete deliver derive describe detach dial discard disconnect
divide do drain draw drop elect empty enable encode encrypt end ensure enter escape evaluate
evict exchange execute exit expire explain expose extend fail feed fence fetch fill filter find
finish flag flatten flip flush follow forget format free freeze generate give grant grow guard
handle hash hold ignore import increase inject insert inspect install interrupt introduce
invalidate iterate join judge keep kill lead learn leave let limit list listen load locate lock
log look lower make map mark match measure merge move mute name negotiate normalize note notify
observe obtain offer omit open order override pack pad parse partition pass patch pause pay
perform permit pick place plan play poll pop prefer prepare print probe process produce promise
propose protect prove publish pump push put query queue quote raise read rebuild receive
recognize reconnect record recover redirect reduce refill refresh refuse register reject relay
release reload remember remove rename render repair repeat replace replay replicate report
represent request require reschedule reserve reset resolve respond restart restore restrict
resume retain retire retry return reverse revert rewrite roll rotate run sample save say scan
schedule seal search seek select send serve set settle share show shrink shut sign simulate
skip sleep sort spawn split stage start step stop store strip submit subscribe summarize
suspend swap switch sync take tear test throttle time toggle touch trace track transfer
translate treat trigger trim truncate try turn unblock undo unfence unlock unmute unpack
unregister unwrap update use validate verify visit vote wait wake walk warn watch widen
withdraw wrap write yield
"""
_VERBS = frozenset(_VERB_LIST.split())
_HEADING = Rule(
    re.compile(r"^#+ +(?:Who|Whose|Whom|Whoever)\b(?![^\n]*\?)", re.IGNORECASE | re.MULTILINE),
    "name the subject: 'Users that may connect'",
)
_PROPERTY_START = Rule(
    re.compile(rf"\A(?:it|what|who|whom|of|by|as|so|is|are|has|have|may|{_ERRORS})\b", re.I),
    "name what the property holds: 'Offset of the first record', 'Whether ...'",
)
_CLASS_START = Rule(
    re.compile(rf"\A(?:it|what|who|whom|of|by|as|so|is|are|has|have|may|where|{_ERRORS})\b", re.I),
    "say what an instance is: 'Connection limits of one worker.'",
)
_COMMENT_START = Rule(
    re.compile(r"\A(?:of|who|whom|what|whose)\b(?!.*\?)", re.IGNORECASE | re.DOTALL),
    "name the thing: '# admitted connections by worker id, oldest first'",
)


def _rules(prose: Prose) -> Iterator[Rule]:
    yield from WORDS
    yield from _SENTENCE_STARTS
    if prose.kind == "document":
        yield _HEADING
    if prose.kind == "comment":
        yield _COMMENT_START
    if prose.kind == "docstring":
        yield _BARE_ERRORS
        if prose.of in ("function", "property"):
            yield _PROPERTY_START
        elif prose.of in ("class", "module"):
            yield _CLASS_START


def findings(prose: Prose) -> Iterator[str]:
    """Yield one line for each place in `prose` that breaks a rule."""
    if prose.of == "function" and prose.kind == "docstring" and prose.path.parts[0] != "tests":
        # `CODE` is a parameter, whose meaning the docstring gives.
        first = re.match(r"[\w-]*", prose.text)
        if first is not None and first[0] != "CODE" and first[0].lower() not in _VERBS:
            instead = "begin with a verb in the imperative: Return, Append, Truncate"
            yield f"{prose.path}:{prose.line}: {first[0]!r}: {instead}"
    for rule in _rules(prose):
        for match in rule.pattern.finditer(prose.text):
            begin = max(0, match.start() - 30)
            excerpt = " ".join(prose.text[begin : match.end() + 30].split())
            line = prose.line + prose.text.count("\n", 0, match.start())
            yield f"{prose.path}:{line}: {match[0].strip()!r} in {excerpt!r}: {rule.instead}"
