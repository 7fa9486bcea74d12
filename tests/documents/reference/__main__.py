"""Write the printed pages of the reference: `python -m tests.documents.reference`."""

import sys

import click

from tests.documents.reference.pages import PAGES, SOURCES, differs, folder, printed


def _pages() -> str:
    width = max(map(len, PAGES))
    return "\n".join(f"  {name:{width}}  {SOURCES[name].table}" for name in PAGES)


@click.command(
    epilog=f"\b\nPages, and the tables they are printed from:\n{_pages()}",
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
)
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if a page differs.")
@click.argument("pages", nargs=-1, metavar="[PAGE]...", type=click.Choice(list(PAGES)))
def main(pages: tuple[str, ...], check: bool) -> None:
    """Print the pages of docs/reference/ from the tables of the code.

    Writes each PAGE (all, if none is named) that differs from the code, and prints its name. Run it
    after a change of a table, of a help text, or of a message; tests/documents/test_reference.py
    fails until the pages are committed.
    """
    found = [name for name in pages or PAGES if differs(name)]
    for name in found:
        if check:
            print(f"differs from the code: docs/reference/{name}")
        else:
            folder().mkdir(exist_ok=True)
            (folder() / name).write_text(printed(name))
            print(f"written: docs/reference/{name}")
    if check and found:
        sys.exit(1)


if __name__ == "__main__":
    main(prog_name="python -m tests.documents.reference")
