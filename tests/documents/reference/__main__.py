"""Write the printed pages of the reference: `python -m tests.documents.reference`."""

from tests.documents.reference.pages import PAGES, printed
from tests.nodes import ROOT


def main() -> None:
    for name in PAGES:
        path = ROOT / "docs/reference" / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text() != printed(name):
            path.write_text(printed(name))
            print(f"written: docs/reference/{name}")


if __name__ == "__main__":
    main()
