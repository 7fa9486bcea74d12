"""Script that runs mq-load in spark-submit: `spark-submit "$(mq-load script)" load ...`."""

from metaquorum.cli.load.main import main

if __name__ == "__main__":
    main(prog_name="mq-load")
