"""Principal names of client certificates."""

import pytest

from metaquorum.dataplane.network.principal_mapping import PrincipalMapping

RULES = "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, RULE:^CN=(.*?),OU=(.*?)$/$1@$2/L, DEFAULT"


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("DEFAULT", "CN=Alice,O=X", "CN=Alice,O=X"),
        ("", "CN=Alice", "CN=Alice"),
        (RULES, "CN=Kafka,OU=ServiceUsers,O=X", "Kafka"),
        (RULES, "CN=Alice,OU=Sales", "alice@sales"),
        (RULES, "UID=1", "UID=1"),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U", "O=X,CN=a.b", "A.B"),
        (r"RULE:^CN=(.*)\/x$/$1\/y/", "CN=a/x", "a/y"),
        ("RULE:^CN=(a)$/$1/", "CN=b", "CN=b"),
    ],
)
def test_the_first_rule_that_fits_says_it(rules: str, subject: str, name: str) -> None:
    assert PrincipalMapping(rules).name_of(subject) == name


@pytest.mark.parametrize(
    "rules", ["nonsense", "RULE:^CN=(.*)$", "RULE:(/$1/", "RULE:^CN=.*$/$1/", "RULE:a/b/X"]
)
def test_rules_that_make_no_sense_are_refused(rules: str) -> None:
    with pytest.raises(ValueError, match=r"not a rule|invalid pattern|no group"):
        PrincipalMapping(rules)
